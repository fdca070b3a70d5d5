"""`weft spatial` compiles, verifies and runs schedules, and refuses tampered ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.spatial.machine import FOLDER

from .conftest import last_json

PRODUCT = """
"graph.func"() ({
^bb0(%x: tensor<16x64xi8>, %w: tensor<64x32xi8>):
  %0 = "graph.dot"(%x, %w) {dtype = i32} : (tensor<16x64xi8>, tensor<64x32xi8>) -> tensor<16x32xi32>
  "graph.return"(%0) : (tensor<16x32xi32>) -> ()
}) {sym_name = "product", arg_names = ["x", "w"]} : () -> ()
"""


@pytest.fixture
def schedule(weft, tmp_path: Path) -> Path:
    (tmp_path / "product.mlir").write_text(PRODUCT)
    np.savez(tmp_path / "weights.npz", w=np.arange(64 * 32).reshape(64, 32).astype(np.int8))
    made = tmp_path / "schedule.mlir"
    given = ("--constants", str(tmp_path / "weights.npz"), "-o", str(made))
    result = weft("spatial", "compile", str(tmp_path / "product.mlir"), *given, "--json")
    figures = last_json(result)
    assert figures["ok"] and figures["band"][0] < figures["cycles"] < figures["band"][1]
    return made


def test_a_schedule_runs_in_the_cycles_that_were_predicted(weft, schedule: Path, tmp_path: Path) -> None:
    x = np.arange(16 * 64).reshape(16, 64).astype(np.int8)
    np.savez(tmp_path / "inputs.npz", x=x)
    given = ("--inputs", str(tmp_path / "inputs.npz"), "-o", str(tmp_path / "results.npz"))
    figures = last_json(weft("spatial", "simulate", str(schedule), *given, "--json"))
    assert figures["ok"] and figures["cycles"] == figures["predicted"]
    w = np.arange(64 * 32).reshape(64, 32).astype(np.int8)
    (result,) = np.load(tmp_path / "results.npz").values()
    np.testing.assert_array_equal(result, x.astype(np.int32) @ w.astype(np.int32))


def test_a_tampered_schedule_is_refused_and_not_run(weft, schedule: Path) -> None:
    text = schedule.read_text()
    assert last_json(weft("spatial", "verify", str(schedule), "--json"))["ok"]
    schedule.write_text(text.replace("cycle = array<i32: 0>", "cycle = array<i32: 1>", 1))
    assert schedule.read_text() != text
    result = weft("spatial", "verify", str(schedule), "--json")
    assert result.exit_code == 1 and last_json(result)["violations"]
    result = weft("spatial", "simulate", str(schedule), "--json")
    assert result.exit_code == 1 and last_json(result)["error"] == "ScheduleError"


def test_bad_requests_are_refused(weft, schedule: Path, tmp_path: Path) -> None:
    compiling = ("spatial", "compile", str(tmp_path / "product.mlir"), "-o", str(schedule))
    assert weft(*compiling, "--set", "latency.read").exit_code == 2
    assert weft(*compiling, "--set", "latency.raed=1").exit_code == 1
    assert weft(*compiling, "-m", "systolic128").exit_code == 1
    assert weft("spatial", "verify", str(tmp_path / "none.mlir")).exit_code == 2


def test_a_graph_that_is_refused_leaves_no_schedule_behind(weft, tmp_path: Path) -> None:
    (tmp_path / "wide.mlir").write_text(PRODUCT.replace("i8>", "f32>"))
    result = weft("spatial", "compile", str(tmp_path / "wide.mlir"), "-o", str(tmp_path / "made.mlir"), "--json")
    assert not last_json(result)["ok"] and not (tmp_path / "made.mlir").exists()


def test_a_schedule_is_drawn_as_a_picture_and_as_a_page(weft, schedule: Path, tmp_path: Path) -> None:
    assert weft("spatial", "trace", str(schedule), "-o", str(tmp_path / "gantt.png")).exit_code == 0
    picture = (tmp_path / "gantt.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and picture.endswith(b"IEND\xaeB`\x82")
    assert weft("spatial", "trace", str(schedule), "-o", str(tmp_path / "gantt.html")).exit_code == 0
    page = (tmp_path / "gantt.html").read_text()
    assert "data:image/png;base64," in page and "MXM plane 0 weights" in page and "http" not in page


def test_streams_are_written_read_and_scheduled_to_the_same(weft, schedule: Path, tmp_path: Path) -> None:
    streams, again = tmp_path / "stream.mlir", tmp_path / "again.mlir"
    given = ("--constants", str(tmp_path / "weights.npz"), "-o", str(streams))
    figures = last_json(
        weft("spatial", "compile", str(tmp_path / "product.mlir"), "--emit", "stream", *given, "--json")
    )
    assert figures["ops"]["multiply"] == 1
    assert weft("spatial", "compile", str(streams), "-o", str(again)).exit_code == 0
    assert again.read_text() == schedule.read_text()
    for file in (streams, schedule):
        assert last_json(weft("opt", str(file), "--json"))["text"].count(".program") == 1
    streams.write_text(streams.read_text().replace('function = "COPY_I32"', 'function = "COPY_I8"'))
    result = last_json(weft("opt", str(streams), "--json"))
    assert not result["ok"] and "COPY_I8 does not take i32" in result["message"] and "stream.mlir" in str(result)
    assert weft("spatial", "compile", str(streams), "--emit", "graph").exit_code == 2


def test_a_mesh_runs_a_product(weft, schedule: Path, tmp_path: Path) -> None:
    file = str(tmp_path / "product.mlir")
    figures = last_json(weft("spatial", "mesh", file, "-m", "wormhole", "--json"))
    assert figures["ok"] and figures["cycles"] == figures["predicted"]
    assert weft("spatial", "mesh", file, "-m", "tsp1").exit_code == 1
    assert last_json(weft("spatial", "machine", "wormhole", "--json"))["derived"]["cores"] == 64


def test_a_bad_machine_file_is_refused_with_its_line(weft, tmp_path: Path) -> None:
    text = (FOLDER / "tsp1.yaml").read_text()
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "planes:" in each)
    (tmp_path / "mine.yaml").write_text(text.replace("planes: [4,", "planes: [three,", 1))
    result = last_json(weft("spatial", "machine", str(tmp_path / "mine.yaml"), "--json"))
    assert result["error"] == "MachineError" and f"mine.yaml:{line}" in str(result) and "matrix.planes" in str(result)


def test_a_decoder_over_chips_has_the_bits_of_one_piece(weft) -> None:
    figures = last_json(weft("spatial", "racks", "Mixtral-8x7B", "--run", "--chips", "2", "--tensor", "2", "--json"))
    assert figures["ok"] and figures["same"] and figures["split"] and figures["cycles"] == figures["predicted"]


def test_a_decoder_that_does_not_fit_says_by_how_much(weft) -> None:
    figures = last_json(weft("spatial", "racks", "Llama-2-70B", "--chips", "8", "--json"))
    assert figures["error"] == "CapacityError" and "too few" in figures["message"]


def test_targets_stand_beside_what_is_reached(weft) -> None:
    result = weft("spatial", "acceptance", "--row", "1", "--row", "2", "--row", "3", "--json")
    figures = last_json(result)
    assert figures["ok"] and [each["row"] for each in figures["rows"]] == [1, 2, 3]
    assert "missed" in weft("spatial", "acceptance", "--row", "2", "--set", "latency.read=9").output
    assert weft("spatial", "acceptance", "--row", "99").exit_code == 2
