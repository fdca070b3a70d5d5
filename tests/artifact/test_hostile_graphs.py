"""The graph of an artifact that nobody vouches for reads and writes its own values alone, whatever it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.artifact.manifest import GRAPH, MANIFEST, PREPARED, SIGNATURES
from weft.artifact.opened import open_artifact
from weft.artifact.write import Request, Source, write_artifact
from weft.errors import ArtifactError, CorruptArtifactError, ShapeError
from weft.testing.hostile_artifacts import archive, members_of, resealed

_X = 'tensor<?xf32, #graph.sizes<["s0"]>>'
_SLICE = f"""
"graph.func"() ({{
^bb0(%x: {_X}):
  %0 = "graph.slice"(%x) {{starts = [3], shape = [4096], steps = [1]}} : ({_X}) -> tensor<4096xf32>
  "graph.return"(%0) : (tensor<4096xf32>) -> ()
}}) {{sym_name = "part", arg_names = ["x"]}} : () -> ()
"""


def _unvouched(path: Path) -> None:
    members = members_of(path.read_bytes())
    members[SIGNATURES] = json.dumps({"machine": "0" * 64, "key": "", "signature": ""}).encode()
    path.write_bytes(archive(members))


def test_a_slice_does_not_read_past_its_array(tmp_path: Path) -> None:
    path = tmp_path / "part.weft"
    write_artifact(path, Source(_SLICE, {}), Request(("host",)))
    _unvouched(path)
    model = weft.load(path)
    assert model.how == "compiled anew"
    with pytest.raises(ShapeError, match="s0 = 8"):
        model(np.zeros(8, np.float32))
    assert model(np.zeros(5000, np.float32))[0].shape == (4096,)


@pytest.mark.parametrize("name", ["arg_strides", "result_strides"])
def test_strides_that_leave_an_array_are_refused(layer: Path, name: str) -> None:
    members = members_of(layer.read_bytes())
    count = 3 if name == "arg_strides" else 1
    strides = ", ".join(["[1000000, 1]"] + ["none"] * (count - 1))
    text = members[GRAPH].decode().replace("sym_name =", f"{name} = [{strides}], sym_name =")
    layer.write_bytes(resealed({**members, GRAPH: text.encode()}))
    with pytest.raises((ShapeError, ArtifactError)):
        weft.load(layer)(np.zeros((5, 8), np.float32))


def test_tiles_whose_places_are_data_are_refused(layer: Path) -> None:
    x, w, n = "tensor<3x5xf32>", "tensor<2x4x5xf32>", "tensor<1xi32>"
    text = f"""
"graph.func"() ({{
^bb0(%x: {x}, %w: {w}, %a: {n}, %b: {n}, %c: {n}, %d: {n}):
  %0 = "graph.tiled_dot"(%x, %w, %a, %b, %c, %d) {{rows = 8}} : ({x}, {w}, {n}, {n}, {n}, {n}) -> tensor<3x4xf32>
  "graph.return"(%0) : (tensor<3x4xf32>) -> ()
}}) {{sym_name = "layer", arg_names = ["x", "w", "a", "b", "c", "d"]}} : () -> ()
"""
    layer.write_bytes(resealed({**members_of(layer.read_bytes()), GRAPH: text.encode()}))
    with pytest.raises(CorruptArtifactError, match="as only the compiler writes it"):
        weft.load(layer)


def test_a_header_that_is_swapped_after_it_was_checked_changes_nothing(layer: Path) -> None:
    artifact = open_artifact(layer)
    before = {name: array.shape for name, array in artifact.tensors(PREPARED).items()}
    assert before
    found = artifact.members[PREPARED]
    with layer.open("r+b") as file:
        file.seek(found.start + 8)
        head = file.read(len(artifact.heads[PREPARED]) - 8)
        header = json.loads(head)
        name = next(key for key in header if key != "__metadata__")
        header[name] |= {"dtype": "U8", "shape": [header[name]["data_offsets"][1] - header[name]["data_offsets"][0]]}
        swapped = json.dumps(header, separators=(",", ":")).encode()
        assert len(swapped) <= len(head)
        file.seek(found.start + 8)
        file.write(swapped.ljust(len(head)))
    assert {name: array.shape for name, array in artifact.tensors(PREPARED).items()} == before


def test_what_a_head_holds_is_what_was_compared(layer: Path) -> None:
    """A header of other bytes than the digest's is refused when the file is opened."""
    artifact = open_artifact(layer)
    at = artifact.members[PREPARED].start + 9
    data = bytearray(layer.read_bytes())
    data[at] ^= 1
    layer.write_bytes(bytes(data))
    with pytest.raises(CorruptArtifactError):
        open_artifact(layer)
    assert MANIFEST in artifact.members
