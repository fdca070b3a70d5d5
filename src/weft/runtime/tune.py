"""Schedules by measurement: the kernels that take most of a program's time get the tiles that are fastest here.

    %y = graph.group(%x, %w) {...}     →     %y = graph.group(%x, %w) {...} {schedule = [96, 128, 384]}

Products and attention are tuned, where all sizes are known. Each is compiled and run by itself, on random numbers, with
the memory its operands have in the program; one side of its tiles is changed at a time, and candidates take turns. The
winner is kept in the disk cache, under the kernel with its sizes, the processor and the number of threads.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.ir import OpResult, SSAValue

from weft.backends.cpu.compile import emit_kernels
from weft.backends.cpu.microkernel import cpu_machine, panel_form
from weft.backends.cpu.target import CpuTarget, compile_object, host_target
from weft.errors import CompilationError, LoweringError
from weft.ir.attributes import to_attribute
from weft.ir.types import DType, Tensor, tensor_of
from weft.lower.constants import PanelForm
from weft.lower.lowered import anchor_of
from weft.lower.machine import CPU, Machine
from weft.lower.plan import build_plan
from weft.ops.base import View, viewed
from weft.ops.graph import FuncOp, GroupOp, ReturnOp
from weft.ops.matmul.attention import AnyAttention
from weft.ops.matmul.dot import Dot
from weft.passes.grouping.build_groups import SCHEDULE
from weft.passes.simplify.constant_values import constant_arguments
from weft.passes.update_in_place import in_place_of
from weft.runtime.arrays import ArrayCall
from weft.runtime.cache import DiskCache, cache_key
from weft.runtime.cores import available_cores
from weft.runtime.executable import Executable
from weft.runtime.openmp import pool_threads

log = logging.getLogger("weft")

Call = Callable[[], None]
Timer = Callable[[Sequence[Call]], list[float]]
"""The seconds that each of several calls takes, measured in turns."""
Sides = tuple[int, ...]

_SHARE = 0.9
"""The part of the time of all tunable kernels that those have which are tuned."""
_MOST_KERNELS = 12
_GAIN = 0.97
"""A candidate must take less than this part of the time of the best so far: less may be chance."""
_LARGEST_TILE = 1 << 17
"""Elements of a tile that a thread's stack has room for."""
_UNITS = {"dot": (4, 32, 8), "attention": (4, 32)}
"""What the sides of tiles are multiples of: rows, columns, depth of products; queries and keys of attention."""
_ROUNDS, _SAMPLE_SECONDS = 7, 5e-3


def time_calls(calls: Sequence[Call]) -> list[float]:
    """The least of some samples of each call; a sample is as many calls as take some milliseconds."""
    counts: list[int] = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        counts.append(max(1, round(_SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7))))
    best = [float("inf")] * len(calls)
    for _ in range(_ROUNDS):
        for number, (call, count) in enumerate(zip(calls, counts, strict=True)):
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[number] = min(best[number], (time.perf_counter() - start) / count)
    return best


def tell(text: str) -> None:
    """Progress for who waits: a line on a terminal, a message to the log elsewhere."""
    if sys.stderr.isatty():
        print(f"weft: {text}", file=sys.stderr)
    else:
        log.info("%s", text)


@dataclass(frozen=True)
class Tuned:
    """A kernel, how often the program runs it, the sides of its tiles, and seconds a run; 0 for one from the cache."""

    label: str
    uses: int
    sides: Sides
    before: float = 0.0
    after: float = 0.0


@dataclass
class TunedKernel:
    """Equal groups of a program, and what stands for them: a function of one group."""

    text: str
    alone: FuncOp
    groups: list[GroupOp] = field(default_factory=list[GroupOp])
    own: Sides = ()
    """The sides that it has by itself."""
    seconds: float = 0.0

    @property
    def anchor(self) -> Any:
        return anchor_of(self.groups[0])

    @property
    def mode(self) -> str:
        return self.anchor.name.removeprefix("graph.")


