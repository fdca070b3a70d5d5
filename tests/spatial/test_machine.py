"""Machine descriptions: the published identities follow from their fields, and a bad file is refused by its field."""

from __future__ import annotations

from math import ceil
from pathlib import Path

import pytest
import yaml

from weft.spatial.isa import Units
from weft.spatial.machine import FOLDER, MachineError, load_machine, machine_names, machine_of, streaming_machine

TSP1 = streaming_machine("tsp1")


@pytest.mark.parametrize(
    ("what", "value"),
    [
        (TSP1.width, 320),
        (TSP1.memory_bytes, 230_686_720),
        (2 * 44 * 2 * 4096 * 320, 230_686_720),
        (TSP1.slice_bytes, 2_621_440),
        (TSP1.slice_tile_bytes, 131_072),
        (TSP1.memory_rate, 56_320),
        (TSP1.stream_rate, 20_480),
        (TSP1.int8_macs, 409_600),
        (TSP1.fp16_macs, 102_400),
        (TSP1.weight_floor, 20),
        (TSP1.width * TSP1.alus, 5_120),
        (TSP1.fetch_rate, 2_304),
        (TSP1.link_bits, 3_840_000_000_000),
        (TSP1.positions, 45),
        (2 * TSP1.int8_macs * TSP1.clock_hz, 737_280_000_000_000),
        (2 * TSP1.fp16_macs * TSP1.clock_hz, 184_320_000_000_000),
        (TSP1.network.chips_per_node * TSP1.network.global_links, 32),
        (TSP1.network.nodes * TSP1.network.chips_per_node, 264),
        (TSP1.network.nodes_per_rack * TSP1.network.chips_per_node, 72),
    ],
)
def test_an_identity_follows_from_the_fields(what: int, value: int) -> None:
    assert what == value


def test_a_vector_passes_a_link_in_less_than_24_cycles() -> None:
    assert TSP1.vector_link_cycles == pytest.approx(23.616)
    assert ceil(TSP1.vector_link_cycles) == 24


def test_a_rack_has_as_many_ports_as_the_largest_system_needs() -> None:
    ports = TSP1.network.nodes_per_rack * TSP1.network.chips_per_node * TSP1.network.global_links
    racks = ports // 2 + 1
    assert (racks, racks * 72) == (145, 10_440)


def test_queues_are_the_published_144() -> None:
    units = Units(TSP1)
    own = units.planes_end + 2 * TSP1.shift.queues_per_half + TSP1.links.count
    assert own == TSP1.control.queues


def test_every_leaf_has_a_tag_and_a_source() -> None:
    for name in machine_names():
        assert all(fact.source for fact in load_machine(name).facts.values())


def test_an_override_is_assumed_and_changes_the_digest() -> None:
    other = streaming_machine("tsp1", {"latency.read": 4})
    assert other.latency.read == 4
    assert other.facts["latency.read"].tag == "assumed"
    assert other.digest != TSP1.digest


def test_scaling_moves_assumed_latencies_only() -> None:
    half = TSP1.scaled(0.5)
    assert (half.latency.read, half.latency.write, half.latency.multiply) == (1, 1, 8)
    assert half.links.latency_mean == TSP1.links.latency_mean


@pytest.mark.parametrize(
    ("path", "leaf", "said"),
    [
        ("memory.banks", None, "the field memory.banks is missing"),
        ("memory.banks", [0, "assumed", "here"], "memory.banks is 0"),
        ("memory.banks", ["two", "assumed", "here"], "memory.banks is 'two'"),
        ("memory.banks", [2, "guessed", "here"], "memory.banks is"),
        ("memory.banks", [2, "assumed", ""], "memory.banks is"),
        ("memory.banks", 2, "memory.banks is 2"),
        ("memory.bansk", [2, "assumed", "here"], "unknown field memory.bansk"),
        ("matrix.rows", [300, "assumed", "here"], "matrix.rows is 300, and a vector has 320 lanes"),
        ("matrix.planes", [3, "assumed", "here"], "matrix.planes is 3"),
        ("matrix.load_streams", [12, "assumed", "here"], "matrix.load_streams is 12, and a plane has 320 rows"),
    ],
)
def test_a_bad_field_is_named(path: str, leaf: object, said: str) -> None:
    tree = yaml.safe_load((FOLDER / "tsp1.yaml").read_text())
    section, _, name = path.partition(".")
    if leaf is None:
        del tree[section][name]
    else:
        tree[section][name] = leaf
    with pytest.raises(MachineError, match=said):
        machine_of(tree, {})


