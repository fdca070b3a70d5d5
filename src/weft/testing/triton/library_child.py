"""The child process of `weft bench libraries`: kernels of a library with Weft, or with Triton itself, as `triton`.

`first` builds a case and calls it forward and backward, compiling and tuning on the way; `time` measures it again.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from weft.testing.child import Answer, serve_requests

_FLUSHED_BYTES = 1 << 28
_FEW = 5
_WARM_UP_SHRINK = 128


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    sys.path[:0] = settings["paths"]
    if settings["side"] == "weft":
        import weft.triton

        weft.triton.enable()
    if settings["device"] == "cpu":
        from weft.testing.triton.library_plugin import stay_on_cpu

        stay_on_cpu()
    runner = _Runner(settings["device"], settings["shrink"])

    def handle(request: dict[str, Any], answer: Answer) -> None:
        try:
            found = runner.first(request["case"]) if request["do"] == "first" else runner.timed(request["seconds"])
            answer({"ok": True, **found})
        except Exception as error:  # whatever a library's function raises is the result of its case
            answer({"ok": False, "said": f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}"})

    return handle


class _Runner:
    def __init__(self, device: str, shrink: int) -> None:
        self.device, self.shrink = device, shrink
        self.warm: set[str] = set()

    def first(self, name: str) -> dict[str, Any]:
        """Seconds of the first calls, and what tells whether results are the same; loading a library does not count."""
        import torch

        from weft.testing.triton.library_cases import CASES, Draw, case_named

        case = case_named(name)
        if case.library not in self.warm:
            self.warm.add(case.library)
            small = next(each for each in CASES if each.library == case.library)
            other = Draw(self.device, _WARM_UP_SHRINK, torch.float32)  # another kernel than what is measured
            small.build(other)().sum().backward()
        draw = Draw(self.device, self.shrink)
        self.forward, self.leaves = case.build(draw), draw.leaves
        before = [leaf.detach().clone() for leaf in self.leaves]
        self._wait()
        start = time.perf_counter()
        self.out = self.forward()
        self._wait()
        middle = time.perf_counter()
        self.upstream = draw.like(self.out)
        gradients = self._backward()
        self._wait()
        seconds = [middle - start, time.perf_counter() - middle]
        sums = [_norm(each) for each in (self.out, *gradients)]
        with torch.no_grad():
            for leaf, values in zip(self.leaves, before, strict=True):  # some write gradients over arguments
                leaf.copy_(values)
        self.out = self.forward()
        return {"first": seconds, "norms": sums}

    def timed(self, seconds: float) -> dict[str, Any]:
        """Milliseconds of calls, forward and backward, each with the cache emptied."""
        return {"forward": self._measured(self.forward, seconds), "backward": self._measured(self._backward, seconds)}

    def _backward(self) -> Any:
        import torch

        return torch.autograd.grad(self.out, self.leaves, self.upstream, retain_graph=True, allow_unused=True)

    def _wait(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def _measured(self, call: Callable[[], Any], seconds: float) -> list[float]:
        end, times = time.perf_counter() + seconds, list[float]()
        while len(times) < _FEW or time.perf_counter() < end:
            times.append(self._once(call))
        return times

    def _once(self, call: Callable[[], Any]) -> float:
        if self.device != "cuda":
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e3
        import torch

        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda").zero_()
        begun.record()
        call()
        ended.record()
        ended.synchronize()
        return begun.elapsed_time(ended)


def _norm(tensor: Any) -> float:
    """A number that tells results apart; that of none is zero."""
    return 0.0 if tensor is None else float(tensor.detach().double().norm())


if __name__ == "__main__":
    serve_requests(_prepare)
