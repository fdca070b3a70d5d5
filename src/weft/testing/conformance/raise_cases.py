"""Raise parity: eager raises if and only if the compiled program does, and what it refuses it leaves as it was.

PyTorch's `op_db` holds samples of every operator. Each is run as it is, and with one thing wrong at a time: an index
one past the end, below 0, or far out; a divisor of 0; a dimension without elements; one value too few; a mask of all or
nothing; a number that is 0, negative or large; and with what the database itself says is an error. A case runs in a
process of its own (`raise_child`), since eager does not check everything either.
"""

# torch's testing package has no types, and some of torch's own arguments have none.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.testing._internal.common_utils import DeterministicGuard

from weft.testing.conformance.opinfo_units import WITHOUT_VALUES, operators

SEED = 20
MOST_CASES = 40
"""Of one operator, in one element type."""
_FAR = 1 << 40
_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_ARITHMETIC = (
    *("floor_divide", "remainder", "fmod", "pow", "__rpow__", "__rmod__", "__rdiv__", "float_power", "true_divide"),
    *("div", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm", "addcdiv", "ldexp", "cumprod", "mean", "prod"),
)
"""Operators that divide, shift or raise integers."""
_PRECONDITIONS = (
    *("max", "min", "argmax", "argmin", "amax", "amin", "aminmax", "mode", "median", "kthvalue", "topk", "sort"),
    *("cat", "stack", "select", "narrow", "split", "chunk", "tensor_split", "unflatten", "roll", "diagonal", "unfold"),
    *("select_scatter", "slice_scatter", "diagonal_scatter", "nn.functional.interpolate", "nn.functional.pad"),
    *("nn.functional.max_pool1d", "nn.functional.max_pool2d", "nn.functional.avg_pool2d", "nn.functional.conv2d"),
    *("nn.functional.grid_sample", "nn.functional.pixel_shuffle", "linalg.cholesky", "cumsum", "logcumsumexp"),
)
"""Operators that look at sizes and numbers alone."""


@dataclass(frozen=True)
class RaiseCase:
    """A call with, perhaps, something wrong with it."""

    label: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves((self.arguments, self.keywords)) if isinstance(leaf, Tensor)]


@cache
def units() -> tuple[str, ...]:
    """The operators that index, divide or have a precondition, each with an element type behind its name."""
    found: list[str] = []
    for op in operators():
        if op.name in _ARITHMETIC:
            dtypes = [dtype for dtype in (torch.int64, torch.uint8) if dtype in op.supported_dtypes("cpu")]
        elif op.name in _PRECONDITIONS or _takes_places(op):
            dtypes = [torch.float32 if torch.float32 in op.supported_dtypes("cpu") else torch.int64]
        else:
            dtypes = []
        found += [f"{_name(op)} {str(dtype).removeprefix('torch.')}" for dtype in dtypes]
    return tuple(dict.fromkeys(found))


