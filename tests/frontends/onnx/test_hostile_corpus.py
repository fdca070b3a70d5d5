"""Hundreds of hostile files, made of each kind of model: refused quickly, by typed errors."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402

import weft.onnx  # noqa: E402
from weft.errors import ModelError, WeftError  # noqa: E402
from weft.frontends.onnx import import_nodes  # noqa: E402
from weft.testing.onnx_models import MODELS, info, layer, model  # noqa: E402

SECONDS = 2.0
_WRONG_TYPE = {"ints": ("f", 1.5), "i": ("s", b"one"), "f": ("g", None), "s": ("i", 3), "g": ("i", 3), "t": ("i", 3)}


def _of_every_model() -> Iterator[tuple[str, bytes, str]]:
    """A name, a file, and what the refusal has to say of it."""
    for make in MODELS:
        name, whole = make.__name__, make().SerializeToString()
        for part in (0.1, 0.5, 0.9):
            yield f"{name} cut at {part}", whole[: int(len(whole) * part)], ""
        for number, node in enumerate(make().graph.node):
            where = f"{name} {node.op_type}"

            def changed(number: int = number, make: Any = make) -> tuple[Any, Any]:
                proto = make()
                return proto, proto.graph.node[number]

            proto, it = changed()
            it.op_type = "NoSuchOperator"
            yield f"{where} of no operator", proto.SerializeToString(), f"{node.name!r}"
            proto, it = changed()
            it.input[0] = "nowhere"
            yield f"{where} reads what nothing makes", proto.SerializeToString(), f"{node.name!r}"
            proto, it = changed()
            it.input[0] = it.output[0]
            yield f"{where} reads itself", proto.SerializeToString(), f"{node.name!r}"
            proto, it = changed()
            proto.graph.node.append(it)
            yield f"{where} twice", proto.SerializeToString(), f"{node.name!r}"
            for attribute in node.attribute:
                fields = [field.name for field, _ in attribute.ListFields() if field.name in _WRONG_TYPE]
                if not fields or attribute.ref_attr_name or attribute.name == "else_branch":  # which is not taken
                    continue
                proto, it = changed()
                odd = next(each for each in it.attribute if each.name == attribute.name)
                odd.ClearField(fields[0])
                field, value = _WRONG_TYPE[fields[0]]
                odd.type = {"f": 1, "i": 2, "s": 3, "g": 5}[field]
                if value is None:
                    odd.g.CopyFrom(helper.make_graph([], "odd", [], []))
                else:
                    setattr(odd, field, value)
                yield f"{where}.{attribute.name} of another type", proto.SerializeToString(), f"{node.name!r}"
        for number, tensor in enumerate(make().graph.initializer):
            for word, dims in (("huge", [1 << 62, 4]), ("negative", [-3]), ("longer", [10_007]), ("deep", [1] * 100)):
                proto = make()
                proto.graph.initializer[number].ClearField("dims")
                proto.graph.initializer[number].dims.extend(dims)
                yield f"{name} {tensor.name} with a {word} shape", proto.SerializeToString(), f"{tensor.name!r}"
            proto = make()
            proto.graph.initializer[number].data_type = 99
            yield f"{name} {tensor.name} of no type", proto.SerializeToString(), f"{tensor.name!r}"
            proto = make()
            proto.graph.initializer.append(tensor)
            yield f"{name} {tensor.name} twice", proto.SerializeToString(), "two initializers"


def _bomb(depth: int) -> Any:
    """Branches in branches."""
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "inner", [], [info("t")])
    for level in range(depth):
        node = helper.make_node("If", ["c"], [f"o{level}"], then_branch=graph)
        graph = helper.make_graph([node], f"g{level}", [], [info(f"o{level}")])
    node = helper.make_node("If", ["c"], ["y"], then_branch=graph)
    return model([node], [info("x", (2,)), info("c", (), int(TensorProto.BOOL))], [info("y")])


def _of_the_whole() -> Iterator[tuple[str, bytes, str]]:
    for depth in (25, 28, 30):
        yield f"branches {depth} deep", _bomb(depth).SerializeToString(), ""
    whole = layer().SerializeToString()
    words = model([helper.make_node("Identity", ["w"], ["y"])], [], [info("y")], {"w": np.array(["product"], object)})
    yield "bad UTF-8", words.SerializeToString().replace(b"product", b"pro\xff\xfect"), "'w'"
    for length in (1 << 13, 1 << 20):
        proto = layer()
        proto.graph.node[0].name = "n" * length
        yield f"a name of {length}", proto.SerializeToString(), "characters"
    for size in (1 << 62, 1 << 40):
        proto = layer()
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = size
        yield f"an input of {size} rows", proto.SerializeToString(), ""
    for version in (0, 10_000, -1, 1 << 40):
        proto = layer()
        proto.opset_import[0].version = version
        yield f"operator set {version}", proto.SerializeToString(), str(version)
    for op, extra in (("Expand", [1 << 40]), ("Tile", [1 << 40]), ("Reshape", [7, 7, 7]), ("ConstantOfShape", [-4])):
        inputs = ["x", "s"] if op != "ConstantOfShape" else ["s"]
        yield (
            f"{op} to {extra}",
            model(
                [helper.make_node(op, inputs, ["y"], name="it")],
                [info("x", (1,))],
                [info("y")],
                {"s": np.array(extra)},
            ).SerializeToString(),
            "",
        )
    for name, data in (("nothing", b""), ("zeros", bytes(1000)), ("text", b"hello" * 100), ("ones", b"\xff" * 1000)):
        yield name, data, ""
    # A length that is larger than the file, and lengths that nest.
    yield "a length without end", b"\x3a\xff\xff\xff\xff\x7f" + whole, ""
    yield "messages in messages", _nested_bytes(3000), ""


def _nested_bytes(depth: int) -> bytes:
    """Type messages (sequence of sequence of …) so deep that a parser might recurse."""
    data = b""
    for _ in range(depth):
        data = b"\x0a" + _varint(len(data)) + data  # elem_type
        data = b"\x22" + _varint(len(data)) + data  # sequence_type
    value = b"\x0a\x01x\x12" + _varint(len(data)) + data
    graph = b"\x5a" + _varint(len(value)) + value
    return b"\x08\x0a\x3a" + _varint(len(graph)) + graph


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


def corpus() -> list[tuple[str, bytes, str]]:
    return [*_of_every_model(), *_of_the_whole()]


_CORPUS = {name: (data, said) for name, data, said in corpus()}


def _tried(data: bytes) -> None:
    """Load a file, and run it: what follows a step that data decide is looked at then."""
    loaded = weft.onnx.load(data)
    loaded.run(
        [
            np.ones([size for size in each.type.shape or () if isinstance(size, int)], each.type.dtype)
            for each in loaded.inputs
        ]
    )


def test_the_corpus_is_large() -> None:
    assert len(_CORPUS) >= 120


@pytest.mark.parametrize("name", _CORPUS)
def test_a_hostile_file_is_refused_by_name_and_in_time(name: str) -> None:
    data, said = _CORPUS[name]
    begun = time.process_time()
    with pytest.raises(WeftError) as found:
        _tried(data)
    assert time.process_time() - begun < SECONDS
    assert said in str(found.value)


def test_all_of_them_together_take_little_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.frontends.onnx.test_hostile_corpus"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after - before < 512 << 10


def test_a_node_that_asks_for_more_memory_than_there_is_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(call: Any) -> Any:
        return np.empty(1 << 60, np.uint8)

    monkeypatch.setattr(import_nodes, "converter_of", lambda *_: convert)
    proto = model([helper.make_node("Neg", ["x"], ["y"], name="odd")], [info("x", shape=[2])], [info("y")])
    with pytest.raises(ModelError, match=r"'odd'.*asks for more memory than there is: Unable to allocate"):
        weft.onnx.load(proto)


if __name__ == "__main__":
    sizes = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]
    for file, _ in _CORPUS.values():
        with contextlib.suppress(WeftError):
            _tried(file)
    print(*sizes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
