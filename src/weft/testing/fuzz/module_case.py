"""A random `nn.Module` as text: lines that make its inputs, its layers, lines that compute, and how it is called.

case.script() is a Python file that runs by itself:

def inputs(draw, A):
    x0 = draw((A, 8), torch.float32)
    return x0,

class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.l0 = nn.Linear(8, 4)

    def forward(self, x0):
        v0 = self.l0(x0)
        return v0,
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from weft.testing.fuzz.torch_case import TorchCase, names_in, targets, widened

Way = Literal["compile", "fullgraph", "method", "copied", "loaded", "weft"]
"""`method` is `nn.Module.compile`, `weft` is `weft.compile`; others are `torch.compile`: the module is deepcopied
after the first call, or another that has been compiled takes its `state_dict`."""
WAYS: tuple[Way, ...] = get_args(Way)

_LAYER = re.compile(r"\bself\.(l\d+)\b")
_DRAWS = re.compile(r"rand|drop|bernoulli|normal_|uniform_|rrelu|fractional|gumbel", re.IGNORECASE)
_numbers = itertools.count()


@dataclass(frozen=True)
class ModuleCase(TorchCase):
    """One module; `layers` are the lines of its `__init__`, `body` those of its `forward`."""

    layers: tuple[str, ...] = ()
    dtype: str = "float32"
    training: bool = False
    way: Way = "compile"
    autocast: str = ""
    """A type's name, or nothing."""
    optimizer: str = ""
    """An expression over `parameters`, whose step is compiled too."""

    @property
    def draws(self) -> bool:
        return any(_DRAWS.search(line) for line in (*self.layers, *self.body))

    def text(self) -> str:
        given, _, program = super().text().partition("def program(")
        *forward, returned = program.splitlines()
        arguments = forward[0].removesuffix("):")
        lines = [
            f"{given}class Program(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        {line}" for line in self.layers),
            "",
            f"    def forward(self, {arguments}):",
            *(f"    {line}" for line in (*forward[1:], returned)),
        ]
        return "\n".join([*lines, ""])

    def script(self, said: str) -> str:
        stated = {each.name for each in fields(TorchCase)} - {"mode", "dynamic", "seed", "device"} | {"layers"}
        settings = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in stated}
        plain = super().script(said).partition("\n\nCALLS = ")[0]
        functional = "import torch.nn.functional as F\n"
        plain = plain.replace(functional, f"{functional}from torch import nn\n")
        return (
            plain.replace("torch_judge", "module_judge")
            + f"\n\nCALLS = {list(self.calls)}\nSETTINGS = {settings}\n\n"
            + 'if __name__ == "__main__":\n    reproduce(inputs, Program, CALLS, **SETTINGS)\n'
        )

    @staticmethod
    def from_json(record: dict[str, Any]) -> ModuleCase:
        given: dict[str, Any] = dict(record)
        for name in ("inputs", "body", "outputs", "calls", "layers"):
            given[name] = tuple(record[name])
        return ModuleCase(**given)

    def live(self) -> ModuleCase:
        """Without inputs and layers that nothing uses."""
        needed, layers = {name for line in self.body for name in layers_in(line)}, list[str]()
        for line in reversed(self.layers):
            names = layers_in(line)
            if not names or names[0] in needed:
                layers.append(line)
                needed.update(names)
        used = {name for line in self.body for name in names_in(line)} | set(self.outputs)
        kept = list(self.inputs)
        for line in reversed(self.inputs):
            others = {name for other in kept if other is not line for name in names_in(other)}
            if not set(targets(line)) & (used | others) and len(kept) > 1:
                kept.remove(line)
        return replace(self, inputs=tuple(kept), layers=tuple(reversed(layers)))


def layers_in(line: str) -> tuple[str, ...]:
    """The names of layers in a line, in their order."""
    return tuple(dict.fromkeys(_LAYER.findall(line)))


def module_functions(
    case: ModuleCase, *, wide: bool = False
) -> tuple[Callable[..., tuple[Tensor, ...]], type[nn.Module]]:
    """What makes the inputs of a case, and the class of its module; with `wide` those of the float64 oracle."""
    text = case.text()
    if wide:
        head, mark, body = text.partition("    def forward(")
        text = head + mark + widened(f"def program({body}").removeprefix("def program(")
    file = f"<fuzz module {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "__name__": __name__}
    exec(compile(text, file, "exec"), scope)
    return scope["inputs"], scope["Program"]
