"""How a result is judged against eager and a float64 oracle: used by the conformance runs, the model tests and users.

The rule of the project: the error against float64 is at most the larger of twice eager's and 2 ulp of the dtype. It is
counted per tensor, as the largest absolute difference over the largest magnitude of the reference, so that one ulp is
the epsilon of the dtype. NaN and infinities stand where eager has them; integers and booleans are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.utils._pytree as pytree
from torch import Tensor

Verdict = Literal["equal", "within", "wrong"]

# rtol and atol of torch.testing.assert_close; a dtype that is not here must be equal.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}

# Below this share of the largest leaf, a float64 result is what rounding left of a zero.
ROUNDING_OF_FLOAT64 = 1e-13


@dataclass(frozen=True, slots=True)
class TensorComparison:
    """The verdict on one leaf; errors are relative to the largest magnitude of the reference."""

    path: str
    verdict: Verdict
    reason: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    error: float = 0.0
    eager_error: float = 0.0
    bound: float = 0.0

    @property
    def ok(self) -> bool:
        return self.verdict != "wrong"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict on a whole result: right only when each of its leaves is."""

    leaves: tuple[TensorComparison, ...]

    @property
    def ok(self) -> bool:
        return all(leaf.ok for leaf in self.leaves)

    @property
    def wrong(self) -> tuple[TensorComparison, ...]:
        return tuple(leaf for leaf in self.leaves if not leaf.ok)

    @property
    def within_only_together(self) -> tuple[TensorComparison, ...]:
        """The leaves beyond their own bound, right only as part of the whole."""
        return tuple(leaf for leaf in self.leaves if leaf.ok and leaf.reason)

    @property
    def error(self) -> float:
        """The largest error of any leaf."""
        return max((leaf.error for leaf in self.leaves), default=0.0)

    @property
    def eager_error(self) -> float:
        """The largest error of eager in any leaf."""
        return max((leaf.eager_error for leaf in self.leaves), default=0.0)

    @property
    def worst(self) -> TensorComparison | None:
        """The leaf that comes nearest to its bound, or is farthest beyond it; None when there are no leaves."""
        return max(self.leaves, key=lambda leaf: (not leaf.ok, _fraction_of_bound(leaf)), default=None)

    def __str__(self) -> str:
        if self.ok:
            aside = f" ({n} beyond their own bound)" if (n := len(self.within_only_together)) else ""
            return f"{len(self.leaves)} tensors right{aside}, error {self.error:.2e}, eager's {self.eager_error:.2e}"
        lines = [f"{len(self.wrong)} of {len(self.leaves)} tensors wrong"]
        lines += [
            f"  {leaf.path or '(result)'} {leaf.dtype}{list(leaf.shape)}: {leaf.reason}" for leaf in self.wrong[:10]
        ]
        return "\n".join(lines)


