"""A torch function for arguments of known types: its graph, and how trees of tensors map to arguments and results."""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
import torch.utils._pytree as pytree
from xdsl.ir import SSAValue

from weft.frontends.torch.func.quick_trees import Build, builder_of
from weft.frontends.torch.importer.checks import Check
from weft.ops.graph import FuncOp
from weft.passes.differentiate import return_values


@dataclass(frozen=True)
class Slot:
    """Stands in a tree of results for a tensor: the next result of the function.

    One of complex numbers has a last dimension of two in graphs, in which their parts alternate.
    """

    is_complex: bool = False

    def __repr__(self) -> str:
        return "complex tensor" if self.is_complex else "tensor"

    def restored(self, result: torch.Tensor) -> torch.Tensor:
        """The tensor that a call gives for a result of the graph."""
        return torch.view_as_complex(result) if self.is_complex else result


SLOT, COMPLEX_SLOT = Slot(), Slot(is_complex=True)


def slot_of(tensor: torch.Tensor) -> Slot:
    return COMPLEX_SLOT if tensor.is_complex() else SLOT


@dataclass(frozen=True)
class Program:
    """A function of the tensors among its arguments' leaves, then of what it holds: constants of its own.

    Its results are the tensors among the leaves of what it returns, in order, and, where it has `checks`, a number that
    says which of them has failed.
    """

    function: FuncOp
    tensors: int
    """How many of the function's arguments a call gives."""
    held: tuple[torch.Tensor, ...]
    out_spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """The results' leaves: a slot for tensors."""
    device: torch.device
    checks: tuple[Check, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int | None = None
    """Which of the constants is a seed, to be drawn anew for every call; None where no random number is."""
    reads_numbers: bool = False
    """Whether Python read numbers of tensors that the function closes over: they are constants."""

    @property
    def results(self) -> list[SSAValue]:
        """The tensors that it returns, without the verdict on its data."""
        found = list(self.function.returned.operands)
        return found[:-1] if self.checks else found

    @property
    def verdict(self) -> list[SSAValue]:
        return list(self.function.returned.operands)[-1:] if self.checks else []

    def restored(self, results: Sequence[Any]) -> Any:
        """The tree that the function returns, of its results."""
        if self._build is not None:
            return self._build(iter(results))
        given = iter(results)
        leaves = [leaf.restored(next(given)) if isinstance(leaf, Slot) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.out_spec)

    @cached_property
    def _build(self) -> Build | None:
        """What makes the tree, where it is of the usual kinds and its leaves are tensors of real numbers."""
        return builder_of(self.tree(), SLOT)

    def tree(self) -> Any:
        """The tree of results, with slots for tensors."""
        return pytree.tree_unflatten(list(self.leaves), self.out_spec)

    def returning(self, function: FuncOp, values: Sequence[SSAValue], tree: Any, tensors: int | None = None) -> Program:
        """Another function of the same constants and checks that returns these values, as a tree."""
        return_values(function, values)
        leaves, spec = pytree.tree_flatten(tree)
        given = self.tensors if tensors is None else tensors
        return replace(self, function=function, tensors=given, out_spec=spec, leaves=tuple(leaves))
