"""A plan as plain data: buffers, and the steps that fill them in order. What the runtime runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from weft.ir.expr import Size
from weft.ir.types import Tensor
from weft.lower.constants import Constant
from weft.lower.preparation import Preparation
from weft.ops.layouts import StridedLayout


@dataclass(frozen=True)
class Buffer:
    """Memory of a tensor: an `input`, `output` or `temporary` of a call, an `external` result of the framework, a
    `constant`, which is the same in every call, or a `slice`, a part of another that moves on with a loop's turns."""

    role: str
    tensor: Tensor
    layout: StridedLayout


@dataclass(frozen=True)
class Place:
    """A tensor in memory: a buffer seen through a layout."""

    buffer: int
    tensor: Tensor
    layout: StridedLayout


@dataclass(frozen=True)
class KernelStep:
    """Run all programs of a kernel. `work` is the estimated time of one program in nanoseconds."""

    function: str
    buffers: tuple[int, ...]
    symbols: tuple[str, ...]
    grid: Size
    work: int
    serial: bool
    label: str


@dataclass(frozen=True)
class CallStep:
    """Let the framework carry out a call: one that Weft lacks, or one that is `claimed`.

    A `library` claims what it does better, the framework's `generator` the drawing of random numbers; a `collective`,
    or a `transfer` between a device and its host, is started, and a `wait` gives what it brought.
    """

    target: str
    arguments: str
    operands: tuple[Place, ...]
    results: tuple[int, ...]
    label: str
    claimed: str = ""


@dataclass(frozen=True)
class DotStep:
    """A (batched) matmul by the BLAS library, whose sums are made of so many partial ones.

    It `accumulates` where it adds to what is there, in place of writing over it.
    """

    a: Place
    b: Place
    out: Place
    label: str
    partial_sums: Size = 1
    accumulates: bool = False


@dataclass(frozen=True)
class LaunchStep:
    """Run all programs of a kernel that the user wrote; it takes tensors, and numbers as the words that hold them."""

    function: str
    arguments: tuple[Place | Size, ...]
    grid: Size
    work: int
    label: str

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(argument for argument in self.arguments if isinstance(argument, Place))


@dataclass(frozen=True)
class SlicePlace:
    """A buffer of no memory of its own: in every turn of a loop, the next slice of a tensor along its first dimension.

    The `direction` is 1, or -1 where the first turn has the last slice.
    """

    buffer: int
    whole: Place
    direction: int


@dataclass(frozen=True)
class LoopStep:
    """Run steps again and again: so many turns, or -1 without bound, while a buffer (-1: none) holds true."""

    body: tuple[Step, ...]
    trip_count: Size
    condition: int
    slices: tuple[SlicePlace, ...]
    label: str


@dataclass(frozen=True)
class IfStep:
    """Run the steps of one of two branches, as a buffer says."""

    condition: int
    then: tuple[Step, ...]
    otherwise: tuple[Step, ...]
    label: str


ControlStep: TypeAlias = LoopStep | IfStep
Step: TypeAlias = KernelStep | CallStep | DotStep | LaunchStep | LoopStep | IfStep


def inner_steps(step: Step) -> tuple[Step, ...]:
    """The steps that a step of control flow runs."""
    match step:
        case LoopStep():
            return step.body
        case IfStep():
            return (*step.then, *step.otherwise)
        case _:
            return ()


def all_steps(steps: Iterable[Step]) -> Iterator[Step]:
    """Steps, and all that are inside of them."""
    for step in steps:
        yield step
        yield from all_steps(inner_steps(step))


def buffers_read(steps: Iterable[Step]) -> set[int]:
    """The buffers that steps name, but for results of calls and matmuls, which are nobody's constants."""
    read: set[int] = set()
    for step in all_steps(steps):
        match step:
            case KernelStep():
                read.update(step.buffers)
            case CallStep():
                read.update(place.buffer for place in step.operands)
            case DotStep():
                read.update((step.a.buffer, step.b.buffer))
            case LaunchStep():
                read.update(place.buffer for place in step.places)
            case LoopStep() | IfStep():
                read.update(place.whole.buffer for place in getattr(step, "slices", ()))
                read.add(step.condition)
    return read


def with_functions(steps: Iterable[Step], instead: Mapping[str, str]) -> tuple[Step, ...]:
    """Steps with other kernels in place of some, also inside of them."""
    changed: list[Step] = []
    for step in steps:
        match step:
            case LoopStep():
                step = replace(step, body=with_functions(step.body, instead))
            case IfStep():
                then, otherwise = (with_functions(each, instead) for each in (step.then, step.otherwise))
                step = replace(step, then=then, otherwise=otherwise)
            case KernelStep() | LaunchStep():
                step = replace(step, function=instead.get(step.function, step.function))
            case _:
                pass
        changed.append(step)
    return tuple(changed)


def buffers_of(step: Step) -> Iterable[int]:
    """The buffers a step reads or writes."""
    match step:
        case CallStep():
            return (*(place.buffer for place in step.operands), *step.results)
        case DotStep():
            return (step.a.buffer, step.b.buffer, step.out.buffer)
        case LaunchStep():
            return (place.buffer for place in step.places)
        case LoopStep() | IfStep():
            own = [n for each in getattr(step, "slices", ()) for n in (each.buffer, each.whole.buffer)]
            own += [step.condition] if step.condition >= 0 else []
            return (*own, *(number for each in inner_steps(step) for number in buffers_of(each)))
        case _:
            return step.buffers


@dataclass(frozen=True)
class Plan:
    """A program: its buffers, its steps, and which buffers are its results.

    `fixed` are the places of the constant arguments among all, which `inputs` leaves out; `prepare` is the text of the
    function that is run on them when the program is loaded.
    """

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    symbols: tuple[str, ...]
    fixed: tuple[int, ...] = ()
    constants: tuple[Constant, ...] = ()
    prepare: str = ""
    replacing: tuple[int, ...] = ()
    """The outputs, by position, that are written over the input that they replace."""
    decided_after: int = 0
    """How many steps it takes to know whether the data is right, where others write over inputs: the last output is 0
    then. 0 where nobody has to wait for it."""
    preparation: Preparation | None = None
    """`prepare` as data, where it can be: a program that is loaded need not parse its text."""
    donated: tuple[int, ...] = ()
    """The arguments, by their places among all, whose memory the program uses for other values: nobody may read them
    after a call, however it ends."""
