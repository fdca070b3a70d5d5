"""A plan as one native function: its kernels, what calls them in order, where temporaries lie, and threads.

    i64  weft_call(sizes, constants, inputs, outputs, arena, threads)   0, or what a check of the data has found
    i64  weft_arena(sizes)                                              the bytes of `arena`, aligned to 64
    void weft_shapes(sizes, shapes)                                     of every result, behind each other
    void weft_pool_reset()                                              to be called in a forked child

Sizes are words, in the order of the plan's symbols; the others are arrays of pointers. There is no tape and nothing is
looked up: expressions for grids, offsets and shapes are code, so that one shared object serves all sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.native_lifetimes import native_lifetimes
from weft.backends.cpu.target import CpuTarget
from weft.backends.cpu.thread_pool import PARALLEL, RESET, thread_pool
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V, const, i64
from weft.errors import UnsupportedError
from weft.ir.expr import Size, evaluate, product
from weft.lower.scalar_arguments import signed
from weft.lower.steps import (
    CallStep,
    DotStep,
    IfStep,
    KernelStep,
    LaunchStep,
    LoopStep,
    Place,
    Plan,
    SlicePlace,
    Step,
    all_steps,
)
from weft.tile.dialect import KernelOp

CALL, ARENA, SHAPES = "weft_call", "weft_arena", "weft_shapes"
EXPORTS = (CALL, ARENA, SHAPES, RESET)
_STEP, _WORKER = "weft_step", "weft_share"
_ALIGNMENT = 64
_PARALLEL_FROM_NS = 30_000
_UNBOUNDED = 2**63 - 1
_TYPICAL = 128
"""What an unknown size is taken for where it is decided which temporaries share memory."""


def native_module(plan: Plan, kernels: Mapping[str, KernelOp], target: CpuTarget) -> Module:
    """The kernels of a plan and the functions that run it; `thread_pool` belongs to it as text."""
    for step in all_steps(plan.steps):
        if isinstance(step, CallStep | DotStep):
            raise UnsupportedError(
                f"{step.label} is left to a framework, which a program on its own has not",
                hint="`weft explain` lists what is left to torch",
            )
    module = Module(target.triple)
    for kernel in kernels.values():
        emit_kernel(module, kernel, target)
    _share(module)
    _step(module)
    slots = arena_slots(plan)
    _arena(module, plan, slots)
    _shapes(module, plan)
    _call(module, plan, slots)
    return module


def native_text(module: Module) -> str:
    """The LLVM IR of a native program, with the pool that its threads come from."""
    return str(module) + thread_pool(module.triple)


def outputs_of(plan: Plan) -> list[int]:
    """The buffers that a caller brings for results, in order."""
    return [n for n in dict.fromkeys(plan.outputs) if plan.buffers[n].role == "output"]


Slot = tuple[list[int], list[Size]]
"""Temporaries that take turns in one place, and their sizes in bytes: the greatest is the place's."""


def arena_slots(plan: Plan) -> list[Slot]:
    """Places for the temporaries, for all sizes alike: those that never live at the same time share one."""
    lives = {n: life for n, life in native_lifetimes(plan.steps).items() if plan.buffers[n].role == "temporary"}
    typical = dict.fromkeys(plan.symbols, _TYPICAL)
    slots: list[Slot] = []
    ends: list[tuple[int, int]] = []  # when a slot is free again, and how large it is for typical sizes
    for buffer, (first, last) in sorted(lives.items(), key=lambda item: item[1]):
        tensor = plan.buffers[buffer].tensor
        size = product(tensor.shape) * tensor.dtype.bytes
        about = evaluate(size, typical)
        free = [n for n, (end, _) in enumerate(ends) if end < first]
        if not free:
            slots.append(([buffer], [size]))
            ends.append((last, about))
            continue
        best = min(free, key=lambda n: (size not in slots[n][1], abs(ends[n][1] - about), n))
        slots[best][0].append(buffer)
        if size not in slots[best][1]:
            slots[best][1].append(size)
        ends[best] = (last, max(ends[best][1], about))
    return slots


def _symbols(b: Function, plan: Plan, sizes: V) -> dict[str, V]:
    return {name: b.load("i64", b.gep(sizes, i64(n), "i64"), 8) for n, name in enumerate(plan.symbols)}


