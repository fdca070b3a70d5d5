"""Programs of Weft's own runtime as executables: arrays are lent to them, and sizes read from their shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic

from weft.backends.target import result_names
from weft.errors import GuardError
from weft.lower.steps import Plan
from weft.runtime.array_adapter import ArrayT
from weft.runtime.array_function import ArrayExecutor
from weft.runtime.overlap import kept_apart
from weft.runtime.signature import Signature, signature_of


@dataclass(frozen=True)
class PlanProgram(Generic[ArrayT]):
    """A loaded plan; a front end that has memory, threads and streams of its own brings an executor of its own."""

    plan: Plan
    executor: ArrayExecutor[ArrayT]
    inputs: tuple[str, ...] = ()

    @property
    def outputs(self) -> Sequence[str]:
        return result_names(len(self.plan.outputs))

    @cached_property
    def signature(self) -> Signature:
        """What the plan takes."""
        return signature_of(self.plan, self.inputs)

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> list[ArrayT]:
        signature, executor = self.signature, self.executor
        if len(arrays) != len(signature.names):
            raise GuardError(f"the program takes {len(signature.names)} arguments, got {len(arrays)}")
        taken: list[ArrayT] = []
        for place, value in enumerate(arrays):
            array, dtype = executor.borrow(value, place in signature.replaced)
            signature.check_type(place, dtype)
            taken.append(array)
        sizes = signature.sizes({place: executor.arrays.shape(array) for place, array in enumerate(taken)}, symbols)
        if missing := sorted(set(self.plan.symbols) - sizes.keys()):
            raise GuardError(f"no argument's shape tells the size {missing[0]}", hint="give its value in `symbols`")
        return executor(kept_apart(executor.arrays, taken, signature.replaced), sizes)
