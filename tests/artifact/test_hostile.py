"""A file is hostile until it is checked: refusals are typed, quick, and need little memory."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.artifact.container import read_members
from weft.artifact.manifest import GRAPH, MANIFEST, PREPARED, WEIGHTS
from weft.artifact.safetensors import read_tensors, to_pieces
from weft.errors import ArtifactError, ArtifactVersionError, CorruptArtifactError, ParseError
from weft.ir.size_text import parse_size
from weft.testing.hostile_artifacts import archive, members_of, resealed, run


@pytest.fixture
def layer(made: Path) -> bytes:
    return (made / "layer.weft").read_bytes()


def refused(data: bytes, tmp_path: Path) -> ArtifactError:
    path = tmp_path / "hostile.weft"
    path.write_bytes(data)
    with pytest.raises(ArtifactError) as found:
        weft.load(path, trust=True)
    return found.value


def test_hundreds_of_changed_files_are_refused_or_compiled(tmp_path: Path) -> None:
    outcomes = run(300, 3, tmp_path)
    assert outcomes["CorruptArtifactError"] > 100
    assert outcomes["compiled anew"] > 20


@pytest.mark.slow
def test_ten_thousand_changed_files_take_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "weft.testing.hostile_artifacts", "--count", "10000", "--seed", "11"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-4]) < 512


def test_every_truncation_is_refused(layer: bytes, tmp_path: Path) -> None:
    for length in [*range(0, 200), *range(200, len(layer), len(layer) // 100), len(layer) - 1]:
        refused(layer[:length], tmp_path)


def _zip(entries: list[tuple[str, bytes]], **options: Any) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as out:
        for name, content in entries:
            out.writestr(name, content)
    return file.getvalue()


def test_archives_that_others_wrote_are_refused(layer: bytes, tmp_path: Path) -> None:
    members = list(members_of(layer).items())
    refused(_zip(members), tmp_path)
    refused(_zip(members, compression=zipfile.ZIP_DEFLATED), tmp_path)
    refused(_zip([(MANIFEST, b"\0" * (1 << 24))], compression=zipfile.ZIP_DEFLATED), tmp_path)  # a bomb


@pytest.mark.parametrize(
    "name", ["../weights", "/etc/passwd", "a/../../b", "a//b", "A", "", "a\\b", "a b", "x" * 101, "a\0b", "ü"]
)
def test_names_that_lead_elsewhere_are_refused(layer: bytes, tmp_path: Path, name: str) -> None:
    refused(archive({**members_of(layer), name: b"x"}), tmp_path)


def test_two_members_of_one_name_are_refused(layer: bytes) -> None:
    name = GRAPH.encode()
    twice = archive({**members_of(layer), "grapx.mlir": b"other"}).replace(b"grapx.mlir", name)
    with pytest.raises(CorruptArtifactError, match="one name"):
        read_members(memoryview(twice))


@pytest.mark.parametrize("change", [lambda d: b"MZ" + d, lambda d: d + b"\0", lambda d: d[:-2] + b"\1\0" + b"c", bytes])
def test_bytes_of_no_member_are_refused(layer: bytes, tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    changed = change(layer)
    if changed == layer:  # a header of a member's own that differs from the directory's
        place = layer.index(b"PK\x03\x04", 10) + 14
        changed = layer[:place] + b"\xff" + layer[place + 1 :]
    refused(changed, tmp_path)


def test_members_that_overlap_are_refused(layer: bytes, tmp_path: Path) -> None:
    """Two entries of the directory that point to one place."""
    at = layer.index(b"PK\x01\x02")
    second = layer.index(b"PK\x01\x02", at + 4)
    place = second + 42
    refused(layer[:place] + struct.pack("<I", 0) + layer[place + 4 :], tmp_path)


@pytest.mark.parametrize("field", [20, 24])
@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF])
def test_sizes_that_lie_are_refused(layer: bytes, tmp_path: Path, field: int, size: int) -> None:
    place = layer.index(b"PK\x01\x02") + field
    refused(layer[:place] + struct.pack("<I", size) + layer[place + 4 :], tmp_path)


def test_a_directory_without_end_is_refused(layer: bytes, tmp_path: Path) -> None:
    for offset, value in ((24, 1 << 40), (32, 1 << 62), (40, 1 << 63), (48, (1 << 64) - 1)):
        place = layer.index(b"PK\x06\x06") + offset
        refused(layer[:place] + struct.pack("<Q", value) + layer[place + 8 :], tmp_path)


MANIFESTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another format": lambda m: m.update(format=99),
    "a format that is no number": lambda m: m.update(format=True),
    "an argument twice": lambda m: m["arguments"].append(m["arguments"][0]),
    "an unknown type": lambda m: m["arguments"][0].update(dtype="f31"),
    "a negative size": lambda m: m["arguments"][0].update(shape=[-1, 8]),
    "a huge size": lambda m: m["arguments"][0].update(shape=[1 << 60, 8]),
    "a size that is code": lambda m: m["arguments"][0].update(shape=["__import__('os')", 8]),
    "a size without end": lambda m: m["arguments"][0].update(shape=["+".join(["s"] * 300), 8]),
    "a size that explodes": lambda m: m["arguments"][0].update(shape=["*".join(f"(a{n}+b{n})" for n in range(30)), 8]),
    "a weight of another shape": lambda m: m["arguments"][1].update(shape=[3, 8]),
    "a weight that is none": lambda m: m["arguments"][1].update(constant=False),
    "code elsewhere": lambda m: m["processors"][0].update(code="../../lib/libc.so"),
    "constants elsewhere": lambda m: m["processors"][0]["constants"][0].update(member="/etc/passwd"),
    "a result that is none": lambda m: m["processors"][0]["results"][0].update(index=9),
    "a verdict that is none": lambda m: m.update(mistakes=[{"kind": "data", "message": "what"}]),
    "a mistake of no kind": lambda m: m.update(mistakes=[{"kind": "os", "message": "what"}]),
    "a mistake with a long story": lambda m: m.update(mistakes=[{"kind": "data", "message": "what" * 999}]),
    "more than it should": lambda m: m.update(more=1),
    "members that are not there": lambda m: m["members"].update(other={"size": 1, "sha512": "0" * 128}),
    "a huge rank": lambda m: m["results"][0].update(shape=[1] * 100),
}


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_manifests_that_lie_are_refused(
    layer: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    members = members_of(layer)
    manifest = json.loads(members[MANIFEST])
    change(manifest)
    error = refused(archive({**members, MANIFEST: json.dumps(manifest).encode()}), tmp_path)
    assert isinstance(error, CorruptArtifactError | ArtifactVersionError)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{", b"[" * 100_000, b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe", b"1" * 10_000]
)
def test_manifests_that_are_none_are_refused(layer: bytes, tmp_path: Path, text: bytes) -> None:
    refused(archive({**members_of(layer), MANIFEST: text}), tmp_path)


def _header(entries: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(**changes: object) -> dict[str, object]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


TENSORS = {
    "nothing": b"",
    "a header that is too long": _header({}, length=1 << 62),
    "a header that is no JSON": _header(b"{"),
    "a shape that overflows": _header(_tensor(shape=[1 << 40, 1 << 40]), bytes(8)),
    "a shape that multiplies to its bytes again": _header(_tensor(shape=[1 << 33, 1 << 31]), bytes(8)),
    "offsets outside": _header(_tensor(data_offsets=[0, 1 << 40]), bytes(8)),
    "negative offsets": _header(_tensor(data_offsets=[-8, 0]), bytes(8)),
    "offsets that are no numbers": _header(_tensor(data_offsets=["0", 8]), bytes(8)),
    "a type that is none": _header(_tensor(dtype="F31"), bytes(8)),
    "bytes of none": _header(_tensor(), bytes(9)),
    "an overlap": _header({**_tensor(), "v": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)),
    "a rank without end": _header(_tensor(shape=[1] * 1000 + [2]), bytes(8)),
    "entries more": _header(_tensor(more=1), bytes(8)),
}


@pytest.mark.parametrize("data", TENSORS.values(), ids=TENSORS.keys())
def test_weights_that_lie_are_refused(layer: bytes, tmp_path: Path, data: bytes) -> None:
    with pytest.raises(CorruptArtifactError):
        read_tensors(memoryview(data), "weights")
    for name in (WEIGHTS, PREPARED):
        refused(resealed({**members_of(layer), name: data}), tmp_path)


def test_weights_come_back_as_they_were() -> None:
    import ml_dtypes

    given = {
        "a": np.arange(6, dtype=np.int64).reshape(2, 3),
        "b": np.array(1.5, np.float32),
        "c": np.zeros((0, 4), np.uint8),
        "d": np.arange(5).astype(ml_dtypes.bfloat16),
        "e": np.array([True, False]),
        "f": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    }
    found = read_tensors(memoryview(b"".join(to_pieces(given))), "weights")
    assert found.keys() == given.keys()
    for name, array in given.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


GRAPHS = {
    "nothing": "",
    "no text": "\x00",
    "regions in regions": '"graph.func"() ({' * 1000,
    "a huge value": (
        '"graph.func"() ({\n^bb0(%x: tensor<8xf32>):\n  %0 = "graph.full"() {value = 1.0 : f32, shape = [SIZE : i64], '
        'dtype = f32} : () -> tensor<SIZExf32>\n  "graph.return"(%0) : (tensor<SIZExf32>) -> ()\n'
        '}) {sym_name = "layer", arg_names = ["x"]} : () -> ()'
    ).replace("SIZE", str(1 << 45)),
}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS.keys())
def test_graphs_that_are_none_are_refused(layer: bytes, tmp_path: Path, text: str) -> None:
    path = tmp_path / "hostile.weft"
    path.write_bytes(resealed({**members_of(layer), GRAPH: text.encode()}))
    with pytest.raises((ArtifactError, ParseError)):
        weft.load(path)


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ('"graph.exp"(%b) :', '"graph.exp"(%b) {"weft.claim" = "blas"} :'),
        ('sym_name = "layer"', 'sym_name = "layer", prepares = "layer"'),
        (
            '"graph.exp"(%b) :',
            '"graph.group"(%b) ({\n^bb1(%e: tensor<3xf32>):\n "graph.yield"(%e) : (tensor<3xf32>) -> ()\n}) '
            "{in_place = [[0 : i64, 0 : i64]]} :",
        ),
    ],
    ids=["who multiplies", "what prepares", "what is written over"],
)
def test_graphs_that_say_what_only_passes_say_are_refused(
    layer: bytes, tmp_path: Path, found: str, instead: str
) -> None:
    members = members_of(layer)
    text = members[GRAPH].decode()
    assert found in text
    path = tmp_path / "hostile.weft"
    path.write_bytes(resealed({**members, GRAPH: text.replace(found, instead).encode()}))
    with pytest.raises(CorruptArtifactError, match="as only the compiler writes it"):
        weft.load(path)


def test_a_graph_that_takes_other_arguments_is_refused(layer: bytes, tmp_path: Path) -> None:
    members = members_of(layer)
    path = tmp_path / "hostile.weft"
    path.write_bytes(resealed({**members, GRAPH: members[GRAPH].replace(b'"x", "w"', b'"w", "x"')}))
    with pytest.raises(CorruptArtifactError, match="other arguments"):
        weft.load(path)


def test_sizes_do_not_explode() -> None:
    for text in ("*".join(f"(a{n}+b{n})" for n in range(30)), "(" * 5000 + "s" + ")" * 5000, "s//0", "s" * 20_000):
        with pytest.raises(ParseError):
            parse_size(text)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(ArtifactError):
            weft.load(path)


def test_checksums_of_members_are_those_of_the_format(layer: bytes) -> None:
    for member in read_members(memoryview(layer)).values():
        assert zlib.crc32(layer[member.start : member.start + member.size]) == member.crc
        assert member.start % 64 == 0


def test_a_model_that_is_not_compiled_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\x12\x07pytorch")
    with pytest.raises(CorruptArtifactError, match="not an artifact") as told:
        weft.load(tmp_path / "m.onnx")
    assert told.value.hint == "`weft compile` makes one of a model"
