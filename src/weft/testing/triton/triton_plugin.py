"""The pytest plugin under which `weft conform triton` runs the tests of a Triton checkout, which stays as it is.

In each worker: `triton` is Weft, the checkout's own testing module is found, code that tests make with `exec` keeps its
text, only tests that upstream marks for its interpreter run, and each has a time limit. In the controlling process:
every verdict is written as a JSON line for `triton_conformance` to read.
"""

# pytest's plugin machinery is not fully typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import builtins
import importlib.util
import itertools
import json
import linecache
import os
import sys
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from weft.testing.triton.pytest_verdicts import cause_of, first_line, time_limited

CHECKOUT, LOG, LIMIT, ALL = "WEFT_CONFORM_FROM", "WEFT_CONFORM_LOG", "WEFT_CONFORM_LIMIT", "WEFT_CONFORM_ALL"
_MARK = "interpreter"

_parts = itertools.count()


def _write(line: dict[str, Any]) -> None:
    with open(os.environ[LOG], "a", encoding="utf-8") as log:
        log.write(json.dumps(line) + "\n")


def _is_worker(config: Any) -> bool:
    return hasattr(config, "workerinput")


def _worker_name(config: Any) -> str:
    return config.workerinput["workerid"] if _is_worker(config) else "gw0"


def pytest_configure(config: Any) -> None:
    import weft.triton

    weft.triton.enable()
    path = Path(os.environ[CHECKOUT]) / "python" / "triton" / "_internal_testing.py"
    spec = importlib.util.spec_from_file_location("triton._internal_testing", path)
    if spec is not None and spec.loader is not None and path.is_file():
        module = importlib.util.module_from_spec(spec)
        sys.modules["triton._internal_testing"] = module
        spec.loader.exec_module(module)
    builtins.exec = _exec_with_text


_exec = builtins.exec


def _exec_with_text(source: Any, *scopes: Any, **more: Any) -> None:
    """`exec`, but text is kept where `inspect` finds it: a kernel made so can be compiled."""
    if isinstance(source, str):
        caller = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        if not scopes:
            scopes = (caller.f_globals, caller.f_locals)
        name = f"<made by a test {os.getpid()}-{next(_parts)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        source = compile(source, name, "exec")
    _exec(source, *scopes, **more)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    marked = [item for item in items if item.get_closest_marker(_MARK) is not None]
    others = [item for item in items if item.get_closest_marker(_MARK) is None]
    if _worker_name(config) == "gw0":
        functions = Counter(item.nodeid.partition("[")[0] for item in others)
        _write({"marked": len(marked), "others": dict(functions)})
    if not os.environ.get(ALL):
        items[:] = marked
        config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Generator[None, Any, Any]:
    with time_limited(float(os.environ[LIMIT])):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    report = yield
    report.user_properties.append((_MARK, item.get_closest_marker(_MARK) is not None))
    return report


_reported: set[str] = set()


def pytest_runtest_logreport(report: Any) -> None:
    """Write the verdict; with workers this is called in the controlling process for all of them."""
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    if report.passed and report.when != "call":
        return
    if report.nodeid in _reported:
        return
    _reported.add(report.nodeid)
    properties = dict(report.user_properties)
    _write(
        {
            "test": report.nodeid,
            "outcome": report.outcome,
            "marked": bool(properties.get(_MARK, True)),
            "cause": None if report.passed else cause_of(report),
            "seconds": round(report.duration, 3),
        }
    )


def pytest_collectreport(report: Any) -> None:
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER") and report.nodeid not in _reported:
        _reported.add(report.nodeid)
        _write({"module": report.nodeid, "cause": first_line(str(report.longrepr).strip().splitlines()[-1])})
