"""What a target's compiler hands to its loader, and the disk cache keeps: known without the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from weft.lower.steps import Plan
from weft.ops.graph import FuncOp
from weft.runtime.record import CompilationRecord

Code = TypeVar("Code", covariant=True)
"""What a backend makes: an object file, kernels of a GPU, or whatever another target's has."""


@dataclass(frozen=True)
class Compiled(Generic[Code]):
    """A plan with its object or device code, and the function that prepares its constants, whose text the plan has
    too."""

    plan: Plan
    code: Code
    report: CompilationRecord
    prepare: FuncOp | None = None
    inputs: tuple[str, ...] = ()
    """The names of the function's arguments."""
