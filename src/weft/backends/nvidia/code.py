"""Device code as plain data: what the compiler hands to the runtime, and what the cache keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

from weft.ir.expr import Size


@dataclass(frozen=True)
class TensorMap:
    """A tensor that TMA reads boxes of, into shared memory whose lines of 128 bytes are swizzled.

    Sizes and strides are over the kernel's symbols and its scalars (`argument_name`), the innermost first, in elements;
    that one has stride 1.
    """

    argument: int
    """Which of the kernel's pointers is its memory."""
    dtype: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    box: tuple[int, ...]


def argument_name(number: int) -> str:
    """The symbol that stands for a scalar that a kernel takes."""
    return f"argument{number}"


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched."""

    threads: int
    """Of a block."""
    shared: int
    """Dynamic shared memory in bytes."""
    cluster: int = 1
    """Blocks of a cluster."""
    blocks_per_program: int = 1
    """A cluster shares a program: the grid has `programs * blocks_per_program` blocks."""
    persistent: bool = False
    """As many blocks as fit on the device at once, which walk the programs."""
    maps: tuple[TensorMap, ...] = ()
    """Parameters of 128 bytes each, after all others."""
    programmatic: bool = False
    """The kernel waits for what it depends on by itself (`griddepcontrol.wait`): it may start before that ends."""
    asked: tuple[int, ...] = ()
    """Which of its pointers are to memory that it reads before that."""
    written: tuple[int, ...] = ()
    """Which are to memory that it may write."""
    ahead: bool = False
    """Its threads have many codes under way at any time, which come through the first-level cache."""


class AwaitedModules(Mapping[str, str]):
    """Modules that threads still compile: whoever asks for one waits for it. `keeps` lives as long as they do."""

    def __init__(self, made: Mapping[str, Future[str]], keeps: object) -> None:
        self._made, self._keeps = made, keeps

    def __getitem__(self, name: str) -> str:
        return self._made[name].result()

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


@dataclass(frozen=True)
class DeviceCode:
    """Kernels by name: the PTX module that each is in, and how it is launched."""

    arch: str
    modules: Mapping[str, str]
    launches: Mapping[str, Launch]

    @property
    def is_awaited(self) -> bool:
        """Whether threads still compile it."""
        return isinstance(self.modules, AwaitedModules)

    @property
    def ptx(self) -> str:
        """All kernels as one module."""
        files: dict[str, int] = {}
        parts = [_parted(_with_files(module, files)) for module in dict.fromkeys(self.modules.values())]
        heads = dict.fromkeys(line for head, _ in parts for line in head.splitlines(keepends=True))
        named = [f"\t.file\t{number} {name}\n" for name, number in files.items()]
        return "".join([*heads, *(kernels for _, kernels in parts), *named])


_FILE = re.compile(r"^\t\.file\t(\d+) (.*)\n", re.MULTILINE)
_LINE = re.compile(r"^(\t\.loc\t)(\d+)", re.MULTILINE)
_NO_MACROS = "\t.section\t.debug_macinfo\t{\t}\n"


def _with_files(ptx: str, files: dict[str, int]) -> str:
    """A module whose source files have the numbers of `files`, which gets those that it has not; they stand there."""
    own = {number: str(files.setdefault(name, len(files) + 1)) for number, name in _FILE.findall(ptx)}
    if not own:
        return ptx
    return _LINE.sub(lambda found: found[1] + own[found[2]], _FILE.sub("", ptx)).replace(_NO_MACROS, "")


def _parted(ptx: str) -> tuple[str, str]:
    """What comes before the first kernel of a module, and its kernels."""
    start = ptx.find(".visible .entry")
    return (ptx[:start], ptx[start:]) if start >= 0 else (ptx, "")