@dataclass
class Tuner:
    """Measures and chooses. `cache` is None where nothing is to be kept."""

    target: CpuTarget
    cache: DiskCache | None = None
    timer: Timer = time_calls
    progress: Callable[[str], None] = tell
    threads: int = field(default_factory=lambda: min(pool_threads(), available_cores()))

    def tune(self, function: FuncOp) -> list[Tuned]:
        """Give the groups of a function the schedules that are fastest; what was chosen for which."""
        if self.target != host_target():
            self.progress(f"nothing is tuned: the program is for {self.target.cpu}, not for this processor")
            return []
        found: list[Tuned] = []
        unknown: list[TunedKernel] = []
        for kernel in tunable_kernels(function):
            kernel.own = _own_sides(kernel, self._panel_form, cpu_machine(self.target))
            if not kernel.own:
                continue
            sides = self._known(kernel)
            if sides is None:
                unknown.append(kernel)
            else:
                found.append(self._choose(kernel, Tuned(kernel.mode, len(kernel.groups), sides)))
        for kernel in unknown:
            (kernel.seconds,) = self.timer([self._call(kernel, ())])
        heaviest = self._heaviest(unknown)
        for number, kernel in enumerate(heaviest, 1):
            found.append(self._choose(kernel, tuned := self._tune(kernel)))
            gain = f"{tuned.before * 1e3:.3g} → {tuned.after * 1e3:.3g} ms" if tuned.sides else "as good as it gets"
            self.progress(f"tuning {number} of {len(heaviest)}, {kernel.mode} ×{len(kernel.groups)}: {gain}")
        return found

    def _heaviest(self, kernels: Sequence[TunedKernel]) -> list[TunedKernel]:
        times = {kernel.text: kernel.seconds * len(kernel.groups) for kernel in kernels}
        ordered = sorted(kernels, key=lambda kernel: -times[kernel.text])
        chosen: list[TunedKernel] = []
        while len(chosen) < min(len(ordered), _MOST_KERNELS):
            if sum(times[kernel.text] for kernel in chosen) >= _SHARE * sum(times.values()) and chosen:
                break
            chosen.append(ordered[len(chosen)])
        return chosen

    def _tune(self, kernel: TunedKernel) -> Tuned:
        """Change one side at a time; the kernel's own choice comes first, and stays unless another is faster."""
        best = kernel.own
        for axis, unit in enumerate(_UNITS[kernel.mode]):
            best = self._fastest(kernel, [best, *candidates(best, axis, unit)])[0]
        # Once more in turns: what was gained step by step may be chance, or the machine's.
        sides, before, after = self._fastest(kernel, [kernel.own, best])
        chosen = sides if sides != kernel.own else ()
        if self.cache is not None:
            self.cache.put(self._key(kernel), {"sides": list(chosen)}, {})
        return Tuned(kernel.mode, len(kernel.groups), chosen, before, after)

    def _fastest(self, kernel: TunedKernel, options: Sequence[Sides]) -> tuple[Sides, float, float]:
        """The first of several sides or one that is surely faster; its time comes after that of the first."""
        calls: dict[Sides, Call] = {}
        for sides in dict.fromkeys(options):
            try:
                calls[sides] = self._call(kernel, sides)
            except (LoweringError, CompilationError) as error:
                log.debug("no kernel of sides %s: %s", sides, error)
        if len(calls) == 1:
            return options[0], kernel.seconds, kernel.seconds
        seconds = dict(zip(calls, self.timer(list(calls.values())), strict=True))
        first = seconds[options[0]]
        best = min(seconds, key=seconds.__getitem__)
        return (best, first, seconds[best]) if seconds[best] < _GAIN * first else (options[0], first, first)

    def _choose(self, kernel: TunedKernel, tuned: Tuned) -> Tuned:
        if tuned.sides:
            for group in kernel.groups:
                group.attributes[SCHEDULE] = to_attribute(tuned.sides)
        return tuned

    # -- what is known -----------------------------------------------------------------------------------------------

    def _key(self, kernel: TunedKernel) -> str:
        return cache_key("schedule", kernel.text, repr(self.target), self.threads)

    def _known(self, kernel: TunedKernel) -> Sides | None:
        """What was chosen before; () where nothing is better than the kernel's own choice."""
        entry = self.cache.get(self._key(kernel)) if self.cache is not None else None
        sides = entry.meta.get("sides") if entry is not None else None
        if not isinstance(sides, list) or not all(isinstance(side, int) and side > 0 for side in sides):  # type: ignore[misc]
            return None
        return tuple(sides) if len(sides) in (0, len(kernel.own)) else None  # type: ignore[arg-type]

    # -- kernels that run --------------------------------------------------------------------------------------------

    def _panel_form(self, dtype: DType, memory: DType) -> tuple[int, int]:
        return panel_form(self.target, dtype, memory)

    def _call(self, kernel: TunedKernel, sides: Sides) -> Call:
        """The kernel by itself, compiled with the given sides, or its own, on memory of its own."""
        function = kernel.alone.clone()
        for group in function.block.ops:
            if isinstance(group, GroupOp) and sides:
                group.attributes[SCHEDULE] = to_attribute(sides)
        planned = build_plan(function, self._panel_form, cpu_machine(self.target))
        code = compile_object(emit_kernels(planned.kernels, self.target), self.target)
        arrays = [_random(tensor_of(value.type)) for value in function.block.args]
        call = ArrayCall(Executable(planned.plan, code), arrays)
        return lambda: call.run(self.threads)


