"""The pytest plugin under which `weft conform kernels` runs the tests of a library of Triton kernels.

`triton` is Weft, or Triton itself where the run says so. Each test has a time limit, and every verdict is written as a
JSON line for `kernel_libraries` to read: before a test begins, and when it has ended, so that a test that takes the
process with it is known. On a machine without a GPU, tensors that a test asks for on `cuda` are made on the CPU.
"""

# pytest's plugin machinery and torch's modes are not fully typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

import pytest

from weft.testing.triton.pytest_verdicts import cause_of, first_line, is_wrong_result, message_of, time_limited

LOG, LIMIT, DEVICE, SIDE, END = (f"WEFT_CONFORM_KERNELS_{name}" for name in ("LOG", "LIMIT", "DEVICE", "SIDE", "END"))
"""Names in the environment: where verdicts go, seconds for a test, the device, whose kernels, when to begin no more."""

_ENDED = 77
"""The exit status of a process whose GPU context is beyond repair."""


def _write(line: dict[str, Any]) -> None:
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Before a library's own conftest, which may import its kernels."""
    if os.environ[SIDE] == "weft":
        import weft.triton

        weft.triton.enable()
    if os.environ[DEVICE] == "cpu":
        stay_on_cpu()


@pytest.hookimpl(trylast=True)  # after those that select tests by name
def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    if config.option.collectonly:
        _write({"collected": [item.nodeid for item in items]})


def pytest_collectreport(report: Any) -> None:
    if report.failed:
        _write({"module": report.nodeid, "cause": first_line(str(report.longrepr).strip().splitlines()[-1])})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    if time.time() > float(os.environ[END]):
        item.session.shouldstop = "no time is left"
        return (yield)
    _write({"begun": item.nodeid})
    with time_limited(float(os.environ[LIMIT])):
        return (yield)


def pytest_runtest_logreport(report: Any) -> None:
    if report.passed and report.when != "call":
        return
    message = "" if report.passed else message_of(report)
    verdict = "right" if report.passed else "skipped" if report.skipped else "error"
    if verdict == "error" and is_wrong_result(message):
        verdict = "wrong"
    cause = None if report.passed else cause_of(report)
    seconds = round(report.duration, 3)
    _write({"test": report.nodeid, "verdict": verdict, "cause": cause, "message": message[:2000], "seconds": seconds})
    if verdict == "error" and not _device_answers():
        os._exit(_ENDED)  # what follows would fail for the same reason


def _device_answers() -> bool:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


# -- without a GPU -------------------------------------------------------------------------------------------------


def stay_on_cpu() -> None:
    """Have torch make on the CPU what is asked for on a GPU, for good."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self, func: Callable[..., Any], types: Iterable[Any], args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.cuda:
                return args[0]
            return func(*map(placed, args), **{name: placed(value) for name, value in (kwargs or {}).items()})

    def placed(value: Any) -> Any:
        if isinstance(value, str):
            return "cpu" if value.split(":")[0] == "cuda" else value
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == "cuda" else value

    OnCpu().__enter__()
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.current_device = lambda: 0
    torch.nn.Module.cuda = lambda self, device=None: self


def real_triton() -> bool:
    """Whether Triton itself is installed."""
    return importlib.util.find_spec("triton") is not None
