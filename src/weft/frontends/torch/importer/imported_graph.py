"""What an import gives: the function, and how the arguments and results of a call map to its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.importer.checks import Check
from weft.frontends.torch.importer.sizes import SymbolReader
from weft.frontends.torch.locations import location_of, user_line
from weft.frontends.torch.report import Fallback
from weft.ir.expr import Size, symbols_of
from weft.ops.graph import FuncOp


@dataclass(frozen=True)
class Returned:
    """An output that is a result of the function; a complex one has its parts in the result's last dimension."""

    result: int
    is_complex: bool = False


@dataclass(frozen=True)
class Passed:
    """An output that is an argument of the call, the very same."""

    argument: int


@dataclass(frozen=True)
class Viewed:
    """An output that lies in the memory of an argument, or of a result in which other outputs lie too.

    `offset` counts elements from the first one of that; they are read as `dtype`, as torch names it, and conjugated or
    negated then, however the argument itself is read.
    """

    base: Returned | Passed
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size
    dtype: str
    is_conjugated: bool = False
    is_negated: bool = False

    @property
    def symbols(self) -> set[str]:
        return {name for size in (*self.shape, *self.strides, self.offset) for name in symbols_of(size)}


@dataclass(frozen=True)
class Number:
    """An output that is no tensor: None, a number, an expression of sizes, or how to compute a float or a condition."""

    value: Any


Output = Returned | Viewed | Passed | Number


@dataclass(frozen=True)
class Calling:
    """How a call maps to the function.

    `arguments` are the positions of the function's arguments in the call; the graph's own constants follow them.
    `mutated` pairs the position of an argument with the result that is written back to it.
    """

    arguments: tuple[int, ...]
    constants: tuple[str, ...]
    symbols: SymbolReader
    outputs: tuple[Output, ...]
    mutated: tuple[tuple[int, int], ...]
    fallbacks: tuple[Fallback, ...]
    checks: tuple[Check, ...] = ()
    """What the number that is the last result, after all outputs, stands for."""
    deferred: bool = False
    """Whether nobody waits for that number: later calls say what it was."""
    resolved_arguments: tuple[int, ...] = ()
    """The arguments (and constants) that are complex, and passed as real tensors with the parts in a last dimension, or
    negated when they are read."""


@dataclass(frozen=True)
class ImportedGraph:
    """A captured graph as a function. `objects` are what opaque calls need that has no text: it cannot be cached.

    Nor can one that is `conditional`: its import has asked for more of the sizes than tracing had, of which a program
    that comes from the cache would not tell.
    """

    function: FuncOp
    calling: Calling
    constants: tuple[torch.Tensor, ...]
    objects: Mapping[str, Any]
    conditional: bool = False

    @property
    def cacheable(self) -> bool:
        return not self.objects and not self.conditional

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        return self.calling.fallbacks


def with_own_lines(calling: Calling, module: fx.GraphModule) -> Calling:
    """The same with lines of the program that a graph was captured from: another one may have been compiled first."""
    lines = {node.name: user_line(location_of(node)) for node in module.graph.nodes}
    return replace(
        calling,
        checks=tuple(replace(each, line=lines.get(each.node, each.line)) for each in calling.checks),
        fallbacks=tuple(replace(each, line=lines.get(each.node, each.line)) for each in calling.fallbacks),
    )
