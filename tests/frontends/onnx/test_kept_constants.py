"""Packed weights of a model file are kept: a later load maps them, and reads no weights while the file is the same."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
import onnx
from onnx import helper

import weft.onnx
from weft.errors import ModelError
from weft.frontends.onnx import stored_weights
from weft.frontends.onnx.stored_weights import DeferredWeights
from weft.runtime import stored_programs
from weft.runtime.constants import prepared
from weft.testing.onnx_models import info, model

N = 1100
"""So that weights are beyond what is made anew each time."""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_CACHE", "1")
    stored_programs.disk_cache.cache_clear()
    yield
    stored_programs.disk_cache.cache_clear()


def weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((N, N)).astype(np.float32)


def write(path: Path, seed: int, rows: Any = 2, external: bool = False) -> None:
    """A file with weights of a seed, older than a file system's clock could miss."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    proto = model(nodes, [info("x", (rows, N))], [info("y", (rows, N))], {"w": weights(seed)})
    beside: Any = {"save_as_external_data": True, "location": "weights.bin"} if external else {}
    for old in (path, path.parent / "weights.bin"):
        old.unlink(missing_ok=True)
    onnx.save(proto, str(path), **beside)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of tests are new, and no test waits for them to grow old."""
    monkeypatch.setattr("weft.frontends.onnx.file_identity._TICK_NS", -1)
    monkeypatch.setattr("weft.frontends.onnx.file_identity._COARSE_TICK_NS", -1)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often weights were read from the file, and how often constants were made of them."""
    found = {"read": 0, "made": 0}

    def copy(*given: Any) -> None:
        found["read"] += 1
        _copy(*given)

    def made(*given: Any) -> Any:
        found["made"] += 1
        return prepared(*given)

    _copy = stored_weights._copy  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(stored_weights, "_copy", copy)
    monkeypatch.setattr("weft.runtime.program.prepared", made)
    return found


X = np.random.default_rng(9).standard_normal((2, N)).astype(np.float32)


