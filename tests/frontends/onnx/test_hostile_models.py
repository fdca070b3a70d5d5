"""A model file is hostile until checked: what is wrong is a typed error, told before it costs memory or time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import weft.onnx  # noqa: E402
from tests.frontends.onnx.models import BOOL, F32, I64, info, layer, model  # noqa: E402
from weft.errors import ModelError, WeftError  # noqa: E402
from weft.frontends.onnx.read import Limits, read_model  # noqa: E402


def one_node(op: str, inputs: list[str], **attributes: Any) -> Any:
    node = helper.make_node(op, inputs, ["y"], name="odd", **attributes)
    return model([node], [info("x", F32, [2, 3])], [info("y")])


def with_tensor(**fields: Any) -> Any:
    proto = layer(2)
    tensor = proto.graph.initializer[0]
    for name, value in fields.items():
        tensor.ClearField(name)
        if isinstance(value, list):
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return proto


def nested(depth: int) -> Any:
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["t0"])], "g0", [], [info("t0", F32, None)])
    for n in range(1, depth):
        node = helper.make_node("If", ["yes"], [f"t{n}"], then_branch=graph, else_branch=graph if n < 2 else None)
        if n >= 2:
            node = helper.make_node("If", ["yes"], [f"t{n}"], then_branch=graph)
        graph = helper.make_graph([node], f"g{n}", [], [info(f"t{n}", F32, None)])
    outer = helper.make_node("If", ["yes"], ["y"], then_branch=graph)
    return model([outer], [info("x", F32, [2])], [info("y")], {"yes": np.array(True)})


def changed(change: Callable[[Any], Any]) -> Any:
    proto = layer(2)
    change(proto)
    return proto


def function_that_calls_itself() -> Any:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    call = helper.make_node("again", ["v"], ["w"], domain="own")
    function = helper.make_function("own", "again", ["v"], ["w"], [call], opsets)
    return model(
        [helper.make_node("again", ["x"], ["y"], domain="own")],
        [info("x", F32, [2])],
        [info("y")],
        opsets=opsets[1:],
        functions=[function],
    )


def functions_that_double(count: int) -> Any:
    """Each calls the next one twice: 2**count nodes."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions: list[Any] = []
    for n in range(count):
        op = {"domain": "own", "op_type": f"f{n + 1}"} if n + 1 < count else {"op_type": "Neg"}
        name = op.pop("op_type")
        calls = [helper.make_node(name, ["v"], ["m"], **op), helper.make_node(name, ["m"], ["w"], **op)]
        functions.append(helper.make_function("own", f"f{n}", ["v"], ["w"], calls, opsets))
    first = helper.make_node("f0", ["x"], ["y"], domain="own")
    return model([first], [info("x", F32, [2])], [info("y")], opsets=opsets[1:], functions=functions)


