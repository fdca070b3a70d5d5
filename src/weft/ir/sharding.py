"""Meshes and shardings: how the elements of a tensor lie on many ranks, and the text of that in the IR.

A mesh is a grid of ranks with named axes, `dp=2, tp=4`, numbered in row-major order. A sharding says for each dimension
of a tensor which axes it is split over, and whether what the ranks hold still has to be reduced over an axis:

    [{dp}, {}, {tp}]         the first dimension is split over dp, the last over tp, the second is whole
    [{dp, tp}]               split over dp, and each part over tp
    [{}, {tp/4}]             four blocks one behind the other, each of which is split over tp
    [{}, {}] sum {tp}        each rank of tp holds a summand
    [{tp}, {?}]              the second dimension is open: propagation may split it
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition

from weft.errors import ParseError, ShardingError
from weft.ir.expr import Size
from weft.ir.types import Tensor

REDUCTIONS = ("sum", "max", "min", "prod", "any", "all", "owner")
"""How summands become a value. With `owner`, one rank holds the value and the others zeros: it is a sum, too."""


@dataclass(frozen=True)
class Mesh:
    """Named axes of ranks, the last one running fastest."""

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if len(set(names)) != len(names) or any(size < 1 for _, size in self.axes):
            raise ShardingError(f"mesh {self}: axes have different names and at least one rank")

    @staticmethod
    def of(**axes: int) -> Mesh:
        return Mesh(tuple(axes.items()))

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        return dict(self.axes)

    @property
    def ranks(self) -> int:
        return math.prod(size for _, size in self.axes)

    def size(self, axes: Iterable[str]) -> int:
        """How many ranks differ in these axes alone."""
        return math.prod(self._known(axis) for axis in axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return found

    def rank(self, coordinates: Mapping[str, int]) -> int:
        number = 0
        for name, size in self.axes:
            number = number * size + coordinates[name]
        return number

    def index(self, rank: int, axes: Sequence[str]) -> int:
        """Where a rank stands among those that differ in these axes alone, the last axis running fastest."""
        here, number = self.coordinates(rank), 0
        for axis in axes:
            number = number * self.sizes[axis] + here[axis]
        return number

    def groups(self, axes: Sequence[str]) -> list[list[int]]:
        """The ranks in groups that differ in these axes alone, each in the order of `index`."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.ranks):
            here = self.coordinates(rank)
            found.setdefault(tuple(here[name] for name, _ in self.axes if name not in axes), []).append(rank)
        return [sorted(group, key=lambda rank: self.index(rank, axes)) for group in found.values()]

    def _known(self, axis: str) -> int:
        try:
            return self.sizes[axis]
        except KeyError:
            raise ShardingError(f"mesh {self} has no axis {axis}") from None

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes)

    @staticmethod
    def parse(text: str) -> Mesh:
        found = [re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d+)\s*", part) for part in text.split(",")]
        if not all(found):
            raise ParseError(f"not a mesh: {text}", hint="write dp=2, tp=4")
        return Mesh(tuple((match[1], int(match[2])) for match in found if match))


@dataclass(frozen=True)
class Split:
    """A dimension split over an axis: it is `blocks` equal blocks, and of each a rank has its part."""

    axis: str
    blocks: int = 1

    def __str__(self) -> str:
        return self.axis if self.blocks == 1 else f"{self.axis}/{self.blocks}"


Splits = tuple[Split, ...]


