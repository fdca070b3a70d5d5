"""A grouped function → a plan: buffers, and the steps that fill them in order.

The plan is all that the runtime needs beside the machine code, and it is plain data: it is what the cache keeps. Equal
groups share one kernel (`shared_kernels`). A group that its lowering refuses is cut into its ops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import LocationAttr, StringAttr
from xdsl.ir import Block, BlockArgument, Region, SSAValue

from weft.errors import LoweringError
from weft.ir.expr import product, symbols_of
from weft.ir.types import Tensor, tensor_of, tensor_type
from weft.lower.constants import Constant, PanelForm, packing_of, preparing
from weft.lower.lowered import Lowered, slice_written_by
from weft.lower.machine import CPU, Machine
from weft.lower.pack_before_loops import PackedBefore, wants_packing
from weft.lower.packing import PackedLayout
from weft.lower.plan_calls import plan_accumulation, plan_call, plan_dot, plan_launch
from weft.lower.plan_control import plan_if, plan_loop
from weft.lower.preparation import preparation_of
from weft.lower.refusal import Refusal, accepted
from weft.lower.shared_kernels import CUT, SharedKernels, lines_of
from weft.lower.steps import (
    Buffer,
    KernelStep,
    Place,
    Plan,
    Step,
    buffers_read,
)
from weft.ops.base import GraphOp, View
from weft.ops.control import IfOp, LoopOp
from weft.ops.graph import FuncOp, GraphBuilder, GroupOp, LaunchOp, OpaqueOp, ReturnOp, YieldOp
from weft.ops.layouts import StridedLayout, contiguous, same_places, slice_layout, view_layout
from weft.passes.check_first import verdict_of
from weft.passes.grouping.build_groups import (
    Target,
    is_free,
    result_targets,
    split_group,
    strides_of,
)
from weft.passes.simplify.constant_values import constant_arguments
from weft.passes.tensor_slices import part_written, views_from
from weft.passes.update_in_place import donated_of, in_place_of, layout_over, layout_through
from weft.tile import dialect as tile

log = logging.getLogger("weft")


@dataclass
class Planned:
    """A plan, the kernels that its steps name, and the function that prepares its constants."""

    plan: Plan
    kernels: dict[str, tile.KernelOp]
    schedules: dict[str, str]
    prepare: FuncOp | None = None
    sources: dict[str, set[LocationAttr]] = field(default_factory=dict[str, set[LocationAttr]])
    """Where in the user's program the ops of each kernel come from."""


def build_plan(
    function: FuncOp,
    panel_form: PanelForm | None = None,
    machine: Machine = CPU,
    made: Callable[[tile.KernelOp], None] | None = None,
) -> Planned:
    """Lower every group of a function and lay out its memory. Without `panel_form` no weights are packed.

    `made` gets each kernel as soon as it is lowered, which is then as it will be in the plan.
    """
    return Planner(function, panel_form, SharedKernels(machine, made)).run()


