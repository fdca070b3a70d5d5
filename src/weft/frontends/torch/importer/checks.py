"""Mistakes in data that eager finds while it runs (indices out of range, integers divided by zero), found by programs.

A converter states what must not be; the importer makes one number of all such conditions, a result of its own that is 0
if none holds, and a call looks at it when the program has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import OpResult, SSAValue

from weft.config import Config
from weft.errors import CountError, DataError, DataValueError, DivisionError, PlaceError, PowerError, WeftError
from weft.frontends.torch.capture.data_checks import FactorError
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.locations import user_line
from weft.frontends.triton.errors import DeviceAssertError
from weft.ir.expr import Expr, Size, is_nonnegative
from weft.ir.types import boolean, i64

_KINDS: dict[str, type[WeftError]] = {
    "place": PlaceError,
    "division": DivisionError,
    "count": CountError,
    "power": PowerError,
    "data": DataError,
    "value": DataValueError,
    "factor": FactorError,
    "assert": DeviceAssertError,
}


LEAST_CALLS = 400
"""Calls in a graph from which on its data is checked unless the user says otherwise. A check is two or three launches,
some microseconds in all: more than a hundredth of what a smaller graph takes."""


def are_checked(config: Config, calls: int) -> bool:
    """Whether a program on a GPU, made of so many calls, looks for mistakes in its data."""
    return calls >= LEAST_CALLS if config.device_checks == "auto" else config.device_checks != "off"


@dataclass(frozen=True)
class Check:
    """What is wrong if a condition holds, and where in the user's program it is."""

    kind: str
    message: str
    line: str | None
    node: str = ""
    """The name of the call in the captured graph, by which a program from the cache finds the line anew."""


def check_places(
    b: ImportBuilder, places: SSAValue, dim: int, size: Size, *, wraps: bool = False, touched: Size = 1
) -> None:
    """All places must be indices into a dimension of this size, or, if it `wraps`, counted from its end.

    Where eager has `touched` no element, it does not look at the places either.
    """
    index = b.to(places, i64)
    below = b.emit("lt", index, b.number(-size if wraps else 0, i64))
    beyond = b.emit("ge", index, b.number(size, i64))
    wrong = b.emit("logical_or", below, beyond)
    _state(b, "place", f"an index is out of range for dimension {dim}, of size {size}", wrong, touched)


def check_divisor(b: ImportBuilder, divisor: SSAValue | bool | int | float | Expr, touched: Size) -> None:
    """No element of an integer divisor may be 0, where there are elements to divide."""
    if isinstance(divisor, SSAValue):
        zero = b.emit("eq", divisor, b.number(0, b.dtype(divisor)))
    elif not isinstance(divisor, Expr) and int(divisor) == 0:  # sizes of 0 are no symbols
        zero = b.number(True, boolean)
    else:
        return
    _state(b, "division", "an integer is divided by zero", zero, touched)


def check_count(b: ImportBuilder, count: SSAValue, given: Size, *, at_least: bool = False) -> None:
    """As many values must be given as a mask has true elements, or more."""
    wrong = b.emit("gt" if at_least else "ne", count, b.number(given, i64))
    _state(b, "count", f"{given} values do not fit the number of true elements of the mask", wrong)


def check_that(b: ImportBuilder, kind: str, message: str, wrong: SSAValue) -> None:
    """No element of a condition may hold."""
    _state(b, kind, message, wrong)


def check_zero(b: ImportBuilder, status: SSAValue, number: int, message: str, line: str) -> None:
    """A kernel's status must not be the number of one of its assertions."""
    wrong = b.emit("eq", status, b.number(number, i64))
    found = b.emit("any", wrong, dims=tuple(range(b.rank(wrong))), keep=False)
    b.checks.append((found, Check("assert", message, line)))


def _state(b: ImportBuilder, kind: str, message: str, wrong: SSAValue, touched: Size = 1) -> None:
    if not b.checked or touched == 0:
        return
    found = b.emit("any", wrong, dims=tuple(range(b.rank(wrong))), keep=False)
    if not is_nonnegative(touched - 1):
        found = b.emit("logical_and", found, b.emit("gt", b.number(touched, i64), b.number(0, i64)))
    b.checks.append((found, Check(kind, f"{_name(b)}: {message}", user_line(b.location), b.source)))


def _name(b: ImportBuilder) -> str:
    """The operator as torch's users know it."""
    return str(b.node.target).removeprefix("aten.").partition(".")[0]


def combined(b: ImportBuilder, first: int = 1) -> tuple[SSAValue | None, tuple[Check, ...]]:
    """The number of the last condition that holds, counted from `first`, and 0 if none does."""
    stated = [(found, check) for found, check in b.checks if b.exists(found)]
    code: SSAValue | None = None
    for number, (found, _) in enumerate(stated, first):
        b.location = found.owner.location if isinstance(found, OpResult) else None
        this = b.emit("where", b.to(found, boolean), b.number(number, i64), b.number(0, i64))
        code = this if code is None else b.emit("maximum", code, this)
    return code, tuple(check for _, check in stated)


def state_again(b: ImportBuilder, code: SSAValue, checks: Sequence[Check]) -> None:
    """State around a region what its ops have found: they made a number of it, which the region gave."""
    for number, check in enumerate(checks, 1):
        b.checks.append((b.emit("eq", code, b.number(number, i64)), check))


def is_of_data(check: Check) -> bool:
    """Whether a check is of what a program is given; those that the user's kernels make are theirs to wait for."""
    return check.kind != "assert"


def failure(checks: Sequence[Check], code: int) -> WeftError:
    """The error that a program's number stands for."""
    check = checks[code - 1]
    return _KINDS[check.kind](check.message, location=check.line)
