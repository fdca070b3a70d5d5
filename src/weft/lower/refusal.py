"""Why a group is not lowered as it is: what a lowering answers in place of kernels, and `weft explain` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from weft.errors import LoweringError

T = TypeVar("T")


@dataclass(frozen=True)
class Refusal:
    """A lowering's answer to a group that it has no kernels for, known before any code is made.

    The planner then cuts the group into its ops. An error, in contrast, says that something has gone wrong.
    """

    reason: str


def accepted(answer: T | Refusal) -> T:
    """What a lowering gave, where there is nothing else to be tried."""
    if isinstance(answer, Refusal):
        raise LoweringError(answer.reason)
    return answer
