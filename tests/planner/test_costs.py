"""Times of operations: between sites, without one, from tables of a user's, and which step of the ladder gave them."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from weft.planner.attention_costs import AttentionCosts
from weft.planner.collectives import CollectiveCosts
from weft.planner.errors import HardwareError, TableError
from weft.planner.expert_costs import expert_curve, experts_roofline
from weft.planner.grids import Grid, captured, filled
from weft.planner.hardware import RANGES, Gpu, catalogue, find_gpu
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import find_model
from weft.planner.op_costs import ROWS, OpCosts, gemm_roofline
from weft.planner.program import Attention, Collective, Experts, Gemm
from weft.planner.scheduler import Chunk, Request, Step
from weft.planner.search import open_costs
from weft.planner.simulate import StepTimer
from weft.planner.step_costs import step_costs
from weft.planner.tables import KernelTables

H200 = find_gpu("h200")


def write(folder: Path, name: str, header: str, rows: list[str]) -> None:
    (folder / "h200_sxm").mkdir(parents=True, exist_ok=True)
    (folder / "h200_sxm" / "system.json").write_text("{}")
    (folder / "h200_sxm" / f"{name}.csv").write_text("\n".join([header, *rows]) + "\n")


def made_up(folder: Path) -> OpCosts:
    """A matmul takes 5 µs and a quarter more than its roofline, an all-reduce 10 µs + bytes/300 GB/s."""
    sizes = (1024, 2048, 4096, 8192)
    rows = []
    for n in sizes:
        for k in sizes:
            for m in (1, 16, 256, 4096):
                seconds = 5e-6 + 1.25 * float(gemm_roofline(H200, m, n, k, "bf16"))
                rows.append(f"bfloat16,{m},{n},{k},{seconds * 1e3}")
    write(folder, "gemm__made__1", "gemm_dtype,m,n,k,latency", rows)
    rows = [f"X_graph,8,{2**e},{(10e-6 + 2**e * 2 / 300e9) * 1e3}" for e in range(8, 28)]
    write(folder, "custom_allreduce__made__1", "kernel_source,num_gpus,message_size,latency", rows)
    return OpCosts(H200, KernelTables(folder, "h200_sxm", "made"), H200)


def test_between_measured_shapes_times_are_close(tmp_path: Path) -> None:
    costs = made_up(tmp_path)
    measured = costs.gemm(Gemm("", 4096, 4096))
    assert measured.source == "measured"
    between = costs.gemm(Gemm("", 3072, 6144))
    assert between.source == "interpolated"
    wanted = 5e-6 + 1.25 * gemm_roofline(H200, ROWS, 3072, 6144, "bf16")
    chosen = np.isin(ROWS, (1, 16, 256, 4096))
    np.testing.assert_allclose(between.seconds[chosen], wanted[chosen], rtol=0.02)


def test_another_gpu_keeps_the_share_of_the_roofline(tmp_path: Path) -> None:
    costs = made_up(tmp_path)
    b200 = OpCosts(find_gpu("b200"), costs.tables, H200)
    there = b200.gemm(Gemm("", 8192, 8192))
    assert there.source == "transferred"
    large = ROWS == 4096
    assert there.seconds[large] < 0.6 * costs.gemm(Gemm("", 8192, 8192)).seconds[large]


def test_without_tables_there_is_the_roofline() -> None:
    costs = OpCosts(H200, None, H200)
    found = costs.gemm(Gemm("", 4096, 4096))
    assert found.source == "roofline"
    assert (found.seconds >= gemm_roofline(H200, ROWS, 4096, 4096, "bf16")).all()
    attention = AttentionCosts(costs).decode(Attention("", 32, 8, 128, 128))
    assert attention.source == "roofline"
    experts = Experts("", 4096, 14336, 2, 8, 1, 1)
    assert (expert_curve(costs, experts).seconds >= experts_roofline(H200, experts, ROWS)).all()


def test_work_grows_beyond_the_last_rows() -> None:
    model = find_model("Llama-3.1-8B")
    costs = step_costs(rank_program(model, Mapping()), open_costs(H200, None, "weft"), "bfloat16")
    once = [costs.prompt(tokens) - costs.attend(tokens, 0.0) for tokens in (ROWS[-1], 2 * ROWS[-1])]
    assert once[1] == pytest.approx(2 * once[0], rel=0.02)
    timer = StepTimer(costs, 4 * 16384)
    request = Request(0, 65536, 1)
    short, long = (timer.seconds(Step(0, 0.0, [Chunk(request, new, 0, False)], 1)) for new in (16384, 65536))
    assert long > 4 * short


def test_a_site_left_out_is_had_from_its_neighbours() -> None:
    xs = ys = np.array([1.0, 2.0, 4.0, 8.0])
    times = (3.0 + xs[:, None] * ys[None, :])[..., None]
    grid = Grid(xs, ys, times, np.ones_like(times))
    guess = grid.without(1, 2)
    assert guess is not None
    np.testing.assert_allclose(guess, times[1, 2], rtol=1e-9)
    assert grid.without(0, 0) is None
    holed = times.copy()
    holed[1, 2] = np.nan
    np.testing.assert_allclose(filled(Grid(xs, ys, holed, np.ones_like(times))).times[1, 2], times[1, 2])


def test_of_sites_as_far_away_as_each_other_a_corner_takes_the_larger() -> None:
    xs, ys = np.array([3.0, 6.0]), np.array([5.0, 10.0])
    times = np.full((2, 2, 1), np.nan)
    times[0, 1], times[1, 0] = 2.0, 4.0  # each a factor of two away from the other two
    found = filled(Grid(xs, ys, times, np.ones_like(times))).times
    np.testing.assert_allclose(found[..., 0], [[4.0, 2.0], [4.0, 4.0]])


def experts_measured(folder: Path, splits: dict[tuple[int, int], float]) -> OpCosts:
    """A layer's experts split in some ways, each so many times what 1.5 of its roofline takes."""
    header = "moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency"
    rows = []
    for (tp, ep), slower in splits.items():
        for tokens in (1, 16, 256, 4096):
            seconds = slower * 1.5 * float(experts_roofline(H200, Experts("", 5120, 8192, 1, 16, tp, ep), tokens))
            rows.append(f"bfloat16,{tokens},5120,8192,1,16,{tp},{ep},power_law_1.01,{seconds * 1e3}")
    write(folder, "moe__made__1", header, rows)
    return OpCosts(H200, KernelTables(folder, "h200_sxm", "made"), H200)


