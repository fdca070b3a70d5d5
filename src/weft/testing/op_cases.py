"""The samples of the op registry as groups to lower and run, and the rule that judges what comes out.

The rule is the project's: the error against float64, counted in the largest magnitude, is at most the larger of twice
the NumPy reference's and 2 ulp. Nothing here is wider than f64, so that there the reference is held against 16 ulp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DTypeError
from weft.ir.expr import Size, symbol
from weft.ir.types import DType, Tensor, dtype_of_numpy, f64
from weft.lower.machine import CPU, Machine
from weft.ops.base import OpSpec
from weft.ops.graph import GraphBuilder
from weft.ops.samples import Sample
from weft.testing.kernels import Trial, group_of

_SEED = 20


@dataclass(frozen=True)
class OpCase:
    """One sample of an op in one element type; `dynamic` makes every size but 0 and 1 a symbol."""

    spec: OpSpec
    number: int
    dtype: DType
    dynamic: bool = False

    @property
    def name(self) -> str:
        return f"{self.spec.name}_{self.number}_{self.dtype.name}{'_dynamic' if self.dynamic else ''}"

    @property
    def sample(self) -> Sample:
        return self.spec.samples[self.number]

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(_SEED)
        return [source.array(rng, self.dtype) for source in self.sample.inputs]

    @property
    def symbols(self) -> dict[str, int]:
        return {f"s{size}": size for array in self.arrays() for size in array.shape if size > 1} if self.dynamic else {}

    def trial(self, machine: Machine = CPU) -> Trial:
        """The op alone in a group, lowered. Raises what the type rule raises where it needs to know the sizes."""
        tensors = [Tensor(dtype_of_numpy(a.dtype), tuple(map(self._size, a.shape))) for a in self.arrays()]

        def body(b: GraphBuilder, *operands: SSAValue) -> Any:
            return b.emit(self.spec.name, *operands, **self.sample.params)

        return Trial.of(group_of(tensors, body), self.name, machine)

    def _size(self, size: int) -> Size:
        return symbol(f"s{size}") if self.dynamic and size > 1 else size

    def reference(self) -> tuple[np.ndarray, ...]:
        return _run(self.spec, self.arrays(), self.sample)

    def oracle(self) -> tuple[np.ndarray, ...] | None:
        """The results computed in float64, if the op has them."""
        if not self.dtype.is_float or self.dtype == f64:
            return None
        under_test = [source.dtype is None for source in self.sample.inputs]
        wide = [a.astype(np.float64) if flag else a for a, flag in zip(self.arrays(), under_test, strict=True)]
        try:
            self.spec.cls.infer(*(Tensor(dtype_of_numpy(a.dtype), a.shape) for a in wide), **self.sample.params)
        except DTypeError:
            return None
        return _run(self.spec, wide, self.sample)

    def complaint(self, actual: Sequence[np.ndarray]) -> str:
        """What is wrong with the results; empty if nothing is."""
        reference = self.reference()
        oracles = self.oracle() or reference
        found = [judge(*row) for row in zip(actual, reference, oracles, strict=True)]
        return "; ".join(f"{self.name}, result {i}: {text}" for i, text in enumerate(found) if text)


def _run(spec: OpSpec, arrays: Sequence[np.ndarray], sample: Sample) -> tuple[np.ndarray, ...]:
    rule: Any = spec.cls
    with np.errstate(all="ignore"):
        results = rule.reference(*arrays, **sample.params)
    return cast("tuple[np.ndarray, ...]", results) if isinstance(results, tuple) else (np.asarray(results),)


def op_cases(spec: OpSpec, dynamic: bool = False) -> list[OpCase]:
    """Every sample of an op, in its first element type and in one more, another one for each sample."""
    cases: list[OpCase] = []
    for number, sample in enumerate(spec.samples):
        first, *others = sample.dtypes
        chosen = [first, others[number % len(others)]] if others else [first]
        cases += [OpCase(spec, number, dtype, dynamic) for dtype in chosen]
    return cases


def judge(actual: np.ndarray, reference: np.ndarray, oracle: np.ndarray) -> str:
    """What is wrong with one result; empty if nothing is. The oracle is the reference where float64 has no better."""
    if (actual.dtype, actual.shape) != (reference.dtype, reference.shape):
        return f"{actual.dtype}{actual.shape} instead of {reference.dtype}{reference.shape}"
    if not dtype_of_numpy(actual.dtype).is_float:
        wrong = actual != reference
        return f"{int(wrong.sum())} of {wrong.size} differ" if wrong.any() else ""
    a, r, o = (x.astype(np.float64) for x in (actual, reference, oracle))
    finite = np.isfinite(r)
    if not np.array_equal(a[~finite], r[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return "infinities and NaN stand elsewhere"
    judged = finite & np.isfinite(o)
    scale = float(np.abs(o[judged]).max(initial=0)) or 1.0
    epsilon = float(cast(Any, ml_dtypes.finfo(actual.dtype)).eps)
    error, allowed = (float(np.abs(x[judged] - o[judged]).max(initial=0)) / scale / epsilon for x in (a, r))
    bound = 16.0 if oracle is reference else max(2.0, 2 * allowed)
    return "" if error <= bound else f"error of {error:.3g} ulp, {bound:.3g} are allowed"
