"""Parts of a long run: `--shard i/n` takes every n-th test, `--resume FILE` leaves out what has passed already.

    pytest -m gpu --shard 0/2 --resume reports/test-gpu.jsonl

Random inputs are a test's own, the same in every run; `--seed N` draws others.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.seeds import sow
from weft.diagnostics import forget
from weft.testing.conformance.journal import Journal, commit, part

PASSED = pytest.StashKey[set[str]]()
JOURNAL = pytest.StashKey[Journal]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parts of a long run")
    group.addoption("--shard", default=None, help="every n-th test from the i-th on: i/n")
    group.addoption("--resume", default=None, type=Path, help="a file that knows which tests have passed")
    parser.addoption("--seed", default=0, type=int, help="random inputs of tests: others with another number")


def pytest_configure(config: pytest.Config) -> None:
    given: Any = getattr(config, "workerinput", None)
    if given is not None:  # a worker of xdist: all must choose alike, whatever is written meanwhile
        config.stash[PASSED] = set(given["weft_passed"])
        return
    config.stash[PASSED] = set()
    file = config.getoption("--resume")
    if file is not None:
        config.stash[JOURNAL] = journal = Journal(file, f"{commit()} seed {config.option.seed}")
        config.stash[PASSED] = set(journal.results())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["weft_passed"] = sorted(node.config.stash[PASSED])


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.option.seed}"


def pytest_collectstart(collector: pytest.Collector) -> None:
    if isinstance(collector, pytest.Module):  # what it draws as it is imported
        sow(collector.nodeid, collector.config.option.seed)


@pytest.hookimpl(tryfirst=True)  # before its fixtures draw any
def pytest_runtest_setup(item: pytest.Item) -> None:
    sow(item.nodeid, item.config.option.seed)


@pytest.fixture(autouse=True)
def _warnings_are_told_again() -> None:  # pyright: ignore[reportUnusedFunction]  pytest calls it
    forget()


@pytest.hookimpl(trylast=True)  # after `-m` and `-k`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard = config.getoption("--shard")
    passed = config.stash[PASSED]
    if shard is None and not passed:
        return
    index, _, count = (shard or "0/1").partition("/")
    mine = [item for item in part(items, (int(index), int(count))) if item.nodeid not in passed]
    config.hook.pytest_deselected(items=[item for item in items if item not in mine])
    items[:] = mine


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    journal = CONTROLLER.get("journal")
    if journal is None or not report.passed:
        return
    if report.when == "call":
        CALLED[report.nodeid] = report.duration
    elif report.when == "teardown" and report.nodeid in CALLED:
        # Not before its fixtures are gone: one that gives up privileges takes the right to write with them.
        journal.add(report.nodeid, {"seconds": CALLED.pop(report.nodeid)})


CALLED: dict[str, float] = {}
"""How long the tests took that have passed, but for their fixtures."""

CONTROLLER: dict[str, Journal] = {}
"""The journal of the process that gathers reports: the hook above is not told of the configuration."""


def pytest_sessionstart(session: pytest.Session) -> None:
    journal = session.config.stash.get(JOURNAL, None)
    if journal is not None:
        CONTROLLER["journal"] = journal
