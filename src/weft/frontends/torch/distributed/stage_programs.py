"""The programs that a rank of a pipeline runs: its stages' forwards and backwards, sharded over the other axes."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from weft.ir.sharding import Mesh, Sharding
from weft.ir.types import is_float, tensor_of
from weft.ops.graph import FuncOp, module_of
from weft.passes.differentiate import value_and_vjp_function
from weft.passes.sharding.annotations import ARGS, RESULTS, set_late_axes, set_mesh, set_shardings, shardings_at
from weft.passes.sharding.stage_functions import Message, Stage, cut_into_stages, with_transfers
from weft.passes.split_joint import split_joint
from weft.pipelines import arrange_collectives, dispatch_passes, partition_passes


@dataclass(frozen=True)
class StageProgram:
    """What a rank runs for one stage. The forward takes the program's `arguments`, and gives its results, on the last
    stage, and then what the backward needs: that takes the arguments `again`, what was kept, and gradients of results
    of floats; it gives the gradients of the program's arguments at `wanted`."""

    forward: FuncOp
    arguments: tuple[int, ...]
    results: int
    backward: FuncOp | None = None
    again: tuple[int, ...] = ()
    wanted: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """A whole program of which ranks run stages: how its arguments lie, which of them are late and which are wanted."""

    function: FuncOp
    mesh: Mesh
    arguments: Sequence[Sharding]
    late: Sequence[Sequence[str]]
    placed: Mapping[int, Sequence[int]]
    """The stages of each parameter."""
    wanted: frozenset[int] = frozenset()
    """The parameters of which gradients are wanted; none without training."""


def stage_programs(program: Program, axis: str, ranks: int, place: int, chunks: int) -> dict[int, StageProgram]:
    """The programs of the rank at `place` on the pipeline's axis, by stage: every `ranks`-th of all."""
    stages = cut_into_stages(_prepared(program), program.placed, ranks * chunks)
    lies = _message_shardings(program, stages)
    return {
        number: _StageBuilder(program, stages, number, lies, axis, ranks).build()
        for number in range(place, ranks * chunks, ranks)
    }


def _prepared(program: Program) -> FuncOp:
    function = program.function.clone()
    set_mesh(function, program.mesh)
    set_shardings(function, ARGS, program.arguments)
    module = module_of(function)
    for each in dispatch_passes():
        each.apply(Context(), module)
    return only_function(module)


def only_function(module: ModuleOp) -> FuncOp:
    return next(op for op in module.body.block.ops if isinstance(op, FuncOp))


def _message_shardings(program: Program, stages: Sequence[Stage]) -> dict[int, Sharding]:
    """How messages lie: each stage is propagated with what it receives as the stage before gives it."""
    found: dict[int, Sharding] = {}
    for stage in stages:
        function = stage.function.clone()
        _annotate(function, program, stage, [found[n] for n in stage.received], [None] * _results(stage))
        module = module_of(function)
        for each in partition_passes():
            if each.name == "propagate_shardings":
                each.apply(Context(), module)
        given = shardings_at(function, RESULTS, _results(stage))
        for number, sharding in zip(stage.sent, given, strict=False):
            if number not in found:
                found[number] = Sharding(sharding.dims) if sharding is not None else Sharding(())
    return found


def _results(stage: Stage) -> int:
    return len(stage.sent) + stage.results


def _annotate(
    function: FuncOp,
    program: Program,
    stage: Stage,
    received: Sequence[Sharding],
    results: Sequence[Sharding | None],
    seeds: Sequence[Sharding] = (),
) -> None:
    set_mesh(function, program.mesh)
    set_shardings(function, ARGS, [*(program.arguments[n] for n in stage.arguments), *received, *seeds])
    set_shardings(function, RESULTS, results)
    late = [program.late[n] for n in stage.arguments]
    set_late_axes(function, [*late, *([()] * (len(received) + len(seeds)))])