def test_experts_that_took_many_times_their_like_are_had_from_these(tmp_path: Path) -> None:
    costs = experts_measured(tmp_path, {(1, 4): 5.0, (2, 2): 1.0, (4, 1): 1.0})
    chosen = np.isin(ROWS, (16, 256, 4096))
    for tp, ep, source in ((1, 4, "transferred"), (2, 2, "interpolated")):
        layer = Experts("", 5120, 8192, 1, 16, tp, ep)
        found = expert_curve(costs, layer)
        assert found.source == source
        np.testing.assert_allclose(found.seconds[chosen], 1.5 * experts_roofline(H200, layer, ROWS)[chosen], rtol=0.05)


def test_of_two_measured_ways_nobody_says_which_is_the_slow_one(tmp_path: Path) -> None:
    costs = experts_measured(tmp_path, {(1, 2): 1.0, (2, 1): 9.0})
    assert expert_curve(costs, Experts("", 5120, 8192, 1, 16, 2, 1)).source == "interpolated"


def test_slow_runs_beside_a_site_left_out_do_not_count() -> None:
    xs = ys = np.array([2048.0, 2560.0, 3072.0, 3584.0, 4096.0, 5120.0, 6144.0])
    times = (xs[:, None] * ys[None, :])[..., None] * 1e-12
    slow = times.copy()
    slow[2, 3] *= 1.4
    slow[3, 4] *= 1.25
    guess = Grid(xs, ys, slow, np.ones_like(times)).without(3, 3)
    assert guess is not None
    np.testing.assert_allclose(guess, times[3, 3], rtol=0.02)


