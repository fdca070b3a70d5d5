"""Compiled graphs on disk: a second process finds them, and finds nothing that is not exactly its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.runtime import stored_programs
from weft.runtime.record import CompilationRecord, recording

T = torch.Tensor

PROGRAM = """
import json, sys, torch
from torch import nn
from weft.runtime.record import recording

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
x = torch.randn(5, 8)
run = torch.compile(model, backend="weft")
with recording() as records:
    loss = run(x).square().mean()
    loss.backward()
    with torch.no_grad():
        y = run(x)
torch.testing.assert_close(y, model(x))
print(json.dumps({"sources": [r.source for r in records], "y": y.tolist(), "grad": model[0].weight.grad.tolist()}))
"""


def run_json(python: Callable[..., str], program: str = PROGRAM, **environment: str) -> dict[str, Any]:
    return json.loads(python(program, **environment).splitlines()[-1])


def entries(root: Path) -> list[Path]:
    return sorted(root.glob("*.weft"))


def test_a_second_process_compiles_nothing(python: Callable[..., str], cache_root: Path) -> None:
    first, second = run_json(python), run_json(python)
    assert first["sources"] == ["compiled"] * 3 and second["sources"] == ["cache"] * 3
    assert first["y"] == second["y"] and first["grad"] == second["grad"]
    assert len(entries(cache_root)) == 3


def test_without_a_cache_nothing_is_read_or_written(
    python: Callable[..., str], cache_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_json(python, WEFT_CACHE="0")["sources"] == ["compiled"] * 3
    monkeypatch.setenv("WEFT_CACHE", "false")
    assert fresh(softmax, torch.randn(3, 4))[1] == "compiled"
    monkeypatch.delenv("WEFT_CACHE")
    for _ in range(2):
        assert fresh(softmax, torch.randn(3, 4), options={"cache": False})[1] == "compiled"
    assert not entries(cache_root)


def softmax(x: T) -> T:
    return torch.softmax(x * 3, -1)


def fresh(function: Callable[..., Any], *arguments: Any, **settings: Any) -> tuple[Any, str]:
    """The result of a function compiled anew, and where its code came from."""
    torch.compiler.reset()
    with recording() as records:
        result = torch.compile(function, backend="weft", **settings)(*arguments)
    (record,) = records
    return result, record.source


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "noise", "directory"])
def test_a_damaged_entry_is_compiled_again(cache_root: Path, damage: str) -> None:
    x = torch.randn(4, 6)
    expected, source = fresh(softmax, x)
    assert source == "compiled"
    (path,) = entries(cache_root)
    content = bytearray(path.read_bytes())
    path.unlink()
    match damage:
        case "flip":
            content[-100] ^= 1
            path.write_bytes(content)
        case "cut":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "noise":
            path.write_bytes(os.urandom(5000))
        case _:
            path.mkdir()
    result, source = fresh(softmax, x)
    assert source == "compiled" and torch.equal(result, expected)
    if damage != "directory":
        assert fresh(softmax, x)[1] == "cache"


@pytest.mark.parametrize("part", ["plan", "calling", "code", "no code"])
def test_an_entry_that_checks_but_means_nothing_is_compiled_again(cache_root: Path, part: str) -> None:
    """Another program may write well-formed entries."""
    x = torch.randn(4, 6)
    expected, _ = fresh(softmax, x)
    (path,) = entries(cache_root)
    key = path.stem
    entry = stored_programs.disk_cache().get(key)
    assert entry is not None
    meta, blobs = dict(entry.meta), dict(entry.blobs)
    match part:
        case "code":
            blobs["code"] = b"\x7fELF" + os.urandom(600)
        case "no code":
            blobs = {"text": blobs["code"]}
        case _:
            meta[part] = {"$": "Plan", "name": "x"}
    stored_programs.disk_cache().put(key, meta, blobs)
    result, source = fresh(softmax, x)
    assert source == "compiled" and torch.equal(result, expected)


def test_what_changes_the_code_changes_the_key(cache_root: Path) -> None:
    def scaled(factor: float) -> Callable[[T], T]:
        return lambda x: torch.softmax(x * factor, -1)

    weights = torch.arange(6.0), torch.arange(6.0) + 1

    def with_constant(constant: T) -> Callable[[T], T]:
        values = constant.tolist()
        return lambda x: x * torch.tensor(values)

    x = torch.randn(4, 6)
    cases: list[tuple[Callable[..., Any], T, dict[str, Any]]] = [
        (scaled(2.0), x, {}),
        (scaled(4.0), x, {}),
        (scaled(2.0), x.double(), {}),
        (scaled(2.0), x.bfloat16(), {}),
        (scaled(2.0), torch.randn(4, 7), {}),
        (scaled(2.0), torch.randn(6, 4).t(), {}),
        (scaled(2.0), torch.randn(4, 12)[:, ::2], {}),
        (scaled(2.0), torch.randn(1, 6).expand(4, 6), {}),
        (scaled(2.0), x, {"dynamic": True}),
        (scaled(2.0), x, {"options": {"strict": True}}),
        (with_constant(weights[0]), x, {}),
        (with_constant(weights[1]), x, {}),
    ]
    for function, argument, settings in cases:
        result, source = fresh(function, argument, **{"dynamic": False, **settings})
        torch.testing.assert_close(result, function(argument))
        assert source == "compiled"
    assert len(entries(cache_root)) == len(cases)
    for function, argument, settings in cases:
        result, source = fresh(function, argument, **{"dynamic": False, **settings})
        torch.testing.assert_close(result, function(argument))
        assert source == "cache"


def test_ranges_of_sizes_are_part_of_the_key() -> None:
    def function(x: T) -> T:
        return x.sum(0) * 2

    for low, high in [(2, 8), (2, 4096), (16, 64)]:
        x = torch.randn(max(low, 4), 3)
        torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
        result, source = fresh(function, x)
        assert source == "compiled"
        torch.testing.assert_close(result, function(x))


def test_graphs_with_opaque_calls_and_constants_come_back(cache_root: Path) -> None:
    table = [3.0, 1.0, 2.0]

    def function(x: T) -> tuple[T, T, T]:
        y = x + torch.tensor(table)
        return torch.linalg.inv(y @ y.t() + torch.eye(4) * 9), y.t(), y[1:]

    x = torch.randn(4, 3)
    for wanted in ("compiled", "cache"):
        result, source = fresh(function, x)
        torch.testing.assert_close(result, function(x), check_stride=True)
        assert source == wanted
        assert result[1].untyped_storage().data_ptr() == result[2].untyped_storage().data_ptr()


def test_an_unwritable_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    monkeypatch.setenv("WEFT_CACHE_DIR", str(file))
    stored_programs.disk_cache.cache_clear()
    x = torch.randn(3, 4)
    for _ in range(2):
        result, source = fresh(softmax, x)
        assert source == "compiled"
        torch.testing.assert_close(result, softmax(x))


def start(tmp_path: Path, root: Path, number: int, program: str) -> subprocess.Popen[str]:
    path = tmp_path / f"program{number}.py"
    path.write_text(program)
    environment = {**os.environ, "WEFT_CACHE_DIR": str(root)}
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environment)


def test_two_processes_at_once(tmp_path: Path, cache_root: Path) -> None:
    both = [start(tmp_path, cache_root, number, PROGRAM) for number in range(2)]
    outputs = [json.loads(process.communicate(timeout=600)[0].splitlines()[-1]) for process in both]
    assert outputs[0]["y"] == outputs[1]["y"]
    assert len(entries(cache_root)) == 3 and not list(cache_root.glob(".*.tmp"))
    assert stored_programs.disk_cache().verify() == []


WRITER = """
import os, sys
from pathlib import Path
from weft.runtime.cache import DiskCache, cache_key
cache = DiskCache(Path(os.environ["WEFT_CACHE_DIR"]))
print("ready", flush=True)
n = 0
while True:
    n += 1
    cache.put(cache_key("entry", n % 50), {"n": n % 50}, {"code": bytes([n % 50]) * 20000})