@dataclass(frozen=True)
class _StageBuilder:
    program: Program
    stages: Sequence[Stage]
    number: int
    lies: Mapping[int, Sharding]
    axis: str
    ranks: int

    def build(self) -> StageProgram:
        stage, program = self.stages[self.number], self.program
        function = stage.function.clone()
        first = len(stage.arguments)
        received = [self.lies[n] for n in stage.received]
        values = list(function.returned.operands)
        results = [
            *(self.lies[n] for n in stage.sent),
            *(Sharding.replicated(tensor_of(value.type).rank) for value in values[len(stage.sent) :]),
        ]
        floats = [is_float(value) for value in values]
        wanted = [place for place, n in enumerate(stage.arguments) if n in program.wanted]
        back = [place for place, value in enumerate(function.block.args) if place >= first and is_float(value)]
        trains = bool(program.wanted)
        if trains:
            function = value_and_vjp_function(function, [*wanted, *back])
        seeds = [lies for lies, real in zip(results, floats, strict=True) if real] if trains else []
        every = [*(program.arguments[n] for n in stage.arguments), *received]
        gradients = [every[place] for place in (*wanted, *back)] if trains else []
        _annotate(function, program, stage, received, [*results, *gradients], seeds)
        module = module_of(function)
        for each in partition_passes():
            each.apply(Context(), module)
        made = only_function(module)
        sent = {place: self._message(n, 1) for place, n in enumerate(stage.sent)}
        arrives = {first + place: self._message(n, -1) for place, n in enumerate(stage.received)}
        if not trains:
            arrange_collectives(made)
            return StageProgram(with_transfers(made, arrives, sent), stage.arguments, stage.results)
        split = split_joint(made, len(values), len(seeds))
        arrange_collectives(split.forward)
        arrange_collectives(split.backward)
        kept = [place for place in split.arguments if place >= first]
        forward = with_transfers(split.forward, arrives, sent, kept)
        again = tuple(stage.arguments[place] for place in split.arguments if place < first)
        backward = self._backward(split.backward, stage, split.arguments, split.kept, floats, wanted, back)
        numbers = tuple(stage.arguments[place] for place in wanted)
        return StageProgram(forward, stage.arguments, stage.results, backward, again, numbers)

    def _backward(
        self,
        function: FuncOp,
        stage: Stage,
        arguments: Sequence[int],
        kept: int,
        floats: Sequence[bool],
        wanted: Sequence[int],
        back: Sequence[int],
    ) -> FuncOp:
        """The backward with gradients of what was sent coming from the next stage, those of what came going back."""
        first = len(stage.arguments)
        seeds = [place for place, real in enumerate(floats) if real]
        behind = len(arguments) + kept
        received = {
            behind + number: self._message(stage.sent[place], 1, gradient=True)
            for number, place in enumerate(seeds)
            if place < len(stage.sent)
        }
        sent = {
            len(wanted) + number: self._message(stage.received[place - first], -1, gradient=True)
            for number, place in enumerate(back)
        }
        return with_transfers(_kept_first(function, arguments, first, kept), received, sent)

    def _message(self, number: int, towards: int, *, gradient: bool = False) -> Message:
        giver = self.number if towards > 0 else self.number - 1
        channel = 2 * (number * len(self.stages) + giver) + gradient
        return Message(self.axis, (self.number + towards) % self.ranks, channel)


def _kept_first(function: FuncOp, arguments: Sequence[int], first: int, kept: int) -> FuncOp:
    """A backward whose received arguments stand behind what was kept, as the forward gives them."""
    own = [place for place, number in enumerate(arguments) if number < first]
    came = [place for place, number in enumerate(arguments) if number >= first]
    order = [*own, *range(len(arguments), len(arguments) + kept), *came]
    if order == list(range(len(order))):
        return function
    names = [name.data for name in function.arg_names or ()]
    rest = list(range(len(order), len(names)))
    made = FuncOp.make(
        function.sym_name.data,
        {names[place]: tensor_of(function.block.args[place].type) for place in (*order, *rest)},
    )
    made.attributes |= {key: value for key, value in function.attributes.items() if key == "sharding.mesh"}
    given = (function.block.args[place] for place in (*order, *rest))
    mapped: dict[SSAValue, SSAValue] = dict(zip(given, made.block.args, strict=True))
    for op in function.block.ops:
        copy = op.clone(mapped)
        made.block.add_op(copy)
        mapped.update(zip(op.results, copy.results, strict=True))
    return made