def test_what_fills_a_hole_is_not_told_as_measured(tmp_path: Path) -> None:
    sizes = (1024, 2048, 4096, 8192)
    holes = {(2048, 4096), (8192, 8192)}
    rows = [
        f"bfloat16,{m},{n},{k},{float(gemm_roofline(H200, m, n, k, 'bf16')) * 2e3}"
        for n in sizes
        for k in sizes
        for m in (1, 256)
        if (n, k) not in holes and (m, n, k) != (256, 1024, 1024)
    ]
    write(tmp_path, "gemm__made__1", "gemm_dtype,m,n,k,latency", rows)
    costs = OpCosts(H200, KernelTables(tmp_path, "h200_sxm", "made"), H200)
    told = {(n, k): costs.gemm(Gemm("", n, k)).source for n in sizes for k in sizes}
    assert told[4096, 4096] == "measured"
    assert told[2048, 4096] == "interpolated"  # between its neighbours
    assert told[8192, 8192] == "transferred"  # a corner has nobody beyond it
    assert told[1024, 1024] == "transferred"  # one of its rows is measured, the other is not
    assert costs.gemm(Gemm("", 3072, 4096)).source == "interpolated"
    assert costs.gemm(Gemm("", 6144, 8192)).source == "transferred"  # no surer than the hole beside it
    assert costs.gemm(Gemm("", 16384, 4096)).source == "transferred"


def test_wefts_own_tables_claim_only_the_shapes_that_they_have() -> None:
    costs = open_costs(H200, None, "weft")
    table = costs.table("gemm")
    assert table is not None
    bf16 = table["gemm_dtype"] == "bfloat16"
    rows = set(table["m"][bf16].astype(int))
    for n in np.unique(table["n"][bf16]).astype(int):
        for k in np.unique(table["k"][bf16]).astype(int):
            here = set(table["m"][bf16 & (table["n"] == n) & (table["k"] == k)].astype(int))
            assert (costs.gemm(Gemm("", int(n), int(k))).source == "measured") == (here == rows), (n, k)


def test_a_table_that_measured_the_host_is_corrected_by_other_engines() -> None:
    kernels = np.array([[4e-6, 9e-6], [8e-6, 300e-6]])
    seen = np.maximum(kernels, 60e-6)
    np.testing.assert_allclose(captured(seen, [kernels]), kernels)
    np.testing.assert_allclose(captured(kernels * 2, [kernels]), kernels * 2)


def test_collectives_are_pieces_of_alpha_and_beta(tmp_path: Path) -> None:
    costs = CollectiveCosts(made_up(tmp_path))
    op = Collective("", "all_reduce", 8, 1.0)
    seconds, source = costs.seconds(op, np.array([3e6, 1e10]))
    assert source == "interpolated"
    np.testing.assert_allclose(seconds, 10e-6 + np.array([3e6, 1e10]) / 300e9, rtol=1e-6)
    _, source = costs.seconds(Collective("", "all_reduce", 16, 1.0), 1e6)
    assert source == "specification"
    none, _ = costs.seconds(Collective("", "all_reduce", 1, 1.0), 1e6)
    assert none == 0


def test_a_table_without_a_column_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "gemm__made__1", "gemm_dtype,m,n,latency", ["bfloat16,1,1,1"])
    with pytest.raises(TableError, match="'k'"):
        KernelTables(tmp_path, "h200_sxm", "made").table("gemm")
    write(tmp_path, "gemm__made__1", "gemm_dtype,m,n,k,latency", ["bfloat16,1,1,1,fast"])
    with pytest.raises(TableError, match="'latency'"):
        KernelTables(tmp_path, "h200_sxm", "made").table("gemm")
    write(tmp_path, "gemm__made__1", "gemm_dtype,m,n,k,latency", ["bfloat16,1"])
    with pytest.raises(TableError, match="rows"):
        KernelTables(tmp_path, "h200_sxm", "made").table("gemm")


@pytest.mark.parametrize("latency", ["0", "-1", "nan", "inf"])
def test_times_that_no_kernel_takes_are_refused(tmp_path: Path, latency: str) -> None:
    write(tmp_path, "gemm__made__1", "gemm_dtype,m,n,k,latency", ["bfloat16,1,1,1,0.1", f"bfloat16,1,2,1,{latency}"])
    with pytest.raises(TableError, match=r"'latency'.* row 2"):
        KernelTables(tmp_path, "h200_sxm", "made").table("gemm")


def test_wefts_own_tables_give_a_large_matmul_its_measured_time() -> None:
    found = open_costs(H200, None, "weft").gemm(Gemm("", 8192, 8192))
    assert found.at(8192) == pytest.approx(1.358e-3, rel=0.01)


