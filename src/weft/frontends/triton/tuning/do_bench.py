"""`do_bench`: how long a function takes, in milliseconds; `assert_close`: whether two results agree."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.frontends.triton.target import Cuda, driver

_EVICTING_BYTES = 1 << 26
_ESTIMATES = 3


class BenchmarkError(WeftError, ValueError):
    """A measurement that cannot be made as asked."""


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Iterable[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
    *,
    cold: bool = False,
) -> Any:
    """Milliseconds that a call takes, measured for `rep` milliseconds after `warmup` milliseconds of calls.

    `return_mode` is mean, median, min, max or all; `quantiles` gives these instead. With `cold`, caches are emptied
    before each call, as Triton does on a GPU; without, data that fits stays in them, as in a program that uses it.
    """
    modes: dict[str, Callable[[list[float]], Any]] = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "min": min,
        "max": max,
        "all": list,
    }
    if return_mode not in modes:
        raise BenchmarkError(f"there is no return_mode {return_mode}", hint=f"there are {', '.join(modes)}")
    device = driver.active
    timed: Callable[[list[Any] | None], float]
    if isinstance(device, Cuda):
        cache = device.get_empty_cache_for_benchmark()
        timed = partial(_timed_on_gpu, device, fn, cache)
    else:
        timed = partial(_timed, fn, np.zeros(_EVICTING_BYTES if cold else 0, np.int8))
    fn()
    estimate = min(timed(None) for _ in range(_ESTIMATES))
    for _ in range(max(1, int(warmup / estimate))):
        fn()
    clear = list(grad_to_none) if grad_to_none is not None else None
    times = [timed(clear) for _ in range(max(1, int(rep / estimate)))]
    if quantiles is not None:
        found = [_quantile(times, q) for q in quantiles]
        return found[0] if len(found) == 1 else found
    return modes[return_mode](times)


def do_bench_cudagraph(
    fn: Callable[[], Any],
    rep: float = 20,
    grad_to_none: Iterable[Any] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """`do_bench`: on a CPU there is no graph of launches to record."""
    return do_bench(fn, rep=rep, grad_to_none=grad_to_none, quantiles=quantiles, return_mode=return_mode)


def _timed_on_gpu(device: Cuda, fn: Callable[[], Any], cache: Any, clear: list[Any] | None) -> float:
    """What the GPU takes, with its cache emptied before, as Triton measures."""
    events = device.get_device_interface()
    start, stop = events.Event(enable_timing=True), events.Event(enable_timing=True)
    for tensor in clear or ():
        tensor.grad = None
    device.clear_cache(cache)
    start.record()
    fn()
    stop.record()
    events.synchronize()
    return max(start.elapsed_time(stop), 1e-6)


def _timed(fn: Callable[[], Any], evicting: np.ndarray, clear: list[Any] | None) -> float:
    for tensor in clear or ():
        tensor.grad = None
    if evicting.size:
        evicting += 1
    start = time.perf_counter_ns()
    fn()
    return max(time.perf_counter_ns() - start, 1) / 1e6


def _quantile(times: Sequence[float], q: float) -> float:
    if not 0 <= q <= 1:
        raise BenchmarkError(f"a quantile is between 0 and 1, not {q}")
    ordered = sorted(times)
    place = q * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def assert_close(x: Any, y: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """Raise AssertionError unless two tensors, arrays or numbers agree within tolerances (1e-2 absolute, 0 relative).

    A tolerance may be a function of the element type.
    """
    kind = getattr(x, "dtype", None)
    absolute, relative = _tolerance(atol, kind, 1e-2), _tolerance(rtol, kind, 0.0)
    np.testing.assert_allclose(_array(x), _array(y), atol=absolute, rtol=relative, equal_nan=True, err_msg=err_msg)


def _tolerance(given: Any, kind: Any, default: float) -> float:
    value: Any = given(kind) if callable(given) else given
    return default if value is None else value


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        return value.numpy()
    return np.asarray(value)
