"""What `weft.onnx.load` gives: a function with a signature, compiled for shapes, in stages where data decide."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import helper  # noqa: E402

import weft.onnx  # noqa: E402
from tests.frontends.onnx.models import BOOL, F32, I64, arrays_of, info, layer, model  # noqa: E402
from weft.errors import DataError, GuardError, ModelError, UnsupportedError  # noqa: E402


def expected_layer(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    arrays = arrays_of(proto)
    return np.maximum(x @ arrays["w"] + arrays["b"], 0)


def test_a_model_is_a_function_of_arrays_with_names_types_and_shapes(tmp_path: Path) -> None:
    proto = layer()
    path = tmp_path / "layer.onnx"
    onnx.save(proto, path)
    function = weft.onnx.load(path)
    assert function.signature == "(x: float32[n, 8]) -> (y: float32[n, 4])"
    assert [each.name for each in function.inputs] == ["x"] and function.inputs[0].type.shape == ("n", 8)
    for rows in (1, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 8)).astype(np.float32)
        (y,) = function(x)
        np.testing.assert_allclose(y, expected_layer(proto, x), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(function(x=x)[0], y)


def test_bytes_and_messages_are_loaded_alike() -> None:
    proto, x = layer(3), np.ones((3, 8), np.float32)
    np.testing.assert_array_equal(weft.onnx.load(proto)(x)[0], weft.onnx.load(proto.SerializeToString())(x)[0])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "'x' is missing"),
        ({"x": np.ones((2, 8), np.float32), "z": np.ones(1)}, "'z' is not one"),
        ({"x": np.ones((2, 8))}, "float64\\[2, 8\\], expected float32\\[n, 8\\]"),
        ({"x": np.ones((2, 7), np.float32)}, "float32\\[2, 7\\], expected float32\\[n, 8\\]"),
        ({"x": np.ones(8, np.float32)}, "float32\\[8\\], expected float32\\[n, 8\\]"),
        ({"x": [[1.0, 2.0], [3.0]]}, "a list that cannot be read"),
    ],
)
def test_wrong_inputs_are_told_with_the_signature(given: dict[str, np.ndarray], told: str) -> None:
    with pytest.raises(GuardError, match=told) as caught:
        weft.onnx.load(layer())(**given)
    assert "(x: float32[n, 8]) -> (y: float32[n, 4])" in str(caught.value)


def test_tensors_of_torch_are_read_by_dlpack_also_types_that_numpy_lacks() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    bf16 = onnx.TensorProto.BFLOAT16
    twice = model([helper.make_node("Add", ["x", "x"], ["y"])], [info("x", bf16, ["n"])], [info("y", bf16, ["n"])])
    (y,) = weft.onnx.load(twice)(torch.tensor([1.0, 2.5], dtype=torch.bfloat16))
    np.testing.assert_array_equal(y.astype(np.float32), [2, 5])
    for given in (torch.ones(2, 8, requires_grad=True), torch.ones(2, 8, device="meta"), torch.ones(2, 8).to_sparse()):
        with pytest.raises(GuardError, match="a Tensor that cannot be read") as caught:
            weft.onnx.load(layer())(given)
        assert "(x: float32[n, 8])" in str(caught.value)


@pytest.mark.parametrize("given", [None, 3, ["layer.onnx"]])
def test_what_is_no_model_is_refused(given: object) -> None:
    with pytest.raises(ModelError, match="is not an ONNX model"):
        weft.onnx.load(given)


def test_one_name_of_a_size_is_one_size() -> None:
    proto = model(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        [info("a", F32, ["n"]), info("b", F32, ["n"])],
        [info("c", F32, ["n"])],
    )
    function = weft.onnx.load(proto)
    with pytest.raises(GuardError, match="input 'b'"):
        function(np.ones(3, np.float32), np.ones(2, np.float32))


def test_results_share_no_memory_with_arguments_or_constants() -> None:
    proto = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", F32, [2])], [info("y", F32, [2])])
    x = np.ones(2, np.float32)
    (y,) = weft.onnx.load(proto)(x)
    y[0] = 5
    assert x[0] == 1


def test_an_input_that_only_feeds_a_shape_is_looked_at() -> None:
    proto = model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [info("x", F32, [6]), info("s", I64, [2])],
        [info("y", F32, None)],
    )
    function = weft.onnx.load(proto)
    for shape in ([2, 3], [3, -1], [6, 1]):
        assert function(np.arange(6, dtype=np.float32), np.array(shape))[0].shape == tuple(
            np.empty(6).reshape(shape).shape
        )


def test_a_shape_that_is_computed_from_data_ends_a_stage() -> None:
    """The sum of x says how many zeros follow it."""
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=1),
        helper.make_node("ConstantOfShape", ["total"], ["zeros"]),
        helper.make_node("Cast", ["x"], ["numbers"], to=F32),
        helper.make_node("Concat", ["numbers", "zeros"], ["y"], axis=0),
    ]
    proto = model(nodes, [info("x", I64, ["n"])], [info("y", F32, ["m"])])
    function = weft.onnx.load(proto)
    for x in ([1, 2], [1, 2], [0], [4, 1, 1]):
        (y,) = function(np.array(x))
        np.testing.assert_array_equal(y, [*x, *[0] * sum(x)])


def test_operators_whose_result_has_the_size_that_data_decide_run_on_the_host() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("NonZero", ["r"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["r", "rows"], ["found"]),
        helper.make_node("Mul", ["found", "found"], ["y"]),
    ]
    proto = model(nodes, [info("x", F32, ["n", "m"])], [info("y", F32, ["k"])])
    function = weft.onnx.load(proto)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 4)).astype(np.float32)
        np.testing.assert_allclose(function(x)[0], np.square(x[x > 0]), rtol=1e-6)


def branches() -> onnx.ModelProto:
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "then", [], [info("t", F32, ["n"])])
    other = helper.make_graph([helper.make_node("Exp", ["x"], ["e"])], "else", [], [info("e", F32, ["n"])])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "limit"], ["big"]),
        helper.make_node("If", ["big"], ["y"], then_branch=then, else_branch=other),
    ]
    return model(nodes, [info("x", F32, ["n"])], [info("y", F32, ["n"])], {"limit": np.array(2, np.float32)})


def test_a_condition_that_is_computed_from_data_chooses_a_branch() -> None:
    function = weft.onnx.load(branches())
    for x in ([1.0, 3.0], [1.0, 0.5], [5.0, 0.0]):
        given = np.array(x, np.float32)
        np.testing.assert_allclose(function(given)[0], -given if max(x) > 2 else np.exp(given), rtol=1e-6)


def test_a_loop_ends_when_its_condition_does() -> None:
    """Doubles x until its greatest element is above 100, and keeps what it was."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["next"]),
            helper.make_node("ReduceMax", ["next"], ["top"], keepdims=0),
            helper.make_node("Less", ["top", "limit"], ["go"]),
            helper.make_node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [info("turn", I64, []), info("going", BOOL, []), info("state", F32, [2])],
        [info("go", BOOL, []), info("next", F32, [2]), info("seen", F32, [2])],
    )
    proto = model(
        [helper.make_node("Loop", ["", "yes", "x"], ["last", "all"], body=body)],
        [info("x", F32, [2])],
        [info("last", F32, [2]), info("all", F32, ["t", 2])],
        {"limit": np.array(100, np.float32), "yes": np.array(True)},
    )
    function = weft.onnx.load(proto)
    for first in (1.0, 30.0, 99.0):
        x = np.array([first, 0.5], np.float32)
        turns = int(np.ceil(np.log2(100 / first)))
        last, every = function(x)
        np.testing.assert_allclose(last, x * 2**turns)
        np.testing.assert_allclose(every, [x * 2 ** (n + 1) for n in range(turns)])