def test_hardware_files_are_checked_by_field(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"base": "h200", "bandwidth": 6e12}))
    assert find_gpu(str(path)).bandwidth == 6e12
    for field, value in (("bandwidth", -1), ("bandwidth", "fast"), ("speed", 1)):
        path.write_text(json.dumps({"base": "h200", field: value}))
        with pytest.raises(HardwareError, match=field):
            find_gpu(str(path))
    path.write_text(json.dumps({"bandwidth": 1e12}))
    with pytest.raises(HardwareError, match="missing"):
        find_gpu(str(path))
    with pytest.raises(HardwareError, match="catalogue"):
        find_gpu("h300")


NOT_RATES = [
    "0",
    "-1",
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "1e300",
    "1e-300",
    "1" + "0" * 400,
    '"5"',
    "null",
    "true",
]


@pytest.mark.parametrize("value", NOT_RATES)
@pytest.mark.parametrize("field", [name for name in RANGES if name not in ("fp8", "fp4")])
def test_numbers_that_no_hardware_has_are_refused_by_field(tmp_path: Path, field: str, value: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(f'{{"base": "h200", "{field}": {value}}}')
    if value == "0" and field in ("price_per_hour", "network_latency"):
        assert getattr(find_gpu(str(path)), field) == 0
        return
    with pytest.raises(HardwareError, match=f"'{field}'"):
        find_gpu(str(path))


def test_every_number_of_a_gpu_has_a_range() -> None:
    assert set(RANGES) == {each.name for each in fields(Gpu) if str(each.type) in ("float", "int")}


def test_counts_are_whole_and_flags_are_flags(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for field, value in (("gpus_per_node", 2.5), ("nvlink_domain", 1.5), ("measured", "yes"), ("device", 5)):
        path.write_text(json.dumps({"base": "h200", field: value}))
        with pytest.raises(HardwareError, match=field):
            find_gpu(str(path))


def test_a_base_that_leads_back_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps({"base": str(two)}))
    two.write_text(json.dumps({"base": str(one)}))
    with pytest.raises(HardwareError, match="base"):
        find_gpu(str(one))


def test_the_catalogue_cites_its_sources() -> None:
    assert {"a100", "h100", "h200", "b200", "gb200"} <= set(catalogue())
    assert all(each.source for each in catalogue().values())


def test_mxfp4_multiplies_in_bf16_where_there_is_no_fp4() -> None:
    assert find_gpu("h200").flops("mxfp4") == find_gpu("h200").bf16
    assert find_gpu("b200").flops("mxfp4") == find_gpu("b200").fp8
    assert find_gpu("b200").flops("int4") == find_gpu("b200").bf16


def test_experts_without_a_table_reach_what_matmuls_of_their_size_reach() -> None:
    gpu = find_gpu("h200")
    costs = open_costs(gpu, None, "weft")
    one = expert_curve(costs, Experts("", 4096, 14336, 1, 1, 1, 1))  # one expert that all tokens go to
    up, down = costs.gemm(Gemm("", 28672, 4096)), costs.gemm(Gemm("", 4096, 14336))
    np.testing.assert_allclose(one.seconds, up.seconds + down.seconds, rtol=0.1)
    assert one.source == "transferred"
    eight = Experts("", 4096, 14336, 2, 8, 1, 1)
    curve = expert_curve(costs, eight)
    assert (curve.seconds > experts_roofline(gpu, eight, ROWS)).all()
    few, many = ROWS <= 1, ROWS >= 4096
    # Two of eight experts are read for a token; all of them, with a quarter of the tokens each, for many.
    np.testing.assert_allclose(curve.seconds[few], 2 * one.seconds[few], rtol=0.15)
    np.testing.assert_allclose(curve.seconds[many], 2 * one.seconds[many], rtol=0.15)


def test_experts_in_bf16_keep_to_the_clock_of_a_gpu_at_work() -> None:
    gpu, op = find_gpu("h200"), Experts("", 4096, 14336, 2, 8, 1, 1)
    costs = OpCosts(gpu, None, gpu, sustained=True)
    flops = 2.0 * ROWS[-1] * 2 * 3 * 4096 * 14336
    assert flops / expert_curve(costs, op).seconds[-1] == pytest.approx(gpu.bf16 * gpu.sustained, rel=0.01)
