"""A part of many alike cases in `make test`, the others in `make test-slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """The cases as parameters, all but every `step`-th of them marked slow."""
    return [
        case if number % step == 0 else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases)
    ]
