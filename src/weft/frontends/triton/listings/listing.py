"""A kernel at every level: its source, tile IR, LLVM IR and assembly, for people to read."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.target import compile_assembly, host_target
from weft.backends.nvidia.ir.kernel_passes import PassNote
from weft.forks import COMPILING
from weft.frontends.triton.runtime.compiled import build_kernel, states_lines
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
from weft.frontends.triton.runtime.jit import JITFunction
from weft.frontends.triton.runtime.specialise import Described
from weft.tile.text import print_program

_LOCATION = re.compile(r'\s*loc\("(?P<file>[^"]*)":(?P<line>\d+):(?P<column>\d+)\)\s*$')
_UNKNOWN = re.compile(r"\s*loc\(unknown\)")


@dataclass(frozen=True)
class Row:
    """A line of source, and the tile ops that came of it."""

    file: str
    line: int
    source: str
    tile: str


@dataclass(frozen=True)
class Listing:
    """A kernel compiled for arguments of some types."""

    name: str
    signature: str
    file: str
    first: int
    source: str
    located: str
    """The tile IR with a location behind each op."""
    code: Mapping[str, str]
    """What comes of it, by level: LLVM IR and assembly, or a GPU's PTX."""
    between: Mapping[str, str] = field(default_factory=dict[str, str])
    """The kernel on its way there, by level: after each pass over it, where these are kept, and after all."""
    passes: tuple[PassNote, ...] = ()
    """What came of each pass over it on its way to a GPU."""

    @property
    def tile(self) -> str:
        return "\n".join(_UNKNOWN.sub("", _LOCATION.sub("", line)) for line in self.located.splitlines())

    def levels(self) -> dict[str, str]:
        return {"source": self.source, "tile": self.tile, **self.between, **self.code}

    def rows(self) -> list[Row]:
        """The lines of the kernel in order, then those of functions that it calls, each with its tile ops."""
        ops: dict[tuple[str, int], list[str]] = {}
        for text in self.located.splitlines():
            found = _LOCATION.search(text)
            if found is not None:
                place = (found["file"], int(found["line"]))
                ops.setdefault(place, []).append(_LOCATION.sub("", text).strip())
        own = [
            Row(self.file, self.first + n, line, "\n".join(ops.pop((self.file, self.first + n), [])))
            for n, line in enumerate(self.source.splitlines())
        ]
        called = [Row(file, line, _line(file, line), "\n".join(texts)) for (file, line), texts in sorted(ops.items())]
        return [*own, *called]


def listing_of(kernel: JITFunction, args: Sequence[Any], keywords: Mapping[str, Any]) -> Listing:
    """The kernel compiled for arguments like these; nothing is run, and nothing is taken from the cache."""
    return listing_for(kernel, *kernel.launcher.describe(args, dict(keywords)))


def listing_for(kernel: JITFunction, described: Sequence[Described], groups: tuple[int, ...] | None) -> Listing:
    """The kernel compiled for arguments like the described."""
    arguments, name, target = arguments_of(described, groups), name_of(kernel), host_target()
    with COMPILING:
        op, _ = build_kernel(builder_of(kernel, described), arguments, name)
        located = print_program(op, locations=True)
        llvm = emit_kernels({name: op}, target, debug_lines=states_lines())
        asm = compile_assembly(llvm, target)
    return listed(kernel, described, located, {"llvm": llvm, "asm": asm})


def listed(kernel: JITFunction, described: Sequence[Described], located: str, code: Mapping[str, str]) -> Listing:
    """The listing of a kernel whose programs are known."""
    signature = ", ".join(f"{each}: {d.type}" for each, d in zip(kernel.arg_names, described, strict=True))
    source = kernel.source
    return Listing(name_of(kernel), signature, source.file, source.line, source.text, located, code)


def _line(file: str, line: int) -> str:
    return linecache.getline(file, line).rstrip()