CASES: dict[str, Callable[[], Any]] = {
    "empty": lambda: onnx.ModelProto(),
    "no opset": lambda: changed(lambda m: m.ClearField("opset_import")),
    "unknown opset": lambda: changed(lambda m: setattr(m.opset_import[0], "version", 9999)),
    "negative opset": lambda: changed(lambda m: setattr(m.opset_import[0], "version", -1)),
    "cycle": lambda: changed(lambda m: m.graph.node[0].input.__setitem__(0, "y")),
    "self cycle": lambda: changed(lambda m: m.graph.node[0].input.__setitem__(0, "h")),
    "undefined input": lambda: changed(lambda m: m.graph.node[0].input.__setitem__(0, "nothing")),
    "undefined output": lambda: changed(lambda m: setattr(m.graph.output[0], "name", "nothing")),
    "two writers": lambda: changed(lambda m: m.graph.node[1].output.__setitem__(0, "h")),
    "writes an initializer": lambda: changed(lambda m: m.graph.node[1].output.__setitem__(0, "w")),
    "two initializers": lambda: changed(lambda m: m.graph.initializer.append(m.graph.initializer[0])),
    "two inputs": lambda: changed(lambda m: m.graph.input.append(m.graph.input[0])),
    "nameless op": lambda: changed(lambda m: setattr(m.graph.node[0], "op_type", "")),
    "unknown op": lambda: changed(lambda m: setattr(m.graph.node[0], "op_type", "Nope")),
    "unknown domain": lambda: changed(lambda m: setattr(m.graph.node[0], "domain", "../../etc")),
    "reserved domain": lambda: changed(lambda m: setattr(m.graph.node[0], "domain", "weft.stage")),
    "long name": lambda: changed(lambda m: setattr(m.graph.node[0], "op_type", "A" * 100_000)),
    "long input name": lambda: changed(lambda m: m.graph.node[0].input.__setitem__(0, "x" * 100_000)),
    "huge dims": lambda: with_tensor(dims=[1 << 40, 1 << 40]),
    "overflowing dims": lambda: with_tensor(dims=[1 << 32, 1 << 32, 4]),
    "negative dims": lambda: with_tensor(dims=[-8, -4]),
    "zero times huge": lambda: with_tensor(dims=[0, 1 << 62], raw_data=b""),
    "too few bytes": lambda: with_tensor(raw_data=b"\0" * 12),
    "too many bytes": lambda: with_tensor(raw_data=b"\0" * 1024),
    "many dims": lambda: with_tensor(dims=[1] * 200, raw_data=b"\0" * 4),
    "unknown type": lambda: with_tensor(data_type=99),
    "no type": lambda: with_tensor(data_type=0),
    "strings as raw data": lambda: with_tensor(data_type=TensorProto.STRING),
    "type of other width": lambda: with_tensor(data_type=TensorProto.DOUBLE),
    "huge input shape": lambda: changed(
        lambda m: m.graph.input[0].type.tensor_type.shape.dim[0].__setattr__("dim_value", 1 << 60)
    ),
    "input without a number of elements": lambda: model(
        [helper.make_node("Relu", ["x"], ["y"])], [info("x", F32, [4, 1 << 40, 1 << 40])], [info("y")]
    ),
    "unknown input type": lambda: changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77)),
    "other input type": lambda: changed(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", I64)),
    "shapes do not fit": lambda: changed(
        lambda m: m.graph.input[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", 9)
    ),
    "nested graphs": lambda: nested(28),
    "calls itself": function_that_calls_itself,
    "functions that double": lambda: functions_that_double(22),
    "functions within functions": lambda: functions_that_double(200),
    "attribute of another type": lambda: one_node("Flatten", ["x"], axis="one"),
    "attribute beyond the rank": lambda: one_node("Flatten", ["x"], axis=7),
    "axis beyond the rank": lambda: one_node("Softmax", ["x"], axis=9),
    "axis below the rank": lambda: one_node("ArgMax", ["x"], axis=-9),
    "missing attribute": lambda: one_node("Cast", ["x"]),
    "cast to no type": lambda: one_node("Cast", ["x"], to=1234),
    "order of other dimensions": lambda: one_node("Transpose", ["x"], perm=[0, 0]),
    "order too long": lambda: one_node("Transpose", ["x"], perm=[0, 1, 2]),
    "missing input": lambda: one_node("MatMul", ["x"]),
    "empty input": lambda: one_node("Relu", [""]),
    "too many outputs": lambda: changed(lambda m: m.graph.node[2].output.extend(["p", "q"])),
    "window larger than the image": lambda: model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[9, 9])], [info("x", F32, [1, 1, 3, 3])], [info("y")]
    ),
    "window of 0": lambda: model(
        [helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[0, 0])], [info("x", F32, [1, 1, 3, 3])], [info("y")]
    ),
    "stride of 0": lambda: model(
        [helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[0, 1])],
        [info("x", F32, [1, 1, 3, 3])],
        [info("y")],
    ),
    "huge constant": lambda: model(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])], [], [info("y")], {"s": np.array([1 << 40, 1 << 20])}
    ),
    "constant of a negative shape": lambda: model(
        [helper.make_node("ConstantOfShape", ["s"], ["y"])], [], [info("y")], {"s": np.array([-1, 4])}
    ),
    "huge expansion": lambda: model(
        [helper.make_node("Expand", ["x", "s"], ["y"])], [info("x", F32, [1])], [info("y")], {"s": np.array([1 << 50])}
    ),
    "huge tiling": lambda: model(
        [helper.make_node("Tile", ["x", "s"], ["y"])], [info("x", F32, [2])], [info("y")], {"s": np.array([1 << 50])}
    ),
    "huge range": lambda: model(
        [helper.make_node("Range", ["a", "b", "c"], ["y"])],
        [],
        [info("y")],
        {"a": np.array(0), "b": np.array(1 << 60), "c": np.array(1)},
    ),
    "huge padding": lambda: model(
        [helper.make_node("Pad", ["x", "p"], ["y"])], [info("x", F32, [2])], [info("y")], {"p": np.array([0, 1 << 55])}
    ),
    "reshape to another count": lambda: model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", F32, [6])], [info("y")], {"s": np.array([4, 2])}
    ),
    "reshape by a float": lambda: model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", F32, [6])], [info("y")], {"s": np.array([6.0])}
    ),
    "split that does not fit": lambda: model(
        [helper.make_node("Split", ["x", "s"], ["y", "z"])], [info("x", F32, [6])], [info("y")], {"s": np.array([9, 9])}
    ),
    "step of 0": lambda: model(
        [helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"])],
        [info("x", F32, [6])],
        [info("y")],
        {"s": np.array([0]), "e": np.array([3]), "a": np.array([0]), "t": np.array([0])},
    ),
    "equation of other letters": lambda: one_node("Einsum", ["x"], equation="i\0j->__import__"),
    "equation with too many terms": lambda: one_node("Einsum", ["x"], equation="ij,jk->ik"),
    "endless loop": lambda: model(
        [
            helper.make_node(
                "Loop",
                ["", "", "x"],
                ["y"],
                body=helper.make_graph(
                    [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["v"], ["w"])],
                    "body",
                    [info("i", I64, []), info("c", BOOL, []), info("v", F32, [2])],
                    [info("d", BOOL, []), info("w", F32, [2])],
                ),
            )
        ],
        [info("x", F32, [2])],
        [info("y")],
    ),
    "branch without the outputs": lambda: model(
        [helper.make_node("If", ["c"], ["y", "z"], then_branch=helper.make_graph([], "t", [], []))],
        [],
        [info("y")],
        {"c": np.array(True)},
    ),
    "blocks of nothing": lambda: model(
        [helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=0)], [info("x", F32, [1, 4, 4, 4])], [info("y")]
    ),
    "division by an attribute": lambda: one_node("Celu", ["x"], alpha=0.0),
    "layer of a matrix": lambda: model(
        [helper.make_node("LSTM", ["x", "w", "w"], ["y"], hidden_size=2)],
        [info("x", F32, [3, 2])],
        [info("y")],
        {"w": np.zeros((1, 8, 2), np.float32)},
    ),
    "range to no number": lambda: model(
        [helper.make_node("Range", ["a", "b", "c"], ["y"])],
        [info("x", F32, [1])],
        [info("y")],
        {"a": np.array(0, np.float32), "b": np.array(np.nan, np.float32), "c": np.array(1, np.float32)},
    ),
    "strings without end": lambda: model(
        [helper.make_node("Tile", ["s", "n"], ["y"])],
        [info("x", F32, [1])],
        [info("y", TensorProto.STRING)],
        {"s": np.array(["a"], object), "n": np.array([1 << 40])},
    ),
    "a shape of strings without end": lambda: model(
        [helper.make_node("ConstantOfShape", ["n"], ["y"], value=helper.make_tensor("v", 8, [1], [b"a"]))],
        [info("x", F32, [1])],
        [info("y", TensorProto.STRING)],
        {"n": np.array([1 << 35])},
    ),
    "a table without end": lambda: model(
        [helper.make_node("MelWeightMatrix", ["bins", "length", "rate", "low", "high"], ["y"])],
        [info("x", F32, [1])],
        [info("y")],
        {"bins": np.array(65000), "length": np.array(1 << 20), "rate": np.array(16000)}
        | {"low": np.array(0, np.float32), "high": np.array(8000, np.float32)},
    ),
    "sparse places outside": lambda: changed(
        lambda m: m.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.ones(1, np.float32), "sp"),
                numpy_helper.from_array(np.array([99]), "places"),
                [4],
            )
        )
    ),
    "sparse values without a dimension": lambda: changed(
        lambda m: m.graph.sparse_initializer.append(
            onnx.SparseTensorProto(
                values=numpy_helper.from_array(np.array(1, np.float32), "sp"),
                indices=numpy_helper.from_array(np.array([0]), "places"),
                dims=[4],
            )
        )
    ),
    "huge sparse tensor": lambda: changed(
        lambda m: m.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(np.ones(1, np.float32), "sp"),
                numpy_helper.from_array(np.array([0]), "places"),
                [1 << 30, 1 << 30],
            )
        )
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_model_is_refused_by_a_typed_error_in_time(name: str) -> None:
    data = CASES[name]().SerializeToString()
    begun = time.process_time()
    with pytest.raises(WeftError):
        weft.onnx.load(data)
    assert time.process_time() - begun < 2


