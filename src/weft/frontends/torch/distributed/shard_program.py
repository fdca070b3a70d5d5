"""A captured model and its hints as the program of a rank: annotate, differentiate, propagate, partition, schedule."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import nn
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr

from weft.frontends.torch.distributed.capture_model import CapturedModel
from weft.frontends.torch.distributed.hints import Plan
from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import is_float, tensor_of
from weft.ops.graph import FuncOp, module_of
from weft.passes.differentiate import value_and_vjp_function
from weft.passes.sharding.annotations import ARGS, RESULTS, set_late_axes, set_mesh, set_shardings
from weft.passes.split_joint import SplitFunctions, split_joint
from weft.pipelines import arrange_collectives, dispatch_passes, partition_passes


@dataclass(frozen=True)
class ShardedProgram:
    """The program of a rank. Where gradients are wanted, it is also split into a forward and a backward."""

    annotated: FuncOp
    """The whole program with the sharding of every value."""
    function: FuncOp
    arguments: tuple[Sharding, ...]
    wanted: tuple[int, ...] = ()
    """The arguments whose gradients it gives, after the results."""
    split: SplitFunctions | None = None


def shard_program(
    captured: CapturedModel,
    mesh: Mesh,
    plan: Plan,
    parameters: Mapping[str, Sharding],
    inputs: Mapping[str, Sharding],
    trains: bool,
    model: nn.Module,
) -> ShardedProgram:
    """Partition a captured model; buffers and constants are whole on every rank."""
    function = captured.function
    primal = len(function.block.args)
    names = [*captured.state, *inputs, *(f"constant{n}" for n in range(len(captured.constants)))]
    function.arg_names = ArrayAttr(StringAttr(name) for name in names)
    by_name = dict(parameters) | dict(inputs)
    tied = {id(attrgetter(name)(model)): sharding for name, sharding in parameters.items()}
    arguments: list[Sharding] = []
    for name, value in zip(names, function.block.args, strict=True):
        found = by_name.get(name)
        if found is None and name in captured.state:
            found = tied.get(id(attrgetter(name)(model)))  # under the other of its names
        arguments.append(found or Sharding.replicated(tensor_of(value.type).rank))
    results = [Sharding.replicated(tensor_of(value.type).rank) for value in function.returned.operands]
    count = len(results)
    late = [[plan.fsdp] if plan.fsdp and name in captured.state else [] for name in names]
    wanted: tuple[int, ...] = ()
    set_mesh(function, mesh)
    set_shardings(function, ARGS, arguments)
    before = module_of(function)
    for each in dispatch_passes():
        each.apply(Context(), before)
    if trains:
        wanted = tuple(
            place
            for place, name in enumerate(captured.state)
            if isinstance(parameter := attrgetter(name)(model), torch.Tensor) and parameter.requires_grad
        )
        seeds = [
            sharding for value, sharding in zip(function.returned.operands, results, strict=True) if is_float(value)
        ]
        function = value_and_vjp_function(function, wanted)
        results += [arguments[place] for place in wanted]
        arguments, late = [*arguments, *seeds], [*late, *([] for _ in seeds)]
    set_shardings(function, ARGS, arguments)
    set_shardings(function, RESULTS, results)
    set_late_axes(function, late)
    module = module_of(function)
    annotated: FuncOp | None = None
    for each in partition_passes():
        if each.name == "partition":
            annotated = _only(module).clone()
        each.apply(Context(), module)
    made = _only(module)
    assert annotated is not None, "in the list"
    split = None
    if trains:  # before collectives are combined: the forward waits for none of the backward's
        split = split_joint(made, count, len(made.block.args) - primal)
        for part in (split.forward, split.backward):
            arrange_collectives(part)
    arrange_collectives(made)
    return ShardedProgram(annotated, made, tuple(arguments), wanted, split)


def _only(module: ModuleOp) -> FuncOp:
    return next(op for op in module.body.block.ops if isinstance(op, FuncOp))
