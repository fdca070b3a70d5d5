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


class Slot:
    """Stands in a tree of results for a tensor: the next result of the function."""

    def __repr__(self) -> str:
        return "tensor"


SLOT = Slot()


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
    """The results' leaves: `SLOT` for tensors."""
    device: torch.device
    checks: tuple[Check, ...] = ()
    objects: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seed: int | None = None
    """Which of the constants is a seed, to be drawn anew for every call; None where no random number is."""

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
        return pytree.tree_unflatten([next(given) if leaf is SLOT else leaf for leaf in self.leaves], self.out_spec)

    @cached_property
    def _build(self) -> Build | None:
        """What makes the tree, where it is of the usual kinds and its leaves are tensors."""
        return builder_of(self.tree(), SLOT)

    def tree(self) -> Any:
        """The tree of results, with `SLOT` for tensors."""
        return pytree.tree_unflatten(list(self.leaves), self.out_spec)

    def returning(self, function: FuncOp, values: Sequence[SSAValue], tree: Any, tensors: int | None = None) -> Program:
        """Another function of the same constants and checks that returns these values, as a tree."""
        return_values(function, values)
        leaves, spec = pytree.tree_flatten(tree)
        given = self.tensors if tensors is None else tensors
        return replace(self, function=function, tensors=given, out_spec=spec, leaves=tuple(leaves))
