"""Weights are taken out of a message before it is parsed: the same values come out, and unusual messages are left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from weft.errors import ModelError
from weft.frontends.onnx.read import read_model
from weft.frontends.onnx.stored_weights import take_weights
from weft.runtime.array_function import _is_immutable  # pyright: ignore[reportPrivateUsage]
from weft.testing.onnx_models import info, model


def large_model(dtype: str = "float32", odd: str = "") -> Any:
    """A model with small and large weights; names of odd lengths make for odd places in the file."""
    values = np.arange(300 * 100).reshape(300, 100)
    arrays = {"w" + odd: values.astype(dtype), "b": np.ones(100, dtype), "v": (values + 1).astype(dtype)}
    nodes = [
        helper.make_node("MatMul", ["x", "w" + odd], ["h"]),
        helper.make_node("Add", ["h", "b"], ["s"]),
        helper.make_node("Concat", ["s", "v"], ["y"], axis=0),
    ]
    number = int(numpy_helper.from_array(np.ones(1, dtype)).data_type)
    return model(nodes, [info("x", (2, 300), number)], [info("y", None, number)], arrays)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("odd", ["", "1", "12", "123"])
def test_weights_are_those_of_the_message(dtype: str, odd: str) -> None:
    proto = large_model(dtype, odd)
    read = read_model(proto.SerializeToString()).graph.initializers
    expected = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    assert list(read) == list(expected)
    for name, array in read.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype and array.flags.aligned and not array.flags.writeable


def test_what_is_left_is_the_message_without_them() -> None:
    proto = large_model()
    rest, weights = take_weights(memoryview(proto.SerializeToString()))
    assert sorted(weights) == [0, 2]
    for number in weights:
        proto.graph.initializer[number].raw_data = b""
    assert bytes(rest) == proto.SerializeToString()


def test_large_weights_are_copied_once() -> None:
    read = read_model(large_model().SerializeToString()).graph.initializers
    assert _is_immutable(read["w"]) and _is_immutable(read["v"])


def test_a_graph_in_two_pieces_is_left_to_the_parser() -> None:
    """Parsers join them: the second has the last word."""
    data = large_model().SerializeToString()
    twice = memoryview(data + data)
    rest, weights = take_weights(twice)
    assert rest is twice and not weights


def test_a_cut_off_message_is_left_to_the_parser() -> None:
    data = large_model().SerializeToString()
    for end in (1, 5, 100, len(data) // 2, len(data) - 1):
        _, weights = take_weights(memoryview(data[:end]))
        assert not weights
        with pytest.raises(ModelError):
            read_model(data[:end])


def test_a_weight_of_the_wrong_size_is_refused() -> None:
    proto = large_model()
    proto.graph.initializer[0].dims[0] = 301
    with pytest.raises(ModelError, match="120000 bytes, expected 120400"):
        read_model(proto.SerializeToString())


def test_a_file_may_change_after_it_was_read(tmp_path: Any) -> None:
    """What is kept does not lie in the file."""
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    weights = {"w": np.arange(1 << 19, dtype=np.float32)}
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, [info("x", (1 << 19,))], [info("y", (1 << 19,))], weights).SerializeToString())
    read = read_model(path)
    path.write_bytes(b"")
    np.testing.assert_array_equal(read.graph.initializers["w"], weights["w"])
