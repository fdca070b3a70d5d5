"""Cuts a module that is being written into parts that are modules themselves, for threads to compile side by side.

A part has functions that were written one after the other, the constants that they read, and declarations of what they
call. Functions that several kernels share stand in the part of the first, under names that the others see:

    define internal void @weft.panel(ptr %a) ... { ... }   →   define void @weft.panel(ptr %a) ... { ... }
                                                               declare void @weft.panel(ptr) in other parts
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from weft.backends.llvm.builder import Module

_MENTIONED = re.compile(r"@([\w.$]+)")
_INTERNAL = re.compile(r"define internal (.+?) @([\w.$]+)\((.*?)\) ([\w ()]+?) \{$", re.MULTILINE)
_PARAMETER = re.compile(r" %[\w.]+")


class ModuleParts:
    """The parts of a module, in the order of its functions."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._cut = 0
        self._declared: dict[str, str] = {}
        """Of functions in earlier parts that others may call: what declares them."""

    @property
    def uncut(self) -> Sequence[str]:
        """The functions that are in no part yet."""
        return self.module.functions[self._cut :]

    def cut(self) -> str:
        """The functions since the last cut, as a module."""
        functions, module = "\n".join(self.uncut), self.module
        self._cut = len(module.functions)
        shared = {name: (result, text) for result, name, text, kind in _INTERNAL.findall(functions) if _is_shared(kind)}
        for name in shared:
            functions = re.sub(rf"define internal (.+? @{re.escape(name)}\()", r"define \1", functions)
        mentioned = dict.fromkeys(_MENTIONED.findall(functions))
        parts = [f'target triple = "{module.triple}"', *module.constants(mentioned), functions]
        parts += [text for name, text in (module.declarations | self._declared).items() if name in mentioned]
        self._declared |= {
            name: f"declare {result} @{name}({_PARAMETER.sub('', parameters)})"
            for name, (result, parameters) in shared.items()
        }
        return "\n".join(parts) + "\n"


def _is_shared(kind: str) -> bool:
    """Whether a function with such attributes is for many kernels; those that are inlined are for one."""
    return "alwaysinline" not in kind