def _name(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


def _takes_places(op: Any) -> bool:
    """Whether a sample of floats has integers or a mask among its tensors."""
    if op.name.startswith(("sparse.", "_refs", "signal.", "linalg.")) or op.name in WITHOUT_VALUES:
        return False
    if torch.float32 not in op.supported_dtypes("cpu"):
        return op.name in ("bincount", "nn.functional.one_hot")
    for sample in itertools.islice(_samples(op, torch.float32), 2):
        leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        if any(isinstance(leaf, Tensor) and leaf.dtype in (*_INTEGERS, torch.bool) for leaf in leaves):
            return True
    return False


def _samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    torch.manual_seed(SEED)
    return iter(op.sample_inputs("cpu", dtype, requires_grad=False))


def cases(name: str, most: int = MOST_CASES) -> list[RaiseCase]:
    """The cases of one unit: those of a few samples, in turn, and the database's own errors."""
    called, _, type_name = name.rpartition(" ")
    op, dtype = next(op for op in operators() if _name(op) == called), getattr(torch, type_name)
    functions: list[tuple[str, Callable[..., Any]]] = [("", op.op)]
    if op.inplace_variant is not None:
        functions.append(("in place, ", op.inplace_variant))
    made: list[Iterator[RaiseCase]] = []
    for number, sample in enumerate(itertools.islice(_samples(op, dtype), 3)):
        arguments = (sample.input, *sample.args)
        for where, function in functions if number == 0 else functions[:1]:
            made.append(_variants(f"{where}sample {number}", function, arguments, sample.kwargs))
    if op.error_inputs_func is not None:
        made.append(_known_errors(op))
    in_turn = (case for several in itertools.zip_longest(*made) for case in several if case is not None)
    return list(itertools.islice(in_turn, most))


def _known_errors(op: Any) -> Iterator[RaiseCase]:
    torch.manual_seed(SEED)
    with DeterministicGuard(True, warn_only=True, fill_uninitialized_memory=True):  # some `out` is left unwritten
        errors = list(op.error_inputs("cpu"))
    for number, wrong in enumerate(errors):
        sample = wrong.sample_input
        yield RaiseCase(f"error {number}", op.op, (sample.input, *sample.args), sample.kwargs)


def _variants(label: str, function: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Iterator[RaiseCase]:
    """A call as it is, and with each thing about it wrong."""
    leaves, structure = pytree.tree_flatten((tuple(arguments), dict(keywords)))

    def changed(what: str, position: int, value: Any) -> RaiseCase:
        new = [value if place == position else leaf for place, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(new, structure)
        return RaiseCase(f"{label}, {what}", function, args, kwargs)

    args, kwargs = pytree.tree_unflatten(leaves, structure)
    yield RaiseCase(label, function, args, kwargs)
    sizes = sorted({size for leaf in leaves if isinstance(leaf, Tensor) for size in leaf.shape})
    streams = [
        (changed(f"argument {position} {what}", position, value) for what, value in _wrong(leaf, sizes))
        for position, leaf in enumerate(leaves)
    ]
    for several in itertools.zip_longest(*streams):
        yield from (case for case in several if case is not None)


def _wrong(leaf: Any, sizes: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """What can be wrong with one argument."""
    if isinstance(leaf, bool) or not isinstance(leaf, int | Tensor):
        return
    if isinstance(leaf, int):
        yield from ((f"is {number}", number) for number in (0, -1, 100) if number != leaf)
        return
    if leaf.dtype == torch.bool:
        yield "all false", torch.zeros_like(leaf)
        yield "all true", torch.ones_like(leaf)
    elif leaf.dtype in _INTEGERS and leaf.numel():
        limits = torch.iinfo(leaf.dtype)
        numbers = dict.fromkeys((-1, 0, *(n for size in reversed(sizes) for n in (size, -size - 1)), _FAR))
        for number in numbers:
            if limits.min <= number <= limits.max:
                wrong = leaf.clone(memory_format=torch.contiguous_format)
                wrong.view(-1)[-1] = number
                yield f"with {number} at its end", wrong
        yield "all 0", torch.zeros_like(leaf)
    for dim in range(leaf.dim()):
        yield f"without dimension {dim}", leaf.narrow(dim, 0, 0)
        if leaf.shape[dim] > 1:
            yield f"one short in dimension {dim}", leaf.narrow(dim, 0, leaf.shape[dim] - 1)


@dataclass(frozen=True)
class Outcome:
    """What became of a call: the error, or what it gave; and whether its tensors are as they were."""

    error: str | None
    values: Any = None
    kept: bool = True


def outcome(case: RaiseCase, backend: str | None) -> Outcome:
    """Call eager, or what a backend compiles; where that raises, arguments must be what they were before."""
    arguments, keywords = pytree.tree_map(_copied, (case.arguments, case.keywords))
    given = [leaf for leaf in pytree.tree_leaves((arguments, keywords)) if isinstance(leaf, Tensor)]
    before = [leaf.clone() for leaf in given]
    torch.manual_seed(SEED)
    function = case.function
    if backend is not None:
        torch.compiler.reset()
        options: dict[str, Any] = {"options": {"cache": False}} if backend == "weft" else {}
        function = torch.compile(lambda *a, **k: case.function(*a, **k), backend=backend, **options)
    try:
        values = function(*arguments, **keywords)
    except Exception as error:  # whatever eager raises is what is asked for
        text = str(error).strip().splitlines() or [""]
        return Outcome(f"{type(error).__name__}: {text[0][:120]}", kept=_same(given, before))
    return Outcome(None, values)


def _copied(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _same(given: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(given, before, strict=True))


def judged(case: RaiseCase, eager: Outcome) -> tuple[str, str]:
    """A word on a case, and what is to be said of it: "same", "torch" where aot_eager differs as Weft does, "wrong"."""
    ours = outcome(case, "weft")
    if not ours.kept:
        return "wrong", f"its arguments are changed, and then {ours.error}"
    if (ours.error is None) == (eager.error is None):
        return "same", ""
    plain = outcome(case, "aot_eager")
    word = "torch" if (plain.error is None) == (ours.error is None) else "wrong"
    return word, f"eager: {eager.error or 'nothing raised'}; compiled: {ours.error or 'nothing raised'}"