def widen(tree: Any, dtype: torch.dtype = torch.float64) -> Any:
    """The same pytree with floating tensors of a wider type, complex ones of two such; the copies carry no graph."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        wide = dtype.to_complex() if value.is_complex() else dtype if value.is_floating_point() else value.dtype
        return value.detach().to(wide).clone().requires_grad_(value.requires_grad)

    return pytree.tree_map(leaf, tree)


def error_vs_float64(actual: Tensor, reference64: Tensor, scale: float | None = None) -> float:
    """Largest absolute error over the largest magnitude of the reference, at the positions where both are finite.

    `scale` replaces that magnitude. A reference that is zero everywhere has none: the error is then absolute.
    """
    mine, wide = _real64(actual), _real64(reference64)
    both = torch.isfinite(mine) & torch.isfinite(wide)
    if not bool(both.any()):
        return 0.0
    difference = (mine - wide).abs()[both].max().item()
    return difference / (scale or magnitude(wide) or 1.0)


def scale_of(reference64: Tensor, largest: float) -> float:
    """By what errors of a leaf are measured: its largest magnitude, or that of the largest leaf where float64 shows it
    to be zero but for rounding."""
    own = magnitude(reference64)
    return largest if own < ROUNDING_OF_FLOAT64 * largest else own


def compare(
    actual: Any, eager: Any, reference64: Any, *, factor: float = 2.0, ulps: float = 2.0, together: bool = False
) -> Comparison:
    """Judge `actual` by the rule above; the three are pytrees of one structure, `reference64` the float64 oracle's.

    An oracle leaf that is no tensor of the same shape (an op which chose otherwise in float64) cannot judge: such a
    leaf, and every leaf that is not floating-point, must be equal to eager's. A leaf that float64 shows to be zero but
    for rounding (the gradient of a key's bias under softmax) has only noise to scale by: it is judged on the scale of
    the largest leaf. With `together`, eager's error is the largest over the leaves: among a hundred gradients there is
    always one where eager was lucky.
    """
    rows, structure = _aligned(actual, eager)
    if structure is not None:
        return Comparison((structure,))
    wide = pytree.tree_leaves(reference64)
    if len(wide) != len(rows):
        raise ValueError(f"the oracle has {len(wide)} leaves, the result {len(rows)}: give it the same computation")
    largest = max((magnitude(leaf) for leaf in wide if _is_inexact(leaf)), default=0.0)
    rule = _Rule(factor, ulps, largest)
    leaves = tuple(_by_oracle(*row, oracle, rule) for row, oracle in zip(rows, wide, strict=True))
    return Comparison(_judged_together(leaves, factor) if together else leaves)


def compare_close(actual: Any, eager: Any, *, rtol: float | None = None, atol: float | None = None) -> Comparison:
    """Judge `actual` against eager alone with torch.testing's tolerances: for when float64 cannot be evaluated."""
    rows, structure = _aligned(actual, eager)
    if structure is not None:
        return Comparison((structure,))
    return Comparison(tuple(_by_tolerance(path, mine, theirs, rtol, atol) for path, mine, theirs in rows))


def _aligned(actual: Any, eager: Any) -> tuple[Sequence[tuple[str, Any, Any]], TensorComparison | None]:
    mine, my_structure = pytree.tree_flatten_with_path(actual)
    theirs, their_structure = pytree.tree_flatten_with_path(eager)
    if my_structure != their_structure:
        return (), TensorComparison("", "wrong", f"structure {my_structure}, eager's is {their_structure}")
    return [(pytree.keystr(path), value, other) for (path, value), (_, other) in zip(mine, theirs, strict=True)], None


@dataclass(frozen=True, slots=True)
class _Rule:
    factor: float
    ulps: float
    largest: float


def _by_oracle(path: str, mine: Any, theirs: Any, oracle: Any, rule: _Rule) -> TensorComparison:
    early = _settled_without_arithmetic(path, mine, theirs)
    comparable = _is_inexact(mine) and _is_inexact(oracle) and oracle.shape == mine.shape
    if early is not None and not (early.ok and comparable and mine.layout == torch.strided):
        return early
    if not comparable:
        return _by_tolerance(path, mine, theirs, 0.0, 0.0)
    unit, dtype = torch.finfo(mine.dtype).eps, _dtype(mine)
    mine, theirs = _widened(mine), _widened(theirs)
    # Where eager is not finite the patterns have been compared already. Where only the oracle is not, it cannot judge.
    judged, unjudged = torch.isfinite(theirs) & torch.isfinite(oracle), torch.isfinite(theirs) & ~torch.isfinite(oracle)
    rest = _by_tolerance(path, mine[unjudged], theirs[unjudged], None, None)
    if not rest.ok:
        return replace(rest, shape=tuple(mine.shape), error=math.inf)
    scale = scale_of(oracle[judged], rule.largest)
    error = error_vs_float64(mine[judged], oracle[judged], scale)
    eager_error = error_vs_float64(theirs[judged], oracle[judged], scale)
    bound = max(rule.factor * eager_error, rule.ulps * unit)
    found = TensorComparison(path, "within", "", dtype, tuple(mine.shape), error, eager_error, bound)
    if early is not None:
        return replace(found, verdict="equal")
    if error <= bound:
        return found
    reason = f"error {error:.2e} against float64, eager's {eager_error:.2e}, allowed {bound:.2e}"
    return replace(found, verdict="wrong", reason=reason)


def _judged_together(leaves: tuple[TensorComparison, ...], factor: float) -> tuple[TensorComparison, ...]:
    bound = factor * max((leaf.eager_error for leaf in leaves), default=0.0)
    return tuple(
        replace(leaf, verdict="within", bound=bound) if not leaf.ok and leaf.error <= bound else leaf for leaf in leaves
    )


def _by_tolerance(path: str, mine: Any, theirs: Any, rtol: float | None, atol: float | None) -> TensorComparison:
    early = _settled_without_arithmetic(path, mine, theirs)
    if early is not None:
        return early
    default_rtol, default_atol = TOLERANCES.get(mine.dtype, (0.0, 0.0))
    rtol, atol = default_rtol if rtol is None else rtol, default_atol if atol is None else atol
    a, b = _real64(mine), _real64(theirs)
    finite = torch.isfinite(b)
    a, b = a[finite], b[finite]
    if a.numel() == 0:
        return TensorComparison(path, "equal", dtype=_dtype(mine), shape=tuple(mine.shape))
    excess = ((a - b).abs() - (atol + rtol * b.abs())).max().item()
    error = error_vs_float64(a, b)
    verdict: Verdict = "within" if excess <= 0 else "wrong"
    reason = (
        ""
        if verdict == "within"
        else f"differs from eager by {error:.2e}, {excess:.2e} beyond rtol {rtol:g}, atol {atol:g}"
    )
    return TensorComparison(path, verdict, reason, _dtype(mine), tuple(mine.shape), error, 0.0, rtol)


def _settled_without_arithmetic(path: str, mine: Any, theirs: Any) -> TensorComparison | None:
    """The verdict on leaves which differ in kind, are equal, or must be; None when only arithmetic can tell."""
    if not isinstance(mine, Tensor) or not isinstance(theirs, Tensor):
        return _settled_values(path, mine, theirs)
    dtype, shape = _dtype(mine), tuple(mine.shape)

    def wrong(reason: str) -> TensorComparison:
        return TensorComparison(path, "wrong", reason, dtype, shape, math.inf, 0.0, 0.0)

    if mine.dtype != theirs.dtype:
        return wrong(f"dtype {dtype}, eager's is {_dtype(theirs)}")
    if mine.shape != theirs.shape:
        return wrong(f"shape {list(mine.shape)}, eager's is {list(theirs.shape)}")
    if mine.layout != theirs.layout:
        return wrong(f"layout {mine.layout}, eager's is {theirs.layout}")
    if mine.layout != torch.strided or mine.is_quantized:
        return (
            TensorComparison(path, "equal", "", dtype, shape)
            if _same_by_torch(mine, theirs)
            else wrong("not close to eager's")
        )
    if _identical(mine, theirs):
        return TensorComparison(path, "equal", "", dtype, shape)
    if not (mine.is_floating_point() or mine.is_complex()):
        return wrong(f"{int((mine != theirs).sum())} of {mine.numel()} elements differ from eager's")
    return _settled_patterns(wrong, mine, theirs)


def _settled_patterns(wrong: Any, mine: Tensor, theirs: Tensor) -> TensorComparison | None:
    a, b = _real64(mine), _real64(theirs)
    for name, test in (("NaN", torch.isnan), ("+inf", torch.isposinf), ("-inf", torch.isneginf)):
        unlike = int((test(a) != test(b)).sum())
        if unlike:
            return wrong(
                f"{name} at {int(test(a).sum())} places, eager has it at {int(test(b).sum())}; {unlike} places differ"
            )
    return None


def _settled_values(path: str, mine: Any, theirs: Any) -> TensorComparison:
    if type(mine) is not type(theirs):
        return TensorComparison(
            path, "wrong", f"{type(mine).__name__}, eager's is {type(theirs).__name__}", error=math.inf
        )
    if isinstance(mine, float | complex):
        same = _same_by_torch(mine, theirs)
    else:
        same = bool(mine == theirs)
    return (
        TensorComparison(path, "equal")
        if same
        else TensorComparison(path, "wrong", f"{mine!r}, eager's is {theirs!r}", error=math.inf)
    )


def _identical(mine: Tensor, theirs: Tensor) -> bool:
    if mine.dtype == torch.complex32:  # torch cannot compare it
        mine, theirs = mine.to(torch.complex64), theirs.to(torch.complex64)
    return torch.equal(_widened(mine), _widened(theirs))


def _widened(tensor: Tensor) -> Tensor:
    """Floats of 8 bits as f32: torch does next to nothing with them as they are."""
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _same_by_torch(mine: Any, theirs: Any) -> bool:
    try:
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    except AssertionError:
        return False
    return True


def _is_inexact(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def magnitude(tensor: Tensor) -> float:
    """The largest finite absolute value; 0 when there is none."""
    if tensor.layout != torch.strided:
        return 0.0
    flat = _real64(tensor).abs().flatten()
    flat = flat[torch.isfinite(flat)]
    return flat.max().item() if flat.numel() else 0.0


def _real64(tensor: Tensor) -> Tensor:
    """A detached float64 view of the numbers; a complex tensor becomes pairs."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(plain.to(torch.complex128)) if plain.is_complex() else plain.to(torch.float64)


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _fraction_of_bound(leaf: TensorComparison) -> float:
    return leaf.error / leaf.bound if leaf.bound > 0 else leaf.error
