"""FSDP2, DDP and tensor parallel models through torch.compile: their collectives are in the graph, and scheduled."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from xdsl.ir import Operation

import weft
from tests.frontends.torch.distributed.ranks import on_ranks
from weft.errors import RankError, UnsupportedError
from weft.frontends.torch.distributed.trace_collectives import trace_collectives
from weft.ops.base import View
from weft.ops.collectives import AllGather, AllReduce, Collective, ReduceScatter, Wait
from weft.ops.graph import FuncOp
from weft.passes.sharding.schedule_collectives import ScheduleCollectives
from weft.runtime.record import CompilationRecord, recording
from weft.testing.models import SMALL
from weft.tile.text import functions_of, parse_program

TENSOR_PARALLEL = {
    "self_attn.q_proj": ColwiseParallel,
    "self_attn.k_proj": ColwiseParallel,
    "self_attn.v_proj": ColwiseParallel,
    "self_attn.o_proj": RowwiseParallel,
    "mlp.gate_proj": ColwiseParallel,
    "mlp.up_proj": ColwiseParallel,
    "mlp.down_proj": RowwiseParallel,
}


def llama(layers: int) -> nn.Module:
    """A small one, with a head of keys for each of four ranks."""
    small: Any = SMALL["llama"].build()
    small.config.num_hidden_layers, small.config.num_key_value_heads = layers, 4
    torch.manual_seed(0)
    return type(small)(small.config)


def rows(rank: int) -> dict[str, torch.Tensor]:
    """Each rank has a row of its own."""
    given = SMALL["llama"].inputs(0)
    return {key: torch.cat([value, value.flip(1)])[rank : rank + 1] for key, value in given.items()}


def spread(model: nn.Module, kind: str, *, traced: bool) -> nn.Module:
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        for layer in model.model.layers:  # type: ignore[union-attr]
            fully_shard(layer)
        fully_shard(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        for layer in model.model.layers:  # type: ignore[union-attr]
            parallelize_module(layer, mesh, {name: made() for name, made in TENSOR_PARALLEL.items()})
        return model
    return trace_collectives(model) if traced else model


def losses(model: nn.Module, call: Any, inputs: dict[str, torch.Tensor], steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    found: list[float] = []
    for _ in range(steps):
        loss = SMALL["llama"].loss(call(**inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def trains_as_eager(rank: int, kind: str, layers: int, steps: int) -> tuple[list[float], list[float], dict[str, int]]:
    inputs = rows(0 if kind == "tp" else rank)
    whole = llama(layers)
    eager = spread(copy.deepcopy(whole), kind, traced=False) if kind != "tp" else copy.deepcopy(whole)
    expected = losses(eager, eager, inputs, steps)
    model = spread(whole, kind, traced=True)
    with recording(programs=True) as records:
        call = torch.compile(model, backend="weft", fullgraph=True, options={"cache": False})
        found = losses(model, call, inputs, steps)
    for record in records:
        if "collectives" in record.programs:
            check_is_early_and_late(scheduled(record))
    counts = {
        f"{record.name} {op.name}": sum(isinstance(each, op) for each in scheduled(record))
        for record in records
        if "collectives" in record.programs
        for op in (AllGather, AllReduce, ReduceScatter)
    }
    return expected, found, counts


def scheduled(record: CompilationRecord) -> list[Operation]:
    """The ops of a graph whose collectives are where they are started."""
    (function,) = functions_of(parse_program(record.programs["collectives"]))
    assert isinstance(function, FuncOp)
    return list(function.block.ops)


def check_losses(results: list[Any]) -> dict[str, int]:
    for result in results:
        assert isinstance(result, tuple), result
        expected, found, counts = result
        assert found == pytest.approx(expected, rel=2e-6)
        assert counts == results[0][2]
    return results[0][2]


def test_fsdp_gathers_parameters_in_both_graphs() -> None:
    counts = check_losses(on_ranks(2, trains_as_eager, "fsdp", 1, 2))
    # Nine parameters of a layer, and the root's three, which it keeps for the backward.
    assert counts["forward graph.all_gather"] == 12
    assert 0 < counts["backward graph.all_gather"] <= 9
    assert counts["backward graph.reduce_scatter"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "tp"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_losses_are_those_of_eager(kind: str, ranks: int) -> None:
    counts = check_losses(on_ranks(ranks, trains_as_eager, kind, 2, 3, seconds=500))
    assert sum(counts.values())


@pytest.fixture
def fake_ranks() -> Iterator[None]:
    """Four ranks that are not there."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Tanh())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def trained(model: nn.Module, **options: Any) -> dict[str, list[Operation]]:
    with recording(programs=True) as records:
        torch.compile(model, backend="weft", options=options)(torch.ones(4, 16)).sum().backward()
    return {record.name: scheduled(record) for record in records if "collectives" in record.programs}