def external(location: str, offset: str = "0", length: str = "128") -> Any:
    proto = layer(2)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=value)
    return proto


def written(folder: Path, proto: Any) -> Path:
    path = folder / "model" / "m.onnx"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(proto.SerializeToString())
    return path


LOCATIONS = [
    "../outside.bin", "/etc/passwd", "a/../../outside.bin", "", ".", "..", "link.bin", "hard.bin", "folder", "pipe",
    "linked/inside.bin", "absent.bin", "zero\0byte", "..\\outside.bin", "//outside.bin", "./outside.bin",
]  # fmt: skip


@pytest.mark.parametrize("location", LOCATIONS)
def test_external_data_cannot_leave_the_models_folder(tmp_path: Path, location: str) -> None:
    path = written(tmp_path, external(location))
    outside, folder = tmp_path / "outside.bin", path.parent
    outside.write_bytes(b"\0" * 128)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "inside.bin").write_bytes(b"\0" * 128)
    (folder / "link.bin").symlink_to(outside)
    os.link(outside, folder / "hard.bin")
    (folder / "folder").mkdir()
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelError):
        read_model(path)


@pytest.mark.parametrize(
    ("offset", "length"), [("0", "4096"), ("100", "128"), ("-4", "128"), ("x", "128"), ("0", "-1"), ("0", str(1 << 70))]
)
def test_external_data_are_compared_with_the_file_before_they_are_read(
    tmp_path: Path, offset: str, length: str
) -> None:
    path = written(tmp_path, external("w.bin", offset, length))
    (path.parent / "w.bin").write_bytes(b"\0" * 128)
    with pytest.raises(ModelError):
        read_model(path)