def test_sequences_and_strings_pass_through() -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0),
        helper.make_node("SequenceLength", ["parts"], ["count"]),
        helper.make_node("StringConcat", ["a", "b"], ["words"]),
    ]
    string = onnx.TensorProto.STRING
    proto = model(
        nodes,
        [info("x", F32, [3, 2]), info("a", string, [2]), info("b", string, [2])],
        [
            helper.make_tensor_sequence_value_info("parts", F32, None),
            info("count", I64, []),
            info("words", string, [2]),
        ],
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    parts, count, words = weft.onnx.load(proto)(x, np.array(["a", "b"], object), np.array(["x", "y"], object))
    assert len(parts) == count == 3 and words.tolist() == ["ax", "by"]
    np.testing.assert_array_equal(np.concatenate(parts), x)


def test_functions_of_a_model_are_put_in_the_place_of_calls() -> None:
    scaled = helper.make_node("Mul", ["v", "factor"], ["w"])
    factor = helper.make_node("Constant", [], ["factor"])
    factor.attribute.append(onnx.AttributeProto(name="value_float", ref_attr_name="by", type=onnx.AttributeProto.FLOAT))
    opsets = [helper.make_opsetid("", 21)]
    function = helper.make_function("own", "scale", ["v"], ["w"], [factor, scaled], opsets, ["by"])
    proto = model(
        [helper.make_node("scale", ["x"], ["y"], domain="own", by=3.0)],
        [info("x", F32, [2])],
        [info("y", F32, [2])],
        opsets=[helper.make_opsetid("own", 1)],
        functions=[function],
    )
    np.testing.assert_array_equal(weft.onnx.load(proto)(np.ones(2, np.float32))[0], [3, 3])


def test_names_inside_of_a_function_are_not_those_of_its_caller() -> None:
    then = helper.make_graph(
        [helper.make_node("Neg", ["b"], ["x"]), helper.make_node("Add", ["x", "a"], ["t"])], "then", [], [info("t")]
    )
    otherwise = helper.make_graph([helper.make_node("Identity", ["a"], ["e"])], "else", [], [info("e")])
    chooses = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=otherwise)
    function = helper.make_function("own", "F", ["a", "b", "c"], ["y"], [chooses], [helper.make_opsetid("", 21)])
    proto = model(
        [helper.make_node("F", ["x", "z", "c"], ["y"], domain="own")],
        [info("x", F32, [2]), info("z", F32, [2]), info("c", BOOL, [])],
        [info("y")],
        functions=[function],
        opsets=[helper.make_opsetid("own", 1)],
    )
    x, z = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
    np.testing.assert_array_equal(weft.onnx.load(proto)(x, z, np.array(True))[0], x - z)
    np.testing.assert_array_equal(weft.onnx.load(proto)(x, z, np.array(False))[0], x)