def test_a_file_that_is_no_description_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kind: [", encoding="utf-8")
    with pytest.raises(MachineError, match=r"mine\.yaml is not YAML"):
        load_machine(str(path))
    path.write_text("kind: quantum", encoding="utf-8")
    with pytest.raises(MachineError, match="kind is 'quantum'"):
        load_machine(str(path))


def test_an_unknown_machine_or_override_is_refused() -> None:
    with pytest.raises(MachineError, match="tsp1"):
        load_machine("tsp2")
    with pytest.raises(MachineError, match=r"no field 'latency\.raed'"):
        load_machine("tsp1", {"latency.raed": 1})


def test_a_hypothetical_machine_has_the_totals_that_are_stated() -> None:
    lpx = streaming_machine("lpx-hypothetical")
    assert lpx.memory_bytes == pytest.approx(500e6, rel=0.01)
    assert lpx.memory_rate * lpx.clock_hz == pytest.approx(150e12, rel=0.01)
    assert 2 * lpx.int8_macs * lpx.clock_hz == pytest.approx(9.6e15 / 8, rel=0.03)
    assert lpx.links.count * lpx.links.bits / 8 * 2 == pytest.approx(2.5e12, rel=0.01)
    public = {path for path in lpx.tagged("published") if path.startswith(("memory", "matrix", "latency", "vector"))}
    assert not public


TSP1_TEXT = (FOLDER / "tsp1.yaml").read_text()


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (TSP1_TEXT.replace("read: [2,", "read: [-2,"), 57, "latency.read is -2"),
        (TSP1_TEXT.replace("latency_sigma: [2.9,", "latency_sigma: [.inf,"), 46, "links.latency_sigma is inf"),
        (TSP1_TEXT.replace("read: [2,", "read: [2020-13-45,"), 57, "latency.read is '2020-13-45'"),
        (TSP1_TEXT + "latency:\n  read: [2, assumed, here]\n", 73, "the field latency is there twice, on line 56"),
        (TSP1_TEXT.replace("vector:", "vector_unit:"), 29, "unknown field vector_unit"),
        (TSP1_TEXT.replace("kind: streaming", "kind: streaming\nlike: &own {<<: *own}"), 6, "line 6 contains itself"),
        (TSP1_TEXT.replace("kind: streaming", "kind: streaming\nlike: &own [*own]"), 6, "line 6 contains itself"),
        (TSP1_TEXT.replace("kind: streaming", "kind: streaming\n7: [7, assumed, here]"), 6, "a field has no name"),
        (TSP1_TEXT.replace("kind: streaming\n", ""), 1, "kind is None"),
        (TSP1_TEXT.replace("read_ports: [1,", "read_ports: [2,"), 19, "memory.read_ports is 2"),
        (
            TSP1_TEXT.replace("word_bytes: [16,", "word_bytes: [8,"),
            18,
            "memory.word_bytes is 8, and a tile has 16 lanes",
        ),
    ],
)
def test_a_bad_file_is_refused_with_the_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MachineError, match=said) as caught:
        load_machine(str(path))
    assert caught.value.location == f"mine.yaml:{line}"


def test_a_file_of_nested_copies_is_refused_in_a_few_words(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    (tmp_path / "copies.yaml").write_text("\n".join(["kind: streaming", *levels]), encoding="utf-8")
    (tmp_path / "deep.yaml").write_text("kind: " + "[" * 5000 + "]" * 5000, encoding="utf-8")
    text = TSP1_TEXT.replace('read: [2, assumed, "not public"]', f"read: [{'[' * 60}{']' * 60}, assumed, here]")
    (tmp_path / "nested.yaml").write_text(text, encoding="utf-8")
    for name, said in (("copies", "unknown field a0"), ("deep", "nested too deeply"), ("nested", "latency.read is")):
        with pytest.raises(MachineError, match=said) as caught:
            load_machine(str(tmp_path / f"{name}.yaml"))
        assert len(caught.value.message) < 200


def test_every_unit_has_a_queue() -> None:
    for name in ("tsp1", "lpx-hypothetical"):
        machine = streaming_machine(name)
        assert Units(machine).end == machine.control.queues