def _slot_bytes(b: Function, slot: Slot, symbols: dict[str, V]) -> V:
    most = b.size(slot[1][0], symbols)
    for size in slot[1][1:]:
        other = b.size(size, symbols)
        most = b.select(b.icmp("sgt", other, most), other, most)
    if most.name.isdecimal():
        return i64(-(-max(int(most.name), 1) // _ALIGNMENT) * _ALIGNMENT)
    return b.binary("and", b.add(most, i64(_ALIGNMENT)), i64(-_ALIGNMENT))


def _arena(module: Module, plan: Plan, slots: Sequence[Slot]) -> None:
    b = Function(module, ARENA, [("ptr", "sizes")], "i64")
    symbols = _symbols(b, plan, b.args[0])
    total = i64(0)
    for slot in slots:
        total = b.add(total, _slot_bytes(b, slot, symbols))
    b.finish(total)


def _shapes(module: Module, plan: Plan) -> None:
    b = Function(module, SHAPES, [("ptr", "sizes"), ("ptr", "shapes")])
    sizes, shapes = b.args
    symbols = _symbols(b, plan, sizes)
    place = 0
    for number in outputs_of(plan):
        for size in plan.buffers[number].tensor.shape:
            b.store(b.size(size, symbols), b.gep(shapes, i64(place), "i64"), 8)
            place += 1
    b.finish()


def _call(module: Module, plan: Plan, slots: Sequence[Slot]) -> None:
    names = ("sizes", "constants", "inputs", "outputs", "arena")
    b = Function(module, CALL, [*(("ptr", name) for name in names), ("i64", "threads")], "i64")
    sizes, constants, inputs, outputs, arena, threads = b.args
    symbols = _symbols(b, plan, sizes)
    base = b.emit("i64", f"ptrtoint {arena} to i64")
    words: dict[int, V] = {}
    given = ((constants, [c.buffer for c in plan.constants]), (inputs, plan.inputs), (outputs, outputs_of(plan)))
    for table, buffers in given:
        for place, buffer in enumerate(buffers):
            words[buffer] = b.load("i64", b.gep(table, i64(place), "i64"), 8)
    for slot in slots:
        words.update(dict.fromkeys(slot[0], base))
        base = b.add(base, _slot_bytes(b, slot, symbols))
    most = max((_arguments(step) for step in all_steps(plan.steps)), default=1)
    program = _Program(b, words, symbols, b.alloca("i64", max(most, 1), 8), threads)
    for number, step in enumerate(plan.steps):
        if number and number == plan.decided_after:
            _decide(b, words[plan.outputs[-1]])
        program.run(step)
    b.finish(i64(0))


@dataclass(frozen=True)
class _Program:
    """The body of the function that runs a plan, where its buffers lie, and room for the arguments of a kernel."""

    b: Function
    words: dict[int, V]
    symbols: dict[str, V]
    scratch: V
    threads: V

    def run(self, step: Step) -> None:
        match step:
            case LoopStep():
                self._loop(step)
            case IfStep():
                self._branch(step)
            case KernelStep():
                work = 0 if step.serial else step.work
                self._launch(step, _kernel_words(step, self.words, self.symbols), work)
            case LaunchStep():
                self._launch(step, _launch_words(self.b, step, self.words, self.symbols), step.work)
            case _:
                raise TypeError(step)

    def _launch(self, step: KernelStep | LaunchStep, arguments: Sequence[V], work: int) -> None:
        b = self.b
        for place, word in enumerate(arguments):
            b.store(word, b.gep(self.scratch, i64(place), "i64"), 8)
        count = b.size(step.grid, self.symbols)
        b.do(f"call void @{_STEP}(ptr @{step.function}, {self.scratch}, {count}, {i64(work)}, {self.threads})")

    def _loop(self, step: LoopStep) -> None:
        b = self.b
        turns = i64(_UNBOUNDED) if step.trip_count == -1 else b.size(step.trip_count, self.symbols)
        moving = [(each.buffer, *self._slices(each)) for each in step.slices]
        counter = b.alloca("i64", 1, 8)
        b.store(i64(0), counter, 8)
        head, body, after = b.label("turn"), b.label("run"), b.label("over")
        b.branch(head)
        b.start(head)
        turn = b.load("i64", counter, 8)
        goes_on = b.icmp("slt", turn, turns)
        b.branch_if(
            goes_on if step.condition < 0 else b.binary("and", goes_on, self._flag(step.condition)), body, after
        )
        b.start(body)
        for buffer, first, distance in moving:
            self.words[buffer] = b.add(first, b.mul(turn, distance))
        for each in step.body:
            self.run(each)
        b.store(b.add(turn, i64(1)), counter, 8)
        b.branch(head)
        b.start(after)

    def _slices(self, place: SlicePlace) -> tuple[V, V]:
        """Where the slice of a loop's first turn lies, and how many bytes on the next one does."""
        b, whole = self.b, place.whole
        size = whole.tensor.dtype.bytes
        start, stride = whole.layout.offset, whole.layout.strides[0]
        if place.direction < 0:
            start = start + (whole.tensor.shape[0] - 1) * stride
        first = b.add(self.words[whole.buffer], b.size(start * size, self.symbols))
        return first, b.size(stride * size * place.direction, self.symbols)

    def _branch(self, step: IfStep) -> None:
        b = self.b
        then, otherwise, after = b.label("then"), b.label("otherwise"), b.label("joined")
        b.branch_if(self._flag(step.condition), then, otherwise)
        for label, steps in ((then, step.then), (otherwise, step.otherwise)):
            b.start(label)
            for each in steps:
                self.run(each)
            b.branch(after)
        b.start(after)

    def _flag(self, buffer: int) -> V:
        """Whether a buffer of one boolean holds true."""
        b = self.b
        return b.icmp("ne", b.load("i8", b.emit("ptr", f"inttoptr {self.words[buffer]} to ptr"), 1), const(0, "i8"))


def _arguments(step: object) -> int:
    if isinstance(step, KernelStep):
        return len(step.buffers) + len(step.symbols)
    return len(step.arguments) if isinstance(step, LaunchStep) else 0


def _kernel_words(step: KernelStep, words: Mapping[int, V], symbols: Mapping[str, V]) -> list[V]:
    return [*(words[buffer] for buffer in step.buffers), *(symbols[name] for name in step.symbols)]


def _launch_words(b: Function, step: LaunchStep, words: Mapping[int, V], symbols: dict[str, V]) -> list[V]:
    made: list[V] = []
    for argument in step.arguments:
        if isinstance(argument, Place):
            offset = argument.layout.offset * argument.tensor.dtype.bytes
            made.append(b.add(words[argument.buffer], b.size(offset, symbols)))
        else:
            made.append(i64(signed(argument)) if isinstance(argument, int) else b.size(argument, symbols))
    return made


def _decide(b: Function, verdict: V) -> None:
    """Leave with what a check of the data has found, before anything is written over."""
    found = b.load("i64", b.emit("ptr", f"inttoptr {verdict} to ptr"), 8)
    wrong, right = b.label("wrong"), b.label("right")
    b.branch_if(b.icmp("ne", found, i64(0)), wrong, right)
    b.start(wrong)
    b.do(f"ret {found}")
    b.start(right)


def _step(module: Module) -> None:
    """Run all programs of a kernel: in all threads, where there is enough to do."""
    params = [("ptr", "kernel"), ("ptr", "arguments"), ("i64", "count"), ("i64", "work"), ("i64", "threads")]
    b = Function(module, _STEP, params, attributes="nounwind noinline", linkage="internal")
    kernel, arguments, count, work, threads = b.args
    context = b.alloca("i64", 3, 8)
    with b.when(b.icmp("sgt", count, i64(0))):
        enough = b.icmp("sgt", b.mul(count, work), i64(_PARALLEL_FROM_NS))
        several = b.binary("and", b.icmp("sgt", threads, i64(1)), b.icmp("sgt", count, i64(1)))
        yes, no, after = b.label("shared"), b.label("alone"), b.label("done")
        b.branch_if(b.binary("and", enough, several), yes, no)
        b.start(yes)
        b.store(kernel, context, 8)
        b.store(arguments, b.gep(context, i64(1), "i64"), 8)
        b.store(count, b.gep(context, i64(2), "i64"), 8)
        b.do(f"call void @{PARALLEL}(ptr @{_WORKER}, {context}, {threads})")
        b.branch(after)
        b.start(no)
        b.do(f"call void {kernel.name}({arguments}, {i64(0)}, {count})")
        b.branch(after)
        b.start(after)
    b.finish()


def _share(module: Module) -> None:
    """What each thread of the pool runs: its share of the programs."""
    params = [("ptr", "context"), ("i64", "thread"), ("i64", "threads")]
    b = Function(module, _WORKER, params, linkage="internal")
    context, thread, threads = b.args
    kernel = b.load("ptr", context, 8)
    arguments = b.load("ptr", b.gep(context, i64(1), "i64"), 8)
    count = b.load("i64", b.gep(context, i64(2), "i64"), 8)
    begin = b.binary("sdiv", b.mul(count, thread), threads)
    end = b.binary("sdiv", b.mul(count, b.add(thread, i64(1))), threads)
    b.do(f"call void {kernel.name}({arguments}, {begin}, {end})")
    b.finish()