"""


@pytest.mark.slow
def test_two_hundred_kills_during_writes(tmp_path: Path, cache_root: Path) -> None:
    """Whatever a dying writer leaves, readers see whole entries or none."""
    from weft.runtime.cache import DiskCache, cache_key

    cache = DiskCache(cache_root)
    for number in range(200):
        process = start(tmp_path, cache_root, 0, WRITER)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        time.sleep(0.002 * (number % 10))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        for n in range(50):
            entry = cache.get(cache_key("entry", n))
            assert entry is None or (entry.meta == {"n": n} and entry.blobs["code"] == bytes([n]) * 20000)
    assert cache.verify() == []


@pytest.mark.slow
def test_kills_during_compilation(tmp_path: Path, cache_root: Path, python: Callable[..., str]) -> None:
    for number in range(8):
        process = start(tmp_path, cache_root, 0, PROGRAM)
        time.sleep(3 + number * 0.3)
        process.kill()
        process.communicate()
    first = run_json(python)
    assert run_json(python, WEFT_CACHE="0")["y"] == first["y"]


def test_a_record_says_where_code_came_from(records: list[CompilationRecord]) -> None:
    for _ in range(2):
        torch.compiler.reset()
        torch.compile(softmax, backend="weft")(torch.randn(3, 5))
    assert [record.source for record in records] == ["compiled", "cache"]