def candidates(sides: Sides, axis: int, unit: int) -> Iterator[Sides]:
    """The sides with one of them half and twice as long, a multiple of the unit, as far as tiles stay small enough."""
    for side in (sides[axis] // 2, sides[axis] * 2):
        rounded = -(-side // unit) * unit
        changed = (*sides[:axis], rounded, *sides[axis + 1 :])
        rows, *others = changed
        if rounded != sides[axis] and sides[axis] > unit and all(rows * other <= _LARGEST_TILE for other in others):
            yield changed


def tunable_kernels(function: FuncOp) -> list[TunedKernel]:
    """The distinct products and attentions of a function whose sizes are all known."""
    constants: set[SSAValue] = set(constant_arguments(function))
    kernels: dict[str, TunedKernel] = {}
    for group in function.block.ops:
        if not isinstance(group, GroupOp) or group.claim or SCHEDULE in group.attributes or in_place_of(group):
            continue
        values = (*group.operands, *group.results)
        if not isinstance(anchor_of(group), Dot | AnyAttention) or not all(tensor_of(v.type).is_static for v in values):
            continue
        alone = _alone(group, constants)
        kernel = kernels.setdefault(text := str(alone), TunedKernel(text, alone))
        kernel.groups.append(group)
    return list(kernels.values())


def _alone(group: GroupOp, constants: set[SSAValue]) -> FuncOp:
    """A function of a group and the views that it reads: constants of the program are constants of it."""
    roots = list(dict.fromkeys(viewed(operand) for operand in group.operands))
    function = FuncOp.make("alone", {f"x{number}": tensor_of(root.type) for number, root in enumerate(roots)})
    values: dict[SSAValue, SSAValue] = dict(zip(roots, function.block.args, strict=True))

    def bring(value: SSAValue) -> SSAValue:
        if value not in values:
            assert isinstance(value, OpResult) and isinstance(value.op, View)
            values[value.op.operands[0]] = bring(value.op.operands[0])
            copy = value.op.clone(value_mapper=dict(values))
            function.block.add_op(copy)
            values[value] = copy.results[0]
        return values[value]

    copy = GroupOp.create(
        operands=[bring(operand) for operand in group.operands],
        result_types=group.result_types,
        attributes=dict(group.attributes),
        regions=[group.body.clone()],
    )
    function.block.add_op(copy)
    function.block.add_op(ReturnOp.make(copy.results))
    if fixed := tuple(number for number, root in enumerate(roots) if root in constants):
        function.attributes["constants"] = to_attribute(fixed)
    for op in function.walk():  # names differ between the layers of a model
        for result in op.results:
            result.name_hint = None
        for region in op.regions:
            for argument in region.block.args:
                argument.name_hint = None
    return function


def _own_sides(kernel: TunedKernel, form: PanelForm, machine: Machine = CPU) -> Sides:
    """The sides that the lowering chooses by itself; none where it takes several kernels to do it."""
    planned = build_plan(kernel.alone.clone(), form, machine)
    schedules = list(planned.schedules.values())
    if len(schedules) != 1 or not schedules[0].startswith(f"#{kernel.mode}<"):
        return ()
    _, _, sides = schedules[0].rstrip(">").partition("<")
    return tuple(map(int, sides.split("x")))


def _random(tensor: Tensor) -> np.ndarray:
    shape = tuple(size for size in tensor.shape if isinstance(size, int))
    if tensor.dtype.is_float:
        return np.random.default_rng(0).standard_normal(shape, np.float32).astype(tensor.dtype.numpy)
    return np.zeros(shape, tensor.dtype.numpy)
