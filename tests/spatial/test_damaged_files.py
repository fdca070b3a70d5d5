"""Files of schedules that are damaged are errors with their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.errors import ParseError
from weft.spatial.machine import streaming_machine
from weft.spatial.schedule_dialect import load_program, save_program
from weft.spatial.scheduler.compile import compile_graph
from weft.testing.spatial.programs import random_program

Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schedule and its data."""
    given = random_program(3)
    path = tmp_path_factory.mktemp("schedule") / "schedule.mlir"
    save_program(compile_graph(given.function, streaming_machine("tsp1"), given.constants), path)
    return path


def damaged(written: Path, folder: Path, ending: str, damage: Damage) -> Path:
    for each in (".mlir", ".npz"):
        data = written.with_suffix(each).read_bytes()
        made = damage(data) if each == ending else data
        assert each != ending or made != data
        (folder / "schedule").with_suffix(each).write_bytes(made)
    return folder / "schedule.mlir"


def replaced(pattern: bytes, by: bytes) -> Damage:
    return lambda data: re.sub(pattern, by, data, count=1)


def test_a_whole_one_is_read(written: Path) -> None:
    assert len(load_program(written).instructions)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: b"\x00\xff" * 99, "damaged"),
        (lambda data: b"", "damaged"),
        (replaced(rb"slices\.npy", b"sliced.npy"), "damaged|not the data of a schedule"),
        (lambda data: data[:40] + bytes(60) + data[100:], "damaged"),
    ],
)
def test_data(written: Path, tmp_path: Path, damage: Damage, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        load_program(damaged(written, tmp_path, ".npz", damage))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: b"\xff\xfe\x00" * 99, "not text in UTF-8"),
        (lambda data: data[: len(data) // 2], ""),
        (replaced(rb'bounds = "[^"]', b'bounds = "?'), "bounds is not JSON"),
        (replaced(rb'origins = "\[', b'origins = "?'), "origins is not JSON"),
        (replaced(rb'overrides = "\{\}"', b'overrides = "[]"'), "overrides is not a dict"),
        (replaced(rb"count = array<i32: \d+", b"count = array<i32: 2000000000"), "repeated"),
        (replaced(rb"count = array<i32: \d+", b"count = array<i32: -1"), "repeated"),
    ],
)
def test_text(written: Path, tmp_path: Path, damage: Damage, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        load_program(damaged(written, tmp_path, ".mlir", damage))
