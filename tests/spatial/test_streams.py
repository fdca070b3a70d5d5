"""The `stream` dialect stands between mapping and scheduler: what is written and read again gives the same schedule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.errors import ParseError
from weft.ops.graph import FuncOp
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.scheduler.compile import compile_graph, map_streams, schedule_streams
from weft.spatial.stream_dialect import ReadOp, Streams, listed, places_of
from weft.spatial.stream_program import load_streams, save_streams
from weft.testing.spatial.programs import random_program
from weft.testing.spatial.transformers import EncoderLayer, exported_graph
from weft.tile.text import parse_program
from weft.tools.spatial_models import quantized_model

TSP1 = streaming_machine("tsp1")
Mapped = tuple[FuncOp, dict[str, np.ndarray]]


def _program(seed: int) -> Mapped:
    given = random_program(seed)
    return given.function, given.constants


def _encoder() -> Mapped:
    model = quantized_model(*exported_graph(EncoderLayer(64, 4, 96), (torch.randn(1, 9, 64),)), 0)
    assert model.constants is not None
    return model.function, model.constants


@pytest.mark.parametrize(
    "make", [lambda: _program(2), lambda: _program(5), _encoder], ids=["matrices", "image", "BERT"]
)
def test_streams_that_were_written_and_read_give_the_same_schedule(make: Callable[[], Mapped], tmp_path: Path) -> None:
    function, constants = make()
    path = tmp_path / "stream.mlir"
    save_streams(map_streams(function, TSP1, constants), path)
    again, direct = schedule_streams(load_streams(path), TSP1), compile_graph(function, TSP1, constants)
    np.testing.assert_array_equal(again.instructions, direct.instructions)
    np.testing.assert_array_equal(again.image.data, direct.image.data)
    assert again.cycles == direct.cycles
    assert load_streams(path).text == path.read_text()


def test_there_is_nothing_of_time_in_streams() -> None:
    text = map_streams(*_arguments(2)).text
    assert not any(word in text for word in ("cycle", "queue", "slice", "plane"))


def _arguments(seed: int) -> tuple[FuncOp, StreamingMachine, dict[str, np.ndarray]]:
    function, constants = _program(seed)
    return function, TSP1, constants


@pytest.mark.parametrize("seed", range(4))
def test_places_are_what_their_patterns_stand_for(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = np.arange(rng.integers(1, 9))[:, None] * rng.integers(5, 20) + np.arange(rng.integers(1, 5))
    given = np.concatenate([lines.reshape(-1), rng.integers(0, 99, rng.integers(0, 5)), np.arange(3)])
    np.testing.assert_array_equal(listed(places_of(given)), given)
    assert len(places_of(lines.reshape(-1))) <= 10


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('function = "I32_TO_F32"', 'function = "RELU_F32"', "RELU_F32 does not take i32"),
        ('function = "I32_TO_F32"', 'function = "SINE"', "no function of an ALU is called SINE"),
        ('role = "argument"', 'role = "guest"', "the role of x is 'guest'"),
        ("places = array<i64: 0,", "places = array<i64: 0, 3,", "patterns of five numbers"),
    ],
)
def test_a_program_that_is_not_valid_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    text = map_streams(*_arguments(4)).text
    assert old in text
    with pytest.raises(ParseError, match=said) as caught:
        parse_program(text.replace(old, new, 1), "streams", [Streams])
    assert caught.value.location is not None


def test_vectors_outside_of_a_tensor_are_refused_with_the_line(tmp_path: Path) -> None:
    streams, path = map_streams(*_arguments(4)), tmp_path / "stream.mlir"
    save_streams(streams, path)
    read = next(op for op in streams.op.walk() if isinstance(op, ReadOp) and op.tensor.owner.name == "stream.tensor")
    count = len(listed(read.places))
    text = path.read_text()
    path.write_text(
        text.replace(f"places = array<i64: 0, {count}, 1, 1, 0>", f"places = array<i64: 7, {count}, 1, 1, 0>")
    )
    with pytest.raises(ParseError, match="blocks of") as caught:
        schedule_streams(load_streams(path), TSP1)
    assert "stream.mlir" in str(caught.value.location)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("first_tile = 0 : i64", "first_tile = 1 : i64", "weights are in tiles 1 to 20, and a vector has 20 tiles"),
        ("first_tile = 0 : i64", "first_tile = -1 : i64", "weights are in tiles -1 to 18"),
        ("tiles = 20 : i64", "tiles = 0 : i64", "weights are in tiles 0 to -1"),
        ("tiles = 20 : i64", "tiles = 19 : i64", "loaded as a whole"),
        ("columns = false", "columns = true", "loaded as a whole"),
    ],
)
def test_weights_outside_of_a_plane_are_refused_with_the_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "stream.mlir"
    save_streams(map_streams(*_arguments(4)), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ParseError, match=said) as caught:
        schedule_streams(load_streams(path), TSP1)
    assert "stream.mlir" in str(caught.value.location)