def test_zeros_of_both_signs_are_not_one_number() -> None:
    arrays = {"zeros": np.array([0.0, -0.0], np.float32)}
    proto = model([helper.make_node("Div", ["x", "zeros"], ["y"])], [info("x", F32, [2])], [info("y")], arrays)
    np.testing.assert_array_equal(weft.onnx.load(proto)(np.ones(2, np.float32))[0], [np.inf, -np.inf])


def test_a_scan_without_turns_stacks_along_its_axis() -> None:
    body = helper.make_graph([helper.make_node("Identity", ["e"], ["o"])], "b", [info("e")], [info("o", F32, [3])])
    node = helper.make_node("Scan", ["x"], ["y"], num_scan_inputs=1, body=body, scan_output_axes=[1])
    proto = model([node], [info("x", F32, [0, 3])], [info("y")])
    assert weft.onnx.load(proto)(np.ones((0, 3), np.float32))[0].shape == (3, 0)


def test_functions_for_values_that_do_not_come_again_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.frontends.onnx.stages._KEPT", 2)
    monkeypatch.setattr("weft.frontends.onnx.stage_functions._KEPT", 2)
    nodes = [helper.make_node("Reshape", ["x", "n"], ["r"]), helper.make_node("Exp", ["r"], ["y"])]
    function = weft.onnx.load(model(nodes, [info("x", F32, [12]), info("n", I64, [2])], [info("y")]))
    for _ in range(2):
        for rows in (1, 2, 3, 4):
            assert function(np.ones(12, np.float32), np.array([rows, 12 // rows]))[0].shape == (rows, 12 // rows)
            assert len(function._program._functions) <= 2


def test_inputs_with_an_initializer_have_a_default() -> None:
    proto = layer(2)
    proto.graph.input.append(info("b", F32, [4]))
    function, x = weft.onnx.load(proto), np.zeros((2, 8), np.float32)
    np.testing.assert_array_equal(function(x, b=np.ones(4, np.float32))[0], np.ones((2, 4)))
    np.testing.assert_allclose(function(x)[0], expected_layer(proto, x))


def test_external_weights_lie_beside_the_model(tmp_path: Path) -> None:
    proto = layer(2)
    plain = weft.onnx.load(proto)
    path = tmp_path / "layer.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    x = np.ones((2, 8), np.float32)
    np.testing.assert_array_equal(weft.onnx.load(path)(x)[0], plain(x)[0])


def test_what_has_no_converter_is_named() -> None:
    proto = model([helper.make_node("Frobnicate", ["x"], ["y"], name="odd")], [info("x", F32, [2])], [info("y")])
    with pytest.raises(UnsupportedError, match=r"node 'odd' \(Frobnicate\)"):
        weft.onnx.load(proto)


def test_data_that_an_operator_refuses_are_told_with_its_node() -> None:
    nodes = [helper.make_node("Range", ["a", "b", "step"], ["y"], name="count")]
    proto = model(nodes, [info("a", I64, []), info("b", I64, []), info("step", I64, [])], [info("y", I64, ["n"])])
    with pytest.raises(DataError, match="'count'"):
        weft.onnx.load(proto)(np.array(0), np.array(3), np.array(0))


def test_the_backend_runs_models_and_nodes() -> None:
    x = np.array([-1.0, 2.0], np.float32)
    (y,) = weft.onnx.Backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(y, [0, 2])
    proto = layer(2)
    given = np.ones((2, 8), np.float32)
    (y,) = weft.onnx.Backend.prepare(proto).run({"x": given})
    np.testing.assert_allclose(y, expected_layer(proto, given), rtol=1e-5)
    assert weft.onnx.Backend.supports_device("CPU")


def test_weights_of_four_bits_are_multiplied_as_their_operator_says() -> None:
    rng = np.random.default_rng(0)
    rows, width, depth = 3, 5, 64
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    packed = rng.integers(0, 256, (width, 2, 16), dtype=np.uint8)
    scales = rng.standard_normal((width, 2)).astype(np.float32)
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=depth, N=width, bits=4, block_size=32
    )
    proto = model(
        [node],
        [info("x", F32, [rows, depth])],
        [info("y")],
        {"w": packed, "s": scales},
        opsets=[helper.make_opsetid("com.microsoft", 1)],
    )
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(width, 2, 32).astype(np.float32)
    weights = ((codes - 8) * scales[..., None]).reshape(width, depth)
    np.testing.assert_allclose(weft.onnx.load(proto)(x)[0], x @ weights.T, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_weights_beside_a_model_may_be_larger_than_a_message(tmp_path: Path) -> None:
    """Messages end at 2 GB. The file has holes, which take no room."""
    rows, columns = 65536, 8400
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * columns * 4)
        file.write(np.arange(8, dtype=np.float32).tobytes())
        file.seek((rows * columns - 1) * 4)
        file.write(np.float32(3).tobytes())
    weights = onnx.TensorProto(name="w", data_type=F32, dims=[rows, columns], data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("length", str(rows * columns * 4))):
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    proto = model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", F32, [1, rows])], [info("y")])
    proto.graph.initializer.append(weights)
    onnx.save(proto, tmp_path / "m.onnx")
    x = np.zeros((1, rows), np.float32)
    x[0, 0], x[0, -1] = 2, 1
    (y,) = weft.onnx.load(tmp_path / "m.onnx")(x)
    assert rows * columns * 4 > 1 << 31
    assert list(y[0, :8]) == [0, 2, 4, 6, 8, 10, 12, 14] and y[0, -1] == 3


def test_arrays_of_another_byte_order_are_told_so() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", F32, [3])], [info("y")])
    with pytest.raises(GuardError, match="byte order of other machines, expected float32"):
        weft.onnx.load(proto)(np.ones(3, ">f4"))
