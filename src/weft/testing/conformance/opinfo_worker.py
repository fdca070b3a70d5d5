"""The child process of a conformance run, and the handle by which the parent drives it.

When a child dies, the case it was at gets the blame, and a new child goes on with the next.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from weft.errors import WeftError
from weft.testing.child import START_LIMIT, Answer, Child, serve_requests
from weft.testing.conformance.opinfo_units import CaseResult, CaseSettings, Unit


class OpinfoWorker(Child):
    """A child that judges a unit on request."""

    def __init__(self, settings: CaseSettings, time_limit: float) -> None:
        super().__init__("weft.testing.conformance.opinfo_worker", asdict(settings))
        self._samples = settings.samples
        self._time_limit = time_limit

    def units(self, dtypes: tuple[str, ...], names: tuple[str, ...] | None) -> list[Unit]:
        """The operators to run: only the child loads PyTorch's database, which takes seconds."""
        return [Unit(**unit) for unit in self._listed("units", [dtypes, names])]

    def names(self) -> list[str]:
        """The names that operators go by."""
        return self._listed("names", True)

    def _listed(self, what: str, details: Any) -> list[Any]:
        self.send({what: details})
        answer = self.receive(START_LIMIT)
        if answer is None:
            raise WeftError(f"the operators of PyTorch's database could not be listed: {self.epitaph(START_LIMIT)}")
        return answer[what]

    def judge(self, unit: Unit) -> Iterator[CaseResult]:
        """The verdicts on a unit's samples, as they come; a sample that ends the process is an error."""
        first = 0
        while first < self._samples:
            self.send({"unit": asdict(unit), "first": first})
            while (answer := self.receive(self._time_limit)) is not None:
                if "done" in answer:
                    return
                broken = answer.pop("broken", False)
                yield (result := CaseResult.from_json(answer))
                first = result.sample + 1
                if broken:  # a GPU's context, and only a new process gets another
                    self.stop()
                    break
            else:
                yield CaseResult(unit.op, unit.dtype, first, "error", self.epitaph(self._time_limit))
                first += 1


def operator_names(operators: Sequence[Any]) -> list[str]:
    """The names of operators, with and without their variants."""
    return sorted({name for op in operators for name in (op.name, op.formatted_name)})


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    import torch

    from weft.testing.conformance import opinfo_cases, opinfo_units
    from weft.testing.devices import is_usable

    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    # Results are held against float64: a GPU's shortened products would fail there for eager as well.
    torch.backends.cudnn.allow_tf32 = False
    chosen = CaseSettings(**settings)
    opinfo_units.operators()
    opinfo_cases.identity_backend()

    def handle(request: dict[str, Any], answer: Answer) -> None:
        if "names" in request:
            answer({"names": operator_names(opinfo_units.operators())})
            return
        if "units" in request:
            found = opinfo_units.units(*request["units"], device=chosen.device)
            answer({"units": [asdict(unit) for unit in found]})
            return
        for result in opinfo_cases.judge_unit(Unit(**request["unit"]), chosen, request["first"]):
            if not is_usable(chosen.device):
                answer({**result.to_json(), "broken": True})
                os._exit(0)  # what torch would tidy up in such a context fails
            answer(result.to_json())
        answer({"done": True})

    return handle


if __name__ == "__main__":
    serve_requests(_prepare)