def is_right(path: Path, seed: int) -> None:
    np.testing.assert_allclose(weft.onnx.load(path)(X)[0], np.maximum(X @ weights(seed), 0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [2, "n"])
def test_a_second_load_reads_no_weights(tmp_path: Path, counts: dict[str, int], rows: Any) -> None:
    write(tmp_path / "m.onnx", 1, rows)
    is_right(tmp_path / "m.onnx", 1)
    assert counts == {"read": 1, "made": 1}
    is_right(tmp_path / "m.onnx", 1)
    assert counts == {"read": 1, "made": 1}


def test_weights_beside_the_model_are_kept_as_well(tmp_path: Path, counts: dict[str, int]) -> None:
    write(tmp_path / "m.onnx", 1, external=True)
    for _ in range(2):
        is_right(tmp_path / "m.onnx", 1)
    assert counts["made"] == 1
    write(tmp_path / "m.onnx", 2, external=True)
    is_right(tmp_path / "m.onnx", 2)
    assert counts["made"] == 2


def test_other_weights_in_the_file_are_read(tmp_path: Path, counts: dict[str, int]) -> None:
    path = tmp_path / "m.onnx"
    write(path, 1)
    is_right(path, 1)
    write(path, 2)
    is_right(path, 2)
    times = path.stat()
    write(path, 3)  # with the times of the one before
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    is_right(path, 3)
    assert counts["read"] == 3


def test_a_file_that_was_just_written_is_not_trusted_to_stay(
    tmp_path: Path, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.frontends.onnx.file_identity._TICK_NS", 1 << 62)
    monkeypatch.setattr("weft.frontends.onnx.file_identity._COARSE_TICK_NS", 1 << 62)
    write(tmp_path / "m.onnx", 1)
    for _ in range(2):
        is_right(tmp_path / "m.onnx", 1)
    assert counts["made"] == 2


def test_damaged_constants_are_made_anew(tmp_path: Path, counts: dict[str, int]) -> None:
    write(tmp_path / "m.onnx", 1)
    is_right(tmp_path / "m.onnx", 1)
    (kept,) = (each for each in (tmp_path / "cache").rglob("*.weft") if each.stat().st_size > N * N * 4)
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(data)
    is_right(tmp_path / "m.onnx", 1)
    assert counts == {"read": 2, "made": 2}
    is_right(tmp_path / "m.onnx", 1)
    assert counts == {"read": 2, "made": 2}


def test_another_shape_reads_the_weights_then(tmp_path: Path, counts: dict[str, int]) -> None:
    path = tmp_path / "m.onnx"
    write(path, 1, "n")
    is_right(path, 1)
    loaded = weft.onnx.load(path)
    loaded(X)
    assert counts["read"] == 1
    x = np.concatenate([X, X, X])
    np.testing.assert_allclose(loaded(x)[0], np.maximum(x @ weights(1), 0), rtol=1e-3, atol=1e-3)
    assert counts["read"] == 2


def test_constants_of_other_elements_that_were_looked_at_are_others(tmp_path: Path, counts: dict[str, int]) -> None:
    """Places are computed of an input at import, and become a constant beside the weights."""
    node = helper.make_node
    nodes = [
        node("Add", ["past", "four"], ["end"]),
        node("Range", ["past", "end", "one"], ["places"]),
        node("Cast", ["places"], ["p"], to=int(onnx.TensorProto.FLOAT)),
        node("Unsqueeze", ["p", "last"], ["column"]),
        node("MatMul", ["x", "w"], ["h"]),
        node("Add", ["h", "column"], ["y"]),
    ]
    arrays = {"w": weights(1), "four": np.array(4), "one": np.array(1), "last": np.array([1])}
    inputs = [info("x", (4, N)), info("past", (), int(onnx.TensorProto.INT64))]
    path, x = tmp_path / "m.onnx", np.concatenate([X, X])
    onnx.save(model(nodes, inputs, [info("y", (4, N))], arrays), str(path))
    for past in (0, 4, 0, 4):
        (found,) = weft.onnx.load(path)(x, np.array(past))
        expected = x @ weights(1) + np.arange(past, past + 4)[:, None]
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert counts["made"] == 2


def test_a_file_that_changed_meanwhile_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write(path, 1, "n")
    is_right(path, 1)
    loaded = weft.onnx.load(path)
    loaded(X)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ModelError, match="changed after it was loaded") as told:
        loaded(np.concatenate([X, X, X]))
    assert "load the model again" in str(told.value.hint)


def test_a_file_that_was_replaced_meanwhile_is_read_still(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write(path, 1, "n")
    is_right(path, 1)
    loaded = weft.onnx.load(path)
    loaded(X)
    write(tmp_path / "new.onnx", 2, "n")
    os.replace(tmp_path / "new.onnx", path)
    x = np.concatenate([X, X, X])
    np.testing.assert_allclose(loaded(x)[0], np.maximum(x @ weights(1), 0), rtol=1e-3, atol=1e-3)
    is_right(path, 2)


def opened(path: Path) -> int:
    """How many descriptors of this process are a file's."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed since it was listed
            found += os.path.samestat(os.fstat(int(each)), path.stat())
    return found


def test_deferred_weights_close_their_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    with path.open("rb") as file:
        deferred = DeferredWeights(file.fileno())
        assert opened(path) == 2
        deferred.read()
        deferred.read()
        assert opened(path) == 1


def test_a_small_file_is_read_whole_and_may_change(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    onnx.save(model(nodes, [info("x", ("n", 3))], [info("y")], {"w": np.ones(3, np.float32)}), str(path))
    loaded = weft.onnx.load(path)
    path.write_bytes(b"")
    np.testing.assert_array_equal(loaded(np.zeros((2, 3), np.float32))[0], np.ones((2, 3), np.float32))