@dataclass
class Planner:
    """Plans a function, or, in the memory of the function around it, a region of it."""

    function: FuncOp
    panel_form: PanelForm | None
    kernels: SharedKernels
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    steps: list[Step] = field(default_factory=list[Step])
    places: dict[SSAValue, Place] = field(default_factory=dict[SSAValue, Place])
    symbols: set[str] = field(default_factory=set[str])
    strided: dict[SSAValue, StridedLayout] = field(default_factory=dict[SSAValue, StridedLayout])
    replacing: set[SSAValue] = field(default_factory=set[SSAValue])
    overwritten: set[int] = field(default_factory=set[int])
    """The buffers that a result was made in."""
    constants: dict[int, Constant] = field(default_factory=dict[int, Constant])
    packed: dict[Constant, int] = field(default_factory=dict[Constant, int])
    given: dict[SSAValue, int] | None = None
    """Of a region: the results that have a buffer already."""
    before: PackedBefore | None = None
    """Of what a loop runs: the weights that are packed before it."""

    def run(self) -> Planned:
        function = self.function
        inputs = self._inputs()
        returned = function.returned
        decided_after = self._plan_ops()
        results = tuple(self.places[value].buffer for value in returned.operands)
        self._collect_symbols()
        prepare = preparing(function)
        constants = constant_arguments(function)
        given = len(prepare.block.args) if prepare is not None else len(constants)
        plan = Plan(
            function.sym_name.data,
            tuple(self.buffers),
            tuple(self.steps),
            inputs,
            results,
            tuple(sorted(self.symbols)),
            tuple(value.index for value in constants[:given]),
            self._used_constants(results),
            "" if prepare is None else str(prepare),
            tuple(position for position, value in enumerate(returned.operands) if value in self.replacing),
            decided_after if self.replacing else 0,
            None if prepare is None else preparation_of(prepare),
            tuple(n for n in donated_of(function) if self.places[function.block.args[n]].buffer in self.overwritten),
        )
        made = self.kernels
        return Planned(plan, made.kernels, made.schedules, prepare, made.sources)

    def region(
        self,
        function: FuncOp,
        arguments: Sequence[Place],
        given: Sequence[int | None],
        captured: Sequence[Place] | None = None,
    ) -> Planner:
        """Plan what an op of control flow runs, on places of this function's; results go to the buffers given for them.
        Of a loop is told what its turns have `captured`.

        Buffers, kernels and constants are this function's own; the steps are the region's.
        """
        inner = replace(
            self,
            function=function,
            steps=[],
            places=dict(zip(function.block.args, arguments, strict=True)),
            strided={},
            replacing=set(),
            given={v: n for v, n in zip(function.returned.operands, given, strict=True) if n is not None},
        )
        if captured is not None:
            inner.before = PackedBefore(self, frozenset(place.buffer for place in captured))
        inner._plan_ops()
        inner._collect_symbols()
        return inner

    def _plan_ops(self) -> int:
        """Plan the ops in order; gives how many steps it takes to know whether the data is right."""
        function = self.function
        outputs = result_targets(function)
        verdict, decided_after = verdict_of(function), 0
        for op in list(function.block.ops):
            match op:
                case ReturnOp():
                    continue
                case GroupOp() if op.claim is not None:
                    plan_accumulation(self, op, outputs)
                case GroupOp():
                    self._group(op, outputs)
                case OpaqueOp():
                    plan_call(self, op)
                case LaunchOp():
                    plan_launch(self, op, outputs)
                case IfOp():
                    plan_if(self, op, outputs)
                case LoopOp():
                    plan_loop(self, op, outputs)
                case GraphOp() if op.attributes.get("weft.claim") == StringAttr("blas"):
                    plan_dot(self, op, outputs)
                case View():
                    self._view(op)
                case _:
                    raise LoweringError(f"{op.name} is neither in a group nor claimed")
            if verdict is not None and op is verdict.owner:
                decided_after = len(self.steps)
        return decided_after

    def _used_constants(self, results: Sequence[int]) -> tuple[Constant, ...]:
        """Weights that are only read packed, or only to prepare others, need not be there."""
        used = {*results, *buffers_read(self.steps)}
        return tuple(constant for number, constant in self.constants.items() if number in used)

    def _collect_symbols(self) -> None:
        """All symbols that sizes of memory depend on, beside those that kernels take."""
        for held in (*self.buffers, *self.places.values()):
            for size in (*held.tensor.shape, *held.layout.strides, held.layout.offset):
                self.symbols |= symbols_of(size)

    def _inputs(self) -> tuple[int, ...]:
        arguments = self.function.block.args
        strides = strides_of(self.function, "arg_strides", len(arguments))
        sources = {value: number for number, value in enumerate(constant_arguments(self.function))}
        inputs: list[int] = []
        for value, stride in zip(arguments, strides, strict=True):
            role = "constant" if value in sources else "input"
            number = self.new(value, role, StridedLayout(stride) if stride else contiguous(tensor_of(value.type)))
            if role == "input":
                inputs.append(number)
            else:
                self.constants[number] = Constant(number, sources[value])
        return tuple(inputs)

    def new(self, value: SSAValue, role: str, layout: StridedLayout) -> int:
        tensor = tensor_of(value.type)
        self.buffers.append(Buffer(role, tensor, layout))
        self.places[value] = Place(len(self.buffers) - 1, tensor, layout)
        return len(self.buffers) - 1

    def result(self, value: SSAValue, outputs: dict[SSAValue, Target]) -> int:
        """The buffer that a value is made in."""
        target = outputs.get(value)
        if target is None:
            return self.new(value, "temporary", self.strided.get(value, contiguous(tensor_of(value.type))))
        if self.given is None:
            number = self.new(target.result, "output", target.result_layout)
        elif target.result in self.given:
            number = self.given[target.result]
        else:
            number = self.new(target.result, "temporary", target.result_layout)
        self.places[value] = Place(number, tensor_of(value.type), target.layout)
        return number

    def written_over(self, value: SSAValue, old: Place, outputs: dict[SSAValue, Target]) -> int:
        self.places[value] = old
        self.overwritten.add(old.buffer)
        if value in outputs:
            self.replacing.add(value)
        return old.buffer

    def _view(self, op: GraphOp) -> None:
        place = self.places[op.operands[0]]
        layout = view_layout(op, place.layout)
        if layout is None:
            raise LoweringError(f"{op.name} of strided memory needs a copy")
        self.places[op.results[0]] = Place(place.buffer, tensor_of(op.results[0].type), layout)

    def _group(self, op: GroupOp, outputs: dict[SSAValue, Target]) -> None:
        inputs = [self.places[operand] for operand in op.operands]
        in_place = {result: _over(op, inputs, result, operand) for result, operand in in_place_of(op).items()}
        if _is_there(op, inputs):
            self.written_over(op.results[0], in_place[0], outputs)
            return
        buffers, layouts = self._packed(op, inputs)
        for result, strides in zip(op.results, strides_of(op, "result_strides", len(op.results)), strict=True):
            if strides:
                self.strided[result] = StridedLayout(strides)
        targets = [
            in_place[r.index].layout
            if r.index in in_place
            else outputs[r].layout
            if r in outputs
            else self.strided.get(r, contiguous(tensor_of(r.type)))
            for r in op.results
        ]
        # Torch's strides of a tensor without elements may be 0, which elsewhere says that many places are one.
        targets = [
            contiguous(tensor) if 0 in (tensor := tensor_of(r.type)).shape else target
            for r, target in zip(op.results, targets, strict=True)
        ]
        lowered, label = self.kernels.lower(op, layouts, targets)
        if isinstance(lowered, Refusal):
            self._cut(op, outputs, in_place, lowered)
            return
        results = [
            self.written_over(result, in_place[result.index], outputs)
            if result.index in in_place
            else self.result(result, outputs)
            for result in op.results
        ]
        self._run(lowered, label, buffers, results)

    def _cut(
        self, op: GroupOp, outputs: dict[SSAValue, Target], in_place: Mapping[int, Place], refusal: Refusal
    ) -> None:
        """Plan a group's ops one by one, which are slow, but right: what grouped them was wrong about the whole."""
        if sum(not is_free(inner) and not isinstance(inner, YieldOp) for inner in op.block.ops) <= 1:
            raise LoweringError(refusal.reason, sources=lines_of(op))
        log.warning("a kernel is cut into its ops: %s", refusal.reason)
        wanted = [(outputs.get(result), self.strided.get(result)) for result in op.results]
        replaced, parts = split_group(op)
        for number, (new, (target, layout)) in enumerate(zip(replaced, wanted, strict=True)):
            if target is not None and number not in in_place:
                outputs[new] = target
            if layout is not None:
                self.strided[new] = layout
        for part in parts:
            part.attributes[CUT] = StringAttr(refusal.reason)
            self._group(part, outputs)
        for number, old in in_place.items():  # others expect to find it where it was to be made
            new, (target, _) = replaced[number], wanted[number]
            self.copy(self.places[new], old)
            if target is not None:
                outputs[new] = target
            self.written_over(new, old, outputs)

    def _run(self, lowered: Lowered, label: str, buffers: Sequence[int], results: Sequence[int]) -> None:
        """Append the steps of a group's kernels."""
        scratch = [self._scratch(tensor) for tensor in lowered.scratch]
        roles = {"input": buffers, "output": results, "scratch": scratch}
        for call in lowered.calls:
            kernel = call.kernel
            self.symbols.update(kernel.symbols)
            self.steps.append(
                KernelStep(
                    kernel.op.sym_name.data,
                    tuple(roles[argument.role][argument.number] for argument in call.arguments),
                    kernel.symbols,
                    product(kernel.op.grid.data),
                    self.kernels.known_work(kernel.op),
                    kernel.op.serial is not None,
                    label,
                )
            )

    def _packed(self, op: GroupOp, inputs: Sequence[Place]) -> tuple[list[int], list[StridedLayout]]:
        """The buffers that a group reads and their layouts; weights of a matmul that stay the same are read packed."""
        buffers, layouts = [place.buffer for place in inputs], [place.layout for place in inputs]
        if self.panel_form is None:
            return buffers, layouts
        captured = wants_packing(op, inputs, self.before)
        packing = packing_of(op, captured, self.panel_form, layouts) if any(captured) else None
        if packing is not None and self.before is not None:
            place = self.before.place_of(buffers[packing.operand], packing)
            buffers[packing.operand], layouts[packing.operand] = place.buffer, place.layout
            return buffers, layouts
        if not self.constants:
            return buffers, layouts
        fixed = [
            place.buffer in self.constants and place.layout == self.buffers[place.buffer].layout for place in inputs
        ]
        packing = packing_of(op, fixed, self.panel_form)
        if packing is not None:
            panels, operand = packing.panels, packing.operand
            key = Constant(-1, self.constants[buffers[operand]].source, packing)
            if key not in self.packed:
                tensor = Tensor(panels.dtype, panels.shape)
                self.buffers.append(Buffer("constant", tensor, contiguous(tensor)))
                self.packed[key] = len(self.buffers) - 1
                self.constants[self.packed[key]] = replace(key, buffer=self.packed[key])
            buffers[operand], layouts[operand] = self.packed[key], PackedLayout.of(panels)
        return buffers, layouts

    def copy(self, source: Place, target: Place) -> None:
        """Copy a tensor to other memory."""
        self._fill(target, [source])

    def clear(self, target: Place) -> None:
        """Fill a tensor with zeros."""
        self._fill(target, [])

    def _fill(self, target: Place, sources: Sequence[Place]) -> None:
        kind = tensor_type(target.tensor)
        given, block = Block(arg_types=[kind for _ in sources]), Block(arg_types=[kind for _ in sources])
        b = GraphBuilder(block)
        value = block.args[0] if sources else b.full(value=0, shape=target.tensor.shape, dtype=target.tensor.dtype)
        b.insert(YieldOp.create(operands=[value]))
        group = GroupOp.create(operands=given.args, result_types=[kind], regions=[Region(block)])
        lowered, label = self.kernels.lower(group, [place.layout for place in sources], [target.layout])
        self._run(accepted(lowered), label, [place.buffer for place in sources], [target.buffer])

    def _scratch(self, tensor: Tensor) -> int:
        self.buffers.append(Buffer("temporary", tensor, contiguous(tensor)))
        return len(self.buffers) - 1


def _over(group: GroupOp, inputs: Sequence[Place], result: int, operand: int) -> Place:
    """Where a result lies that is made in the memory of an operand."""
    place = inputs[operand]
    layout = layout_over(group, operand, place.layout)
    assert layout is not None, "asked when it was decided"
    return Place(place.buffer, tensor_of(group.results[result].type), layout)


def _is_there(group: GroupOp, inputs: Sequence[Place]) -> bool:
    """Whether a group updates a slice by what was made in the slice's own memory."""
    update = slice_written_by(group)
    if update is None:
        return False
    source, views = views_from(update.operands[1])
    if not isinstance(source, BlockArgument):
        return False
    new, old = inputs[source.index], inputs[in_place_of(group)[0]]
    part = part_written(update)
    there, wanted = layout_through(views, new.layout), slice_layout(old.layout, part.starts, part.steps)
    return new.buffer == old.buffer and there is not None and same_places(part.shape, there, wanted)