def check_is_early_and_late(ops: list[Operation]) -> None:
    """A collective follows what it needs, or another one; a wait comes before what needs it, or another one."""
    places = {op: place for place, op in enumerate(ops)}
    for op in ops:
        before, after = ops[places[op] - 1], ops[min(places[op] + 1, len(ops) - 1)]
        if isinstance(op, Collective) and not isinstance(op, AllGather):
            makers = {value.owner for value in op.operands}
            assert before in makers or isinstance(before, Collective), f"{op} after {before}"
        if isinstance(op, Wait):
            readers = {use.operation for result in op.results for use in result.uses}
            assert after in readers or isinstance(after, Wait | Collective | View), f"{op} before {after}"


@pytest.mark.usefixtures("fake_ranks")
def test_collectives_of_ddp_start_early_and_end_late() -> None:
    model = trace_collectives(DistributedDataParallel(Perceptron()))
    graphs = trained(model, cache=False)
    assert list(graphs) == ["backward"]
    ops = graphs["backward"]
    check_is_early_and_late(ops)
    reductions = [op for op in ops if isinstance(op, AllReduce)]
    assert len(reductions) == 8
    first_wait = next(place for place, op in enumerate(ops) if isinstance(op, Wait))
    assert first_wait > max(ops.index(op) for op in reductions)  # nobody reads a gradient before the end


@pytest.mark.usefixtures("fake_ranks")
def test_collectives_that_are_not_scheduled_are_not_early_and_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others check is not so by itself."""
    monkeypatch.setattr(ScheduleCollectives, "apply", lambda *_: None)
    graphs = trained(trace_collectives(DistributedDataParallel(Perceptron())), cache=False)
    with pytest.raises(AssertionError):
        check_is_early_and_late(graphs["backward"])


@pytest.mark.usefixtures("fake_ranks")
def test_a_profile_says_how_long_collectives_are_under_way() -> None:
    model = trace_collectives(DistributedDataParallel(Perceptron()))
    call = torch.compile(model, backend="weft")
    with weft.profile() as profile:
        call(torch.ones(4, 16)).sum().backward()
    flights = profile.collectives()
    assert len(flights) == 8
    assert all(begun.name == "all_reduce" and begun.end <= ended.start for begun, ended in flights)
    assert {begun.work()["bytes"] for begun, _ in flights} == {16 * 16 * 4, 16 * 4}
    events = profile.trace()["traceEvents"]
    assert [sum(event["ph"] == phase for event in events) for phase in "be"] == [8, 8]


@pytest.mark.usefixtures("fake_ranks")
def test_parameters_are_gathered_a_few_reads_early() -> None:
    model = Perceptron()
    for layer in model.layers:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, reshard_after_forward=True)
    fully_shard(model)
    graphs = trained(trace_collectives(model), cache=False)
    forward, backward = graphs["forward"], graphs["backward"]
    check_is_early_and_late(forward)
    check_is_early_and_late(backward)
    under_way = 0
    for op in forward:
        under_way += isinstance(op, AllGather) - isinstance(op, Wait)
        assert under_way <= 3
    assert sum(isinstance(op, AllGather) for op in forward) == 8
    assert sum(isinstance(op, AllGather) for op in backward) == 3  # the first layer's input has no gradient
    assert sum(isinstance(op, ReduceScatter) for op in backward) == 8


@pytest.mark.usefixtures("fake_ranks")
def test_a_policy_of_mixed_precision_is_followed() -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    model = trace_collectives(fully_shard(Perceptron(), mp_policy=policy))  # type: ignore[arg-type]
    graphs = trained(model, cache=False)
    assert {str(op.results[0].type.element_type) for op in graphs["forward"] if isinstance(op, AllGather)} == {"bf16"}  # type: ignore[attr-defined]
    reduced = [op for op in graphs["backward"] if isinstance(op, ReduceScatter)]
    assert {str(op.results[0].type.element_type) for op in reduced} == {"f32"}  # type: ignore[attr-defined]
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in model.parameters())


def test_a_model_that_is_not_spread_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="neither FSDP2 nor DDP"):
        trace_collectives(nn.Linear(2, 2))


@pytest.mark.usefixtures("fake_ranks")
def test_statistics_that_ddp_sends_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="batch normalization"):
        trace_collectives(DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))))


def _loses_a_rank(rank: int) -> Any:
    model = trace_collectives(DistributedDataParallel(nn.Linear(8, 8)))
    call = torch.compile(model, backend="weft", options={"cache": False})
    call(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    if rank == 1:
        time.sleep(0.2)
        os._exit(3)
    time.sleep(1)
    start = time.monotonic()
    try:
        call(torch.ones(2, 8)).sum().backward()
    except RankError as error:
        return error.message, error.ranks, time.monotonic() - start
    return "it went on"


def test_a_rank_that_dies_is_named() -> None:
    (text, ranks, seconds), gone, _ = on_ranks(3, _loses_a_rank)
    assert gone is None
    assert ranks == (1,)
    assert "rank 1 does not answer" in text
    assert seconds < 60
