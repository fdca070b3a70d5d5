"""Fleets of mixed racks: who gets which GPUs, what is not served, and files that describe none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from weft.planner.errors import FleetError, PlanError
from weft.planner.fleet import plan_fleet, read_fleet
from weft.planner.linear_program import minimise
from weft.tools.cli import app

SERVICES = [
    {"model": "Llama-3.1-8B", "traffic": "isl=1000,osl=200,rate=200", "slo": "tpot=40ms", "max_gpus": 2},
    {"model": "Llama-3.1-70B", "precision": "fp8", "traffic": "isl=1000,osl=200,rate=50", "max_gpus": 8},
]


def write(folder: Path, **fleet: object) -> Path:
    path = folder / "fleet.json"
    path.write_text(json.dumps(fleet), encoding="utf-8")
    return path


def test_a_small_program_has_the_optimum_of_its_corners() -> None:
    draw = np.random.default_rng(7)
    for _ in range(40):
        cost, demand, room = draw.uniform(1, 5, 3), draw.uniform(1, 9, 2), draw.uniform(1, 9, 1)
        gives, takes = draw.uniform(0, 2, (2, 3)), draw.uniform(0.2, 2, (1, 3))
        penalty = np.full(2, 50.0)
        found = minimise(cost, gives, demand, takes, room, penalty)
        assert (gives @ found.values + found.unserved >= demand - 1e-6).all()
        assert (takes @ found.values <= room + 1e-6).all()
        least = float(cost @ found.values + penalty @ found.unserved)
        # All corners: any five of the eight conditions as equations.
        rows = np.vstack([np.hstack([gives, np.eye(2)]), np.hstack([takes, np.zeros((1, 2))]), np.eye(5)])
        right = np.concatenate([demand, room, np.zeros(5)])
        best = np.inf
        for chosen in itertools.combinations(range(8), 5):
            try:
                corner = np.linalg.solve(rows[list(chosen)], right[list(chosen)])
            except np.linalg.LinAlgError:
                continue
            inside = (corner > -1e-9).all() and (gives @ corner[:3] + corner[3:] >= demand - 1e-7).all()
            if inside and (takes @ corner[:3] <= room + 1e-7).all():
                best = min(best, float(cost @ corner[:3] + penalty @ corner[3:]))
        assert least == pytest.approx(best, rel=1e-6)


def test_every_service_is_served_from_what_there_is(tmp_path: Path) -> None:
    path = write(tmp_path, pools=[{"gpu": "h100", "gpus": 64}, {"gpu": "h200", "racks": 4}], services=SERVICES)
    found = plan_fleet(read_fleet(path))
    assert not found.unserved
    for pool in found.fleet.pools:
        assert found.used(pool) <= pool.gpus
    for service in found.fleet.services:
        mine = [each for each in found.shares if each.service is service]
        assert sum(each.rate for each in mine) >= service.traffic.rate
        assert sum(each.spare for each in mine) == 1
    assert found.dollars >= found.least_dollars


def test_a_full_pool_overflows_into_the_next_and_is_worth_something(tmp_path: Path) -> None:
    wide = plan_fleet(read_fleet(write(tmp_path, pools=[{"gpu": "h200", "gpus": 512}], services=SERVICES)))
    need = wide.used(wide.fleet.pools[0])
    pools = [{"gpu": "h200", "gpus": need // 2, "price": 1.0}, {"gpu": "h100", "gpus": 512, "price": 9.0}]
    tight = plan_fleet(read_fleet(write(tmp_path, pools=pools, services=SERVICES)))
    assert not tight.unserved
    assert tight.used(tight.fleet.pools[1]) > 0
    more = tight.worth["h200"]
    assert more.served == 0 and 0 < more.saved < 9.0 * 4 and "in dearer pools" in str(more)
    assert "h100" not in tight.worth


def test_a_pool_that_is_small_for_the_best_mapping_serves_with_another(tmp_path: Path) -> None:
    traffic = {"traffic": "isl=1000,osl=200,rate=190", "slo": "tpot=20ms", "max_gpus": 8}
    service = {"model": "Llama-3.1-70B", "precision": "fp8", **traffic}
    pools = [{"gpu": "h200", "gpus": 6, "price": 3.0}, {"gpu": "h100", "gpus": 512, "price": 3.5}]
    found = plan_fleet(read_fleet(write(tmp_path, pools=pools, services=[service])))
    assert not found.unserved
    assert found.used(found.fleet.pools[0]) >= 4
    alone = plan_fleet(read_fleet(write(tmp_path, pools=pools[1:], services=[service])))
    assert found.dollars < alone.dollars


def test_what_there_is_no_room_for_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, pools=[{"gpu": "h100", "gpus": 0}, {"gpu": "h200", "gpus": 2}], services=SERVICES)
    drawn = tmp_path / "fleet.html"
    seen = CliRunner().invoke(app, ["plan", "--fleet", str(path), "--json", "--html", str(drawn)])
    assert "are not served" in drawn.read_text(encoding="utf-8")
    assert seen.exit_code == 1
    told = json.loads(seen.stdout)
    assert set(told["unserved_requests_s"]) == {"Llama-3.1-8B", "Llama-3.1-70B"}
    # A request that nobody serves has no price: another GPU's worth is told in requests.
    more = {each["name"]: each["one_more_gpu"] for each in told["pools"]}["h200"]
    assert 0 < more["served"] < sum(told["unserved_requests_s"].values())
    assert "requests/s more" in drawn.read_text(encoding="utf-8")


@pytest.mark.parametrize(("gpus", "served"), [(0, False), (1, True), (2, True)])
def test_spares_take_no_gpus_that_are_not_there_nor_those_of_requests(tmp_path: Path, gpus: int, served: bool) -> None:
    service = {"name": "a", "model": "Llama-3.1-8B", "traffic": "isl=1000,osl=200,rate=1", "max_gpus": 1}
    path = write(tmp_path, pools=[{"gpu": "h100", "gpus": gpus}], services=[service])
    found = plan_fleet(read_fleet(path))
    assert found.used(found.fleet.pools[0]) == gpus
    assert (not found.unserved) == served
    assert found.missing_spares == ({} if gpus == 2 else {"a": 1})


@pytest.mark.parametrize(
    ("fleet", "named"),
    [
        ({"pools": [], "services": SERVICES}, "pools"),
        ({"pools": [{"gpu": "h200"}], "services": SERVICES}, "gpus"),
        ({"pools": [{"gpu": "h200", "gpus": -1}], "services": SERVICES}, "gpus"),
        ({"pools": [{"gpu": "h200", "gpus": 8, "colour": 1}], "services": SERVICES}, "colour"),
        ({"pools": [{"gpu": "h200", "gpus": 8}], "services": [{"model": "Llama-3.1-8B"}]}, "traffic"),
        ({"pools": [{"gpu": "h200", "gpus": 8}], "services": [{**SERVICES[0], "traffic": "isl=8"}]}, "rate"),
        ({"pools": [{"gpu": "h200", "gpus": 8}], "services": [{**SERVICES[0], "engine": "x"}]}, "engine"),
    ],
)
def test_a_file_that_is_no_fleet_names_the_field(tmp_path: Path, fleet: dict[str, object], named: str) -> None:
    with pytest.raises(FleetError, match=named):
        read_fleet(write(tmp_path, **fleet))


def test_a_fleet_is_read_from_yaml_too(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("pools:\n- {gpu: h200, racks: 2}\nservices:\n- {model: Qwen3-8B, traffic: 'isl=9,osl=9,rate=1'}\n")
    found = read_fleet(path)
    assert found.pools[0].gpus == 2 * found.pools[0].gpu.gpus_per_rack
    path.write_text("pools: [")
    with pytest.raises(FleetError, match="cannot be read"):
        read_fleet(path)


def test_a_program_without_an_end_is_refused() -> None:
    one = np.ones(1)
    with pytest.raises(PlanError, match="without an end"):
        minimise(-one, np.ones((1, 1)), one, np.zeros((1, 1)), one, one)
    with pytest.raises(PlanError, match="not finite"):
        minimise(one * np.inf, np.ones((1, 1)), one, np.zeros((1, 1)), one, one)


def test_alike_pools_and_services_are_told_apart(tmp_path: Path) -> None:
    few = {"gpu": "h100", "gpus": 1}
    path = write(tmp_path, pools=[few, few, {**few, "name": "h100 (2)"}], services=[SERVICES[0], SERVICES[0]])
    fleet = read_fleet(path)
    assert [each.name for each in fleet.pools] == ["h100", "h100 (3)", "h100 (2)"]
    assert len({each.name for each in fleet.services}) == 2
    found = plan_fleet(fleet)
    assert set(found.unserved) == {each.name for each in fleet.services}


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    pool = {"gpu": "h100", "gpus": 8, "name": "east"}
    path = write(tmp_path, pools=[pool, pool], services=SERVICES)
    with pytest.raises(FleetError, match="'east', as another's"):
        read_fleet(path)


def test_formats_that_a_pool_lacks_are_told(tmp_path: Path) -> None:
    service = {"name": "a", "model": "Llama-3.1-8B", "precision": "fp8", "traffic": "isl=500,osl=50,rate=1"}
    path = write(tmp_path, pools=[{"gpu": "a100", "gpus": 8}], services=[{**service, "max_gpus": 1}])
    told = plan_fleet(read_fleet(path)).assumptions["a on a100"]
    assert len(told) == 1 and "no tensor cores for fp8" in told[0]
