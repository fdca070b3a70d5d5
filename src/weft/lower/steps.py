"""A plan as plain data: buffers, and the steps that fill them in order. What the runtime runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from weft.ir.expr import Size
from weft.ir.types import Tensor
from weft.lower.constants import Constant
from weft.ops.layouts import StridedLayout


@dataclass(frozen=True)
class Buffer:
    """Memory of a tensor: an `input`, `output` or `temporary` of a call, an `external` result of the framework, or a
    `constant`, which is the same in every call."""

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

    A `library` claims what it does better, and the framework's `generator` the drawing of random numbers.
    """

    target: str
    arguments: str
    operands: tuple[Place, ...]
    results: tuple[int, ...]
    label: str
    claimed: str = ""


@dataclass(frozen=True)
class DotStep:
    """A (batched) matmul by the BLAS library, whose sums are made of so many partial ones."""

    a: Place
    b: Place
    out: Place
    label: str
    partial_sums: Size = 1


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


Step: TypeAlias = KernelStep | CallStep | DotStep | LaunchStep


def buffers_of(step: Step) -> Iterable[int]:
    """The buffers a step reads or writes."""
    match step:
        case CallStep():
            return (*(place.buffer for place in step.operands), *step.results)
        case DotStep():
            return (step.a.buffer, step.b.buffer, step.out.buffer)
        case LaunchStep():
            return (place.buffer for place in step.places)
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