def test_external_data_of_a_model_in_memory_are_refused() -> None:
    with pytest.raises(ModelError, match="given as bytes"):
        read_model(external("w.bin").SerializeToString())


def test_limits_of_nodes_and_initializers_are_told() -> None:
    data = layer(2).SerializeToString()
    for limits in (Limits(nodes=2), Limits(initializers=1), Limits(rank=1), Limits(size=4)):
        with pytest.raises(ModelError):
            read_model(data, limits=limits)


def test_every_cut_of_a_file_is_refused_or_read() -> None:
    data = layer(2).SerializeToString()
    refused = 0
    for length in range(len(data)):
        try:
            read_model(data[:length])
        except WeftError:
            refused += 1
    assert refused > len(data) * 0.9


def test_mutated_files_are_refused_by_typed_errors_or_read() -> None:
    rng = np.random.default_rng(0)
    models = [layer(2), CASES["nested graphs"](), CASES["endless loop"](), CASES["huge sparse tensor"]()]
    for proto in models:
        data = np.frombuffer(proto.SerializeToString(), np.uint8)
        for _ in range(500):
            changed_ = data.copy()
            for place in rng.integers(0, len(data), int(rng.integers(1, 6))):
                changed_[place] = rng.integers(0, 256)
            try:
                read_model(changed_.tobytes())
            except WeftError:
                continue


def test_a_node_of_the_host_with_too_many_outputs_is_refused() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n", "more"], name="nonzero"),
        helper.make_node("Neg", ["more"], ["y"]),
    ]
    loaded = weft.onnx.load(model(nodes, [info("x", F32, (3,))], [info("y", I64)]))
    with pytest.raises(ModelError, match=r"'nonzero'.* has 2 outputs, expected at most 1"):
        loaded(np.ones(3, np.float32))


def test_sparse_initializers_have_a_limit_in_all() -> None:
    proto = layer(2)
    for number in range(40):  # 16 MB each, of a hundred bytes
        values = numpy_helper.from_array(np.ones(1, np.float32), f"sparse{number}")
        places = numpy_helper.from_array(np.array([0]), "places")
        proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [1 << 22]))
    with pytest.raises(ModelError, match="sparse tensors written out"):
        read_model(proto.SerializeToString())


def test_a_size_of_0_is_a_size_and_a_negative_one_is_open() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    found = read_model(model([relu], [info("x", F32, [0, -1, 3])], [info("y", F32, [0, -1, 3])]).SerializeToString())
    assert found.graph.inputs[0].type.shape == (0, None, 3)
