"""Layers of transformers, from PyTorch and ONNX: quantized, mapped, exact in bits and cycles, near the floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from weft.backends.reference.graph import run
from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8
from weft.spatial.int8_transformer import TransformerBuilder
from weft.spatial.machine import streaming_machine
from weft.spatial.scheduler.compile import compile_graph, map_graph
from weft.spatial.scheduler.distribute import distribute_graph
from weft.spatial.simulator.run import simulate
from weft.spatial.simulator.system import simulate_system
from weft.spatial.verifier.verify import system_violations, violations
from weft.testing.spatial.mutants import MutantCount, count_mutants
from weft.testing.spatial.transformers import DecoderLayer, EncoderLayer, exported_graph
from weft.tools.spatial_models import SpatialModel, quantized_model, read_spatial_model

TSP1 = streaming_machine("tsp1")


def check(model: SpatialModel, arguments: list[np.ndarray], expected: list[np.ndarray], within: float) -> None:
    quantized = model.quantized
    assert quantized is not None and model.constants is not None
    program = compile_graph(model.function, TSP1, model.constants)
    assert not violations(program)
    given = [each.integers(array) for each, array in zip(quantized.arguments, arguments, strict=True)]
    meant = run(model.function, [*given, *model.constants.values()])
    simulated = simulate(program, given)
    assert simulated.cycles == program.cycles
    for result, exact, port, floats in zip(simulated.results, meant, quantized.results, expected, strict=True):
        np.testing.assert_array_equal(result, exact, strict=True)
        assert np.abs(port.floats(result) - floats).mean() < within * floats.std()


def from_torch(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[SpatialModel, list[np.ndarray]]:
    text, weights = exported_graph(module, arguments)
    with torch.no_grad():
        made = module(*arguments)
    results = made if isinstance(made, tuple) else (made,)
    return quantized_model(text, weights, 0), [each.numpy() for each in results]


@pytest.mark.parametrize("first", [False, True], ids=["BERT", "ViT"])
def test_an_encoder_layer_from_torch_is_exact(first: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 20, 128)
    model, expected = from_torch(EncoderLayer(128, 4, 256, first), (x,))
    check(model, [x.numpy()], expected, 0.04)


@pytest.mark.parametrize(("rows", "written"), [(200, True), (40, False)])
def test_a_sum_over_many_rows_is_computed_once_for_all_blocks(rows: int, written: bool) -> None:
    """Where it is shorter to write it: of 200 rows, not of 40, which a pipeline that fills would cost as much as."""
    torch.manual_seed(0)
    x = torch.randn(1, rows, 960)
    model, expected = from_torch(EncoderLayer(960, 4, 64), (x,))
    check(model, [x.numpy()], expected, 0.04)
    assert model.constants is not None
    layers = map_graph(model.function, TSP1, model.constants).layers
    assert any(layer.output.shape == (rows, 320) for layer in layers) == written


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_decoder_layer_is_exact_on_a_prompt(kv_heads: int) -> None:
    torch.manual_seed(1)
    x = torch.randn(1, 11, 128)
    model, expected = from_torch(DecoderLayer(128, 4, kv_heads, 192, rows=11), (x,))
    check(model, [x.numpy()], expected, 0.04)


def test_a_decoder_layer_is_exact_on_a_token_with_a_cache() -> None:
    torch.manual_seed(2)
    arguments = (torch.randn(1, 1, 128), torch.randn(1, 2, 37, 32), torch.randn(1, 2, 37, 32))
    model, expected = from_torch(DecoderLayer(128, 4, 2, 192, rows=1, held=37), arguments)
    check(model, [each.numpy() for each in arguments], expected, 0.04)


def test_heads_may_lie_across_vectors_and_keys_in_many() -> None:
    rng = np.random.default_rng(3)
    rows, heads, width = 330, 3, 128
    given = [rng.integers(-128, 128, (rows, heads * width), dtype=np.int8) for _ in range(3)]
    build = TransformerBuilder("attention", {name: Tensor(i8, (rows, heads * width)) for name in "qkv"})
    q, k, v = (build.argument(name) for name in "qkv")
    function = build.finish([build.attention(q, k, v, heads, heads, 1e-5, 3.0, 1.0)])
    program = compile_graph(function, TSP1, build.constants)
    assert not violations(program)
    exact = run(function, [*given, *build.constants.values()])
    np.testing.assert_array_equal(simulate(program, given).results[0], exact[0], strict=True)


def test_heads_that_are_not_whole_tiles_are_refused() -> None:
    build = TransformerBuilder("attention", {name: Tensor(i8, (4, 24)) for name in "qkv"})
    q, k, v = (build.argument(name) for name in "qkv")
    function = build.finish([build.attention(q, k, v, 2, 2, 1e-5, 3.0, 1.0)])
    with pytest.raises(UnsupportedError, match="heads of 12 channels"):
        compile_graph(function, TSP1, build.constants)


def test_tampered_loads_of_keys_and_values_are_caught() -> None:
    rng = np.random.default_rng(4)
    given = [rng.integers(-128, 128, (18, 64), dtype=np.int8) for _ in range(3)]
    build = TransformerBuilder("attention", {name: Tensor(i8, (18, 64)) for name in "qkv"})
    q, k, v = (build.argument(name) for name in "qkv")
    function = build.finish([build.attention(q, k, v, 2, 2, 1e-4, 3.0, 1.0)])
    program = compile_graph(function, TSP1, build.constants)
    tally = MutantCount()
    count_mutants(program, given, run(function, [*given, *build.constants.values()]), 60, 0, tally)
    assert tally.harmful > 30
    assert not tally.missed


def test_attention_is_split_over_chips() -> None:
    rng = np.random.default_rng(5)
    given = [rng.integers(-128, 128, (18, 64), dtype=np.int8) for _ in range(3)]
    build = TransformerBuilder("attention", {name: Tensor(i8, (18, 64)) for name in "qkv"})
    q, k, v = (build.argument(name) for name in "qkv")
    scale = np.full(64, 0.004, np.float32)
    inner = [build.linear(x, rng.integers(-128, 128, (64, 64), dtype=np.int8), scale) for x in (q, k, v)]
    made = build.attention(inner[0], inner[1], inner[2], 2, 2, 1e-4, 3.0, 1.0)
    function = build.finish([made])
    for chips, tensor in ((2, 2), (3, 1)):
        system = distribute_graph(function, TSP1, build.constants, chips, tensor)
        assert not system_violations(system)
        both = simulate_system(system, given)
        assert both.cycles == system.cycles
        exact = run(function, [*given, *build.constants.values()])
        np.testing.assert_array_equal(both.results[0], exact[0], strict=True)


def test_an_attention_block_from_onnx_is_exact(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows, channels, heads = 10, 64, 2
    weights = {name: rng.normal(0, 0.1, (channels, channels)).astype(np.float32) for name in ("wq", "wk", "wv", "wo")}
    weights |= {"gamma": rng.uniform(0.5, 1.5, channels).astype(np.float32), "beta": np.zeros(channels, np.float32)}
    weights["scale"] = np.array(1 / np.sqrt(channels / heads), np.float32)
    shapes = {"split": [1, rows, heads, channels // heads], "whole": [1, rows, channels]}
    weights |= {name: np.array(shape, np.int64) for name, shape in shapes.items()}
    nodes = []
    for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"{name}0"]))
        nodes.append(helper.make_node("Reshape", [f"{name}0", "split"], [f"{name}1"]))
        nodes.append(helper.make_node("Transpose", [f"{name}1"], [name], perm=order))
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s0"]),
        helper.make_node("Mul", ["s0", "scale"], ["s1"]),
        helper.make_node("Softmax", ["s1"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["a0"]),
        helper.make_node("Transpose", ["a0"], ["a1"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["a1", "whole"], ["a2"]),
        helper.make_node("MatMul", ["a2", "wo"], ["a3"]),
        helper.make_node("Add", ["a3", "x"], ["r"]),
        helper.make_node("LayerNormalization", ["r", "gamma", "beta"], ["y"], axis=-1),
    ]
    shape = [1, rows, channels]
    sides = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in "xy"]
    initial = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "block", *sides, initial)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "block.onnx")
    model = read_spatial_model(str(tmp_path / "block.onnx"), 0)
    x = rng.normal(size=shape).astype(np.float32)

    def split(a: np.ndarray) -> np.ndarray:
        return (x @ a).reshape(rows, heads, -1).transpose(1, 0, 2)

    scores = split(weights["wq"]) @ split(weights["wk"]).transpose(0, 2, 1) * weights["scale"]
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = powers / powers.sum(-1, keepdims=True) @ split(weights["wv"])
    r = mixed.transpose(1, 0, 2).reshape(shape) @ weights["wo"] + x
    r = (r - r.mean(-1, keepdims=True)) / np.sqrt(r.var(-1, keepdims=True) + 1e-5) * weights["gamma"]
    check(model, [x], [r], 0.05)