@dataclass(frozen=True)
class Sharding:
    """Of each dimension the splits, from the outermost; the axes over which summands are held; the open dimensions."""

    dims: tuple[Splits, ...]
    partial: tuple[tuple[str, str], ...] = ()
    """Pairs of an axis and how its summands are reduced."""
    open: frozenset[int] = frozenset()

    @staticmethod
    def replicated(rank: int) -> Sharding:
        return Sharding(((),) * rank)

    @staticmethod
    def on(rank: int, **dims: int) -> Sharding:
        """Axes and the dimension that each splits: `on(2, tp=0)`."""
        found: list[list[Split]] = [[] for _ in range(rank)]
        for axis, dim in dims.items():
            found[dim].append(Split(axis))
        return Sharding(tuple(map(tuple, found)))

    @cached_property
    def axes(self) -> frozenset[str]:
        """The axes that dimensions are split over."""
        return frozenset(split.axis for splits in self.dims for split in splits)

    @property
    def whole(self) -> Sharding:
        """The same with nothing left to reduce and nothing open."""
        return Sharding(self.dims)

    @property
    def is_replicated(self) -> bool:
        return not self.partial and not self.axes

    def dim_of(self, axis: str) -> int | None:
        return next((d for d, splits in enumerate(self.dims) if any(s.axis == axis for s in splits)), None)

    def with_dim(self, dim: int, splits: Splits) -> Sharding:
        return replace(self, dims=(*self.dims[:dim], splits, *self.dims[dim + 1 :]))

    def local(self, tensor: Tensor, mesh: Mesh) -> Tensor:
        """What a rank holds of a tensor."""
        if len(self.dims) != tensor.rank:
            raise ShardingError(f"sharding {self} is not for {tensor}, which has {tensor.rank} dimensions")
        shape = [
            local_size(size, splits, mesh, f"{tensor} as {self}")
            for size, splits in zip(tensor.shape, self.dims, strict=True)
        ]
        return Tensor(tensor.dtype, tuple(shape))

    def check(self, tensor: Tensor, mesh: Mesh, name: str) -> None:
        """Raise unless a tensor can be laid out like this."""
        used = [split.axis for splits in self.dims for split in splits] + [axis for axis, _ in self.partial]
        if len(set(used)) != len(used):
            raise ShardingError(f"{name}: {self} uses an axis twice")
        try:
            self.local(tensor, mesh)
        except ShardingError as error:
            raise ShardingError(f"{name}: {error.message}", hint=error.hint) from None

    def __str__(self) -> str:
        parts = [_dim_text(splits, d in self.open) for d, splits in enumerate(self.dims)]
        kinds: dict[str, list[str]] = {}
        for axis, kind in self.partial:
            kinds.setdefault(kind, []).append(axis)
        reduced = "".join(f" {kind} {{{', '.join(axes)}}}" for kind, axes in kinds.items())
        return f"[{', '.join(parts)}]{reduced}"

    @staticmethod
    def parse(text: str) -> Sharding:
        match = re.fullmatch(r"\s*\[(.*)\]((?:\s*\w+\s*\{[^}]*\})*)\s*", text)
        if match is None:
            raise ParseError(f"not a sharding: {text}", hint="write [{dp}, {}, {tp}] or [{}, {}] sum {tp}")
        inner = re.findall(r"\{([^}]*)\}", match[1])
        if re.sub(r"\{[^}]*\}", "", match[1]).replace(",", "").strip():
            raise ParseError(f"not a sharding: {text}", hint="each dimension is {}, {axis} or {axis, axis}")
        dims: list[Splits] = []
        opened: set[int] = set()
        for d, part in enumerate(inner):
            words = [word.strip() for word in part.split(",") if word.strip()]
            if "?" in words:
                opened.add(d)
            dims.append(tuple(_split(word, text) for word in words if word != "?"))
        partial: list[tuple[str, str]] = []
        for kind, axes in re.findall(r"(\w+)\s*\{([^}]*)\}", match[2]):
            if kind not in REDUCTIONS:
                raise ParseError(f"{kind} is no reduction in {text}", hint=f"there are {', '.join(REDUCTIONS)}")
            partial += [(axis.strip(), kind) for axis in axes.split(",")]
        return Sharding(tuple(dims), tuple(partial), frozenset(opened))


def _dim_text(splits: Splits, is_open: bool) -> str:
    return "{" + ", ".join([*map(str, splits), *(["?"] if is_open else [])]) + "}"


def _split(word: str, text: str) -> Split:
    match = re.fullmatch(r"([A-Za-z_]\w*)(?:/(\d+))?", word)
    if match is None:
        raise ParseError(f"{word!r} is no axis in {text}")
    return Split(match[1], int(match[2] or 1))


def local_size(size: Size, splits: Splits, mesh: Mesh, what: str) -> Size:
    """How much of a dimension a rank has."""
    found = _local_size(size, splits, mesh, what)
    if isinstance(found, ShardingError):
        raise found
    return found


def fits(size: Size, splits: Splits, mesh: Mesh) -> bool:
    """Whether a dimension can be split like this."""
    return not isinstance(_local_size(size, splits, mesh, ""), ShardingError)


def _local_size(size: Size, splits: Splits, mesh: Mesh, what: str) -> Size | ShardingError:
    """How much of a dimension a rank has, or what is wrong with splitting it."""
    for split in splits:
        if split.axis not in mesh.sizes:
            return ShardingError(f"mesh {mesh} has no axis {split.axis}")
        count = mesh.sizes[split.axis]
        if count == 1:
            continue
        if not isinstance(size, int):
            return ShardingError(f"{what}: a symbolic size is split over {split.axis}", hint="give its value")
        if size % (split.blocks * count):
            return ShardingError(
                f"{what}: {size} is not a multiple of {split.blocks * count}, and cannot be split over {split.axis}",
                hint=f"pad it to {-(-size // (split.blocks * count)) * split.blocks * count}, or leave it whole",
            )
        size = size // count
    return size


def axes_of(splits: Iterable[Split]) -> Iterator[str]:
    return (split.axis for split in splits)


@irdl_attr_definition
class MeshAttr(ParametrizedAttribute):
    """A mesh as an attribute: `#graph.mesh<"dp=2, tp=4">`."""

    name = "graph.mesh"
    text: StringAttr

    @property
    def mesh(self) -> Mesh:
        return Mesh.parse(self.text.data)


@irdl_attr_definition
class ShardingAttr(ParametrizedAttribute):
    """A sharding as an attribute: `#graph.sharding<"[{dp}, {tp}]">`."""

    name = "graph.sharding"
    text: StringAttr

    @property
    def sharding(self) -> Sharding:
        return Sharding.parse(self.text.data)
