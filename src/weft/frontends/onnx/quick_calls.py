"""A call of a model that is one launch of one program: nothing is left but addresses, and a look at its verdict."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.frontends.onnx.checks import Verdict
from weft.frontends.onnx.steps import Step
from weft.runtime.launch_plan import LaunchPlan


class QuickCall:
    """A call with arrays of known types, shapes and strides."""

    def __init__(
        self, plan: LaunchPlan, arguments: tuple[int, ...], results: tuple[int, ...], verdict: Verdict | None
    ) -> None:
        self._plan = plan
        self._arguments = arguments
        self._results = results
        self._verdict = verdict

    @classmethod
    def of(cls, step: Step) -> QuickCall | None:
        """What is left of calls of a step that was just made; None where that is not little."""
        if step.made_results is None or not step.plans:
            return None
        return cls(step.plans[0], step.arguments, step.made_results, step.verdict)

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The results; None where the call has to be made in full."""
        made = self._plan([arrays[place] for place in self._arguments])
        if made is None:
            return None
        if self._verdict is not None:
            self._verdict.raise_if(int(made[self._verdict.place]))
        return [made[place] for place in self._results]
