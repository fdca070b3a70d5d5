"""Checkpointing of a graph function: its gradients compute its values again, instead of keeping them.

The function computes what it did; the ops whose results are not kept are marked, and the gradient rules read copies of
them (`passes/recompute.py`). What to keep is told by names: of ops (`dot`), of values (`checkpoint_name`), `dots` for
all products of matrices, convolutions and attention, and `everything`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr, UnitAttr
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass

from weft.diagnostics import nearest
from weft.errors import WeftError
from weft.ops.base import REGISTRY, GraphOp
from weft.ops.graph import FuncOp, ReturnOp
from weft.passes.differentiate import transform_functions
from weft.passes.recompute import OFFLOADED, REGION, SAVED, region_of

NAME = "weft.name"
"""What the user calls the result of an op."""
SAVE = "weft.save"
"""What is kept of an op's region, as front ends note it: words apart by spaces,"""
OFFLOAD = "weft.offload"
"""and what is kept in the host's memory."""
DOTS, EVERYTHING = "dots", "everything"


@dataclass(frozen=True)
class Checkpoint(ModulePass):
    """%a = graph.exp %x   →   %a = graph.exp %x {weft.checkpoint = "f.0"}   (and weft.saved, where it is in `save`)"""

    name: ClassVar[str] = "checkpoint"
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        transform_functions(op, lambda function: checkpoint_function(function, self.save, self.offload))


def checkpoint_function(function: FuncOp, save: Sequence[str] = (), offload: Sequence[str] = ()) -> FuncOp:
    """The function, whose gradients keep what is in `save`, and compute the rest of its values again.

    What is in `offload` they keep too, in the host's memory.

    graph.func @f(%x) {                              graph.func @f_checkpoint(%x) {
      %a = graph.sin %x                                %a = graph.sin %x {weft.checkpoint = "f.0"}
      %b = graph.exp %a              →                 %b = graph.exp %a {weft.checkpoint = "f.0"}
      graph.return %b                                  graph.return %b
    }                                                }
    """
    made = function.clone()
    ops = [op for op in made.block.ops if not isinstance(op, ReturnOp)]
    check_names(ops, (*save, *offload))
    region = new_region(function)
    for op in ops:
        mark_op(op, region, save, offload)
    made.sym_name = StringAttr(f"{function.sym_name.data}_checkpoint")
    return made


def new_region(function: FuncOp) -> str:
    """A name for a region of a function."""
    known = {region_of(op) for op in function.walk()}
    base = function.sym_name.data
    return next(name for n in range(len(known) + 1) if (name := f"{base}.{n}") not in known)


def mark_op(op: Operation, region: str, save: Sequence[str], offload: Sequence[str] = ()) -> None:
    """Put an op into a region, of which its results may be kept."""
    op.attributes.pop(SAVED, None)
    op.attributes.pop(OFFLOADED, None)
    op.attributes[REGION] = StringAttr(region)
    if is_saved(op, offload):
        op.attributes |= {SAVED: UnitAttr(), OFFLOADED: UnitAttr()}
    elif is_saved(op, save):
        op.attributes[SAVED] = UnitAttr()


def is_saved(op: Operation, save: Sequence[str]) -> bool:
    """Whether results are kept, by what their op is or is called."""
    said = op.attributes.get(NAME)
    words = {EVERYTHING, op.name.removeprefix("graph.")}
    if isinstance(said, StringAttr):
        words.add(said.data)
    if isinstance(op, GraphOp) and op.AUTOCAST == "narrow":
        words.add(DOTS)
    return not words.isdisjoint(save)


def check_names(ops: Sequence[Operation], save: Sequence[str]) -> None:
    """Raise where what is to be kept is neither an op nor a name of a value."""
    said = {mark.data for op in ops if isinstance(mark := op.attributes.get(NAME), StringAttr)}
    known = {DOTS, EVERYTHING, "opaque", "launch", "if", "loop", *said, *REGISTRY.specs}
    for word in save:
        if word not in known:
            raise WeftError(
                f"checkpoint cannot keep {word}: no op and no value is called so{nearest(word, list(known))}",
                hint=f"keep ops by name, `{DOTS}`, or what `checkpoint_name` names",
            )


def read_regions(block: Block) -> None:
    """Read what a front end has noted of regions: their ops carry the region's name, and what is kept of it."""
    noted = [op for op in block.ops if SAVE in op.attributes]
    for op in noted:
        words, region = op.attributes.pop(SAVE), region_of(op)
        assert isinstance(words, StringAttr) and region is not None, "noted together"
        save, moved = words.data.split(), op.attributes.pop(OFFLOAD, StringAttr(""))
        assert isinstance(moved, StringAttr), "noted together"
        offload = moved.data.split()
        check_names(noted, (*save, *offload))
        mark_op(op, region, save, offload)
