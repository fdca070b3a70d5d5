"""Of processes that miss the same entry at the same time one makes it; none waits for ever for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from weft.forks import COMPILING
from weft.runtime.cache import DiskCache, cache_key
from weft.runtime.single_flight import SingleFlight

KEY = cache_key("one")
WORKER = """
import sys, time
from pathlib import Path
import weft
from weft.runtime.cache import DiskCache
root, key, log, seconds = sys.argv[1:]
cache = DiskCache(Path(root))
flight, found = cache.lead(key, lambda: cache.get(key))
with flight:
    if found is None:
        with open(log, "a") as file:
            print("made", file=file)
        time.sleep(float(seconds))
        cache.put(key, {"value": 7}, {})
        found = cache.get(key)
print(found.meta["value"])
"""


def start(root: Path, key: str = KEY, seconds: float = 0.5) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, str(root), key, str(root.parent / "log"), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def made(root: Path) -> int:
    log = root.parent / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def wait_until_made(root: Path, count: int) -> None:
    until = time.monotonic() + 60
    while made(root) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_one_of_many_processes_makes_an_entry(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    workers = [start(root) for _ in range(6)]
    assert [worker.communicate(timeout=600)[0].strip() for worker in workers] == ["7"] * 6
    assert made(root) == 1


def test_whoever_dies_is_followed_by_one_other(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    first = start(root, seconds=600)
    wait_until_made(root, 1)
    others = [start(root, seconds=0.2) for _ in range(3)]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert [worker.communicate(timeout=600)[0].strip() for worker in others] == ["7"] * 3
    assert made(root) == 2


def test_whoever_hangs_is_not_waited_for_for_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "cache"
    first = start(root, seconds=600)
    try:
        wait_until_made(root, 1)
        first.send_signal(signal.SIGSTOP)
        flights = SingleFlight(patience_s=0.4)
        waits: list[float] = []
        for _ in range(3):
            began = time.monotonic()
            flight, found = flights.lead(root, KEY, lambda: None)
            assert found is None
            flight.release()
            waits.append(time.monotonic() - began)
        assert 0.4 <= waits[0] < 5 and sum(waits) < 5
        assert waits[2] < waits[0]
        told = [record.getMessage() for record in caplog.records]
        assert told and all(text.startswith("weft: ") and "another process still compiles it" in text for text in told)
    finally:
        first.kill()
        first.communicate()


def test_others_compile_while_one_waits(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    first = start(root, seconds=600)
    waiting, compiled = threading.Event(), threading.Event()

    def wait_for_it() -> None:
        with COMPILING, COMPILING:
            waiting.set()
            flight, _ = SingleFlight(patience_s=30).lead(root, KEY, lambda: None)
            flight.release()

    try:
        wait_until_made(root, 1)
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        waiting.wait(30)
        with COMPILING:
            compiled.set()
        assert thread.is_alive(), "the other process still holds the key"
    finally:
        first.kill()
        first.communicate()
    thread.join(60)
    assert compiled.is_set() and not thread.is_alive()


def test_a_process_does_not_wait_for_itself_and_other_keys_are_free(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path / "cache")
    began = time.monotonic()
    outer, _ = cache.lead(KEY, lambda: None)
    inner, _ = cache.lead(KEY, lambda: None)
    inner.release()
    other, _ = cache.lead(cache_key("two"), lambda: None)
    other.release()
    worker = start(cache.root or tmp_path, cache_key("three"), 0)
    assert worker.communicate(timeout=600)[0].strip() == "7"
    outer.release()
    outer.release()
    assert time.monotonic() - began < 600


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    cache = DiskCache(root)
    flight, _ = cache.lead(KEY, lambda: None)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        flight.release()
        worker = start(root, seconds=0)
        assert worker.communicate(timeout=600)[0].strip() == "7"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_without_a_place_for_locks_everybody_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "cache"
    root.mkdir(mode=0o700)
    (root / ".lock").symlink_to(tmp_path / "elsewhere")
    flight, found = DiskCache(root).lead(KEY, lambda: None)
    assert found is None
    flight.release()
    assert not (tmp_path / "elsewhere").exists()
