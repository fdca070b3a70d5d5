"""Models on several ranks give what they give on one: outputs, losses and gradients."""

from __future__ import annotations

import copy
import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import weft
from tests.frontends.torch.distributed.ranks import meeting_place, on_ranks
from weft.errors import RankError, ShardingError, UnsupportedError
from weft.frontends.torch.collectives import failures
from weft.frontends.torch.collectives.lower_collectives import CollectiveLowering
from weft.frontends.torch.distributed.distribute import DistributedModel
from weft.frontends.torch.distributed.hints import Plan, plan_of_transformers
from weft.ir.types import Tensor, f32
from weft.ops.collectives import Send
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.testing.models import SMALL, configured, seeded

BERT = Plan(
    {
        "*.query.*": "[{tp}, {}]",
        "*.key.*": "[{tp}, {}]",
        "*.value.*": "[{tp}, {}]",
        "*.attention.output.dense.weight": "[{}, {tp}]",
        "*.intermediate.dense.weight": "[{tp}, {}]",
        "*.output.dense.weight": "[{}, {tp}]",
    }
)


def small(family: str) -> tuple[nn.Module, dict[str, torch.Tensor], Any]:
    """A model of one layer, four rows of inputs, and its loss."""
    torch.manual_seed(0)
    case = SMALL[family]
    model = case.build()
    layers = getattr(getattr(model, "model", model), "layers", None)
    if layers is not None:
        del layers[1:]
    elif family == "bert":
        del model.encoder.layer[1:]  # type: ignore[union-attr]
    if family == "mixtral":
        case.train(model)
    return model, {key: torch.cat([value, value.flip(0)]) for key, value in case.inputs(0).items()}, case.loss


def plan_for(family: str, kind: str, model: nn.Module) -> Plan:
    if family == "bert":
        names = [name for name, _ in model.named_parameters()]
        split = [name for name in names if name.split(".")[-2] in ("query", "key", "value") and name.endswith("bias")]
        rules = {name: "[{tp}]" for name in split} | dict(BERT.parameters)
        tensor = Plan(rules)
    else:
        tensor = plan_of_transformers(model)
    sequence = {"*": "[{}, {tp}]"}
    return {
        "tp": tensor,
        "sp": replace(tensor, inputs=sequence),
        "dp": Plan(inputs={"*": "[{dp}, {}]"}),
        "fsdp": Plan(inputs={"*": "[{dp}, {}]"}, fsdp="dp"),
        "dp_tp": replace(tensor, inputs={"*": "[{dp}, {}]"}),
        "fsdp_sp": replace(tensor, inputs={"*": "[{dp}, {tp}]"}, fsdp="dp"),
        "cp": Plan(inputs={"*": "[{}, {cp}]"}),
        "ep": Plan({"*.experts.*": "[{ep}, {}, {}]"} if family == "mixtral" else {}, {"*": "[{ep}, {}]"}),
    }[kind]


def same_as_one_rank(rank: int, family: str, kind: str, mesh: dict[str, int]) -> dict[str, float]:
    """How far outputs, loss and gradients are from those of the whole model, relative to the largest."""
    model, inputs, loss_of = small(family)
    whole = copy.deepcopy(model)
    expected = loss_of(whole(**inputs))
    expected.backward()
    spread = weft.distribute(model, mesh, plan_for(family, kind, model))
    loss = loss_of(spread(**inputs))
    loss.backward()
    errors = {"loss": abs(loss.item() - expected.item()) / abs(expected.item())}
    scale = max(float(p.grad.abs().max()) for p in whole.parameters() if p.grad is not None)
    for (name, parameter), other in zip(spread.model.named_parameters(), whole.parameters(), strict=True):
        if other.grad is None:
            continue
        gradient = parameter.grad
        assert gradient is not None, name
        if isinstance(gradient, DTensor):
            gradient = gradient.full_tensor()
            errors[name] = float((gradient - other.grad).abs().max()) / scale
    return errors


def check(results: list[Any]) -> None:
    for result in results:
        assert isinstance(result, dict), result
        assert max(result.values()) < 2e-5, {name: error for name, error in result.items() if error >= 2e-5}


@pytest.mark.parametrize(("family", "kind"), [("llama", "tp"), ("bert", "sp")])
def test_a_training_step_on_two_ranks(family: str, kind: str) -> None:
    check(on_ranks(2, same_as_one_rank, family, kind, {"tp": 2}))


def test_rows_go_to_their_experts() -> None:
    check(on_ranks(2, same_as_one_rank, "mixtral", "ep", {"ep": 2}))


def test_a_training_step_on_four_ranks() -> None:
    check(on_ranks(4, same_as_one_rank, "mixtral", "dp_tp", {"dp": 2, "tp": 2}))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mixtral", "bert"])
@pytest.mark.parametrize(
    ("kind", "mesh"),
    [
        ("tp", {"tp": 2}),
        ("sp", {"tp": 2}),
        ("dp", {"dp": 4}),
        ("fsdp", {"dp": 4}),
        ("cp", {"cp": 4}),
        ("fsdp_sp", {"dp": 2, "tp": 2}),
        ("dp_tp", {"dp": 4, "tp": 2}),
        ("ep", {"ep": 4}),
    ],
)
def test_every_way_to_split_trains_the_same(family: str, kind: str, mesh: dict[str, int]) -> None:
    count = 1
    for size in mesh.values():
        count *= size
    check(on_ranks(count, same_as_one_rank, family, kind, mesh, seconds=300))


def _trains_odd_heads(rank: int, kind: str) -> dict[str, float]:
    """Tied embeddings, three heads on two ranks, one row of seven tokens, and two steps of AdamW."""
    settings = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 3}
    rest = {"num_key_value_heads": 3, "head_dim": 8, "vocab_size": 64, "use_cache": False, "tie_word_embeddings": True}
    model = seeded(lambda: configured("Qwen3", "ForCausalLM", {**settings, **rest}))
    whole, ids = copy.deepcopy(model), torch.arange(7).reshape(1, 7) * 9 % 64
    plan = plan_of_transformers(model) if kind == "tp" else Plan(fsdp="tp")
    spread = weft.distribute(model, {"tp": 2}, plan)
    losses: list[list[float]] = []
    for each in (whole, spread):
        optimizer, found = torch.optim.AdamW(each.parameters(), lr=1e-2), list[float]()
        for _ in range(3):
            loss = each(input_ids=ids).logits.square().mean()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(each.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        losses.append(found)
    return {f"step {n}": abs(a - b) / abs(a) for n, (a, b) in enumerate(zip(*losses, strict=True))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tp", "fsdp"])
def test_heads_rows_and_tokens_that_do_not_divide(kind: str) -> None:
    check(on_ranks(2, _trains_odd_heads, kind))


def _splits_against_the_mesh(rank: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(8, 8)
    whole = copy.deepcopy(model)
    spread = weft.distribute(model, {"dp": 2, "tp": 2}, Plan(inputs={"0": "[{tp, dp}, {}]"}))
    with torch.no_grad():
        return {"output": float((spread(x) - whole(x)).abs().max())}


def test_axes_in_another_order_than_the_mesh_has() -> None:
    check(on_ranks(4, _splits_against_the_mesh))


def _on_a_part_of_the_ranks(rank: int, axes: tuple[str, ...]) -> dict[str, float]:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(8, 8)
    whole = copy.deepcopy(model)
    every = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("dp", "tp", "pp"))
    spread = weft.distribute(model, every[axes], {"weight": f"[{{{', '.join(axes)}}}, {{}}]"})
    assert isinstance(spread.model.weight, DTensor)
    with torch.no_grad():
        found = {
            "output": float((spread(x) - whole(x)).abs().max()),
            "weight": float((spread.model.weight.full_tensor() - whole.weight).abs().max()),
        }
    dist.barrier()  # the ranks of another part may need the store that one of these keeps
    return found


@pytest.mark.parametrize("axes", [("dp",), ("dp", "tp")])
def test_a_mesh_of_a_part_of_the_ranks(axes: tuple[str, ...]) -> None:
    check(on_ranks(4, _on_a_part_of_the_ranks, axes))


def _takes_dtensors(rank: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(8, 8)
    whole = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    spread = weft.distribute(model, mesh, {"weight": "[{tp}, {}]"})
    with torch.no_grad():
        return {
            str(placement): float((spread(distribute_tensor(x, mesh, [placement])) - whole(x)).abs().max())
            for placement in (Shard(0), Replicate(), Shard(1))
        }


def test_inputs_lie_as_their_dtensors_say() -> None:
    check(on_ranks(2, _takes_dtensors))


def _takes_pending_reductions(rank: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Linear(8, 8)
    whole = copy.deepcopy(model)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    spread = weft.distribute(model, mesh, {"weight": "[{tp}, {}]"})
    parts = [torch.randn(4, 8), torch.randn(4, 8)]
    expected = {
        "sum": parts[0] + parts[1],
        "product": parts[0] * parts[1],
        "max": torch.maximum(*parts),
        "min": torch.minimum(*parts),
    }
    with torch.no_grad():
        return {
            kind: float((spread(DTensor.from_local(parts[rank], mesh, [Partial(kind)])) - whole(x)).abs().max())
            for kind, x in expected.items()
        }


def test_inputs_may_have_reductions_pending() -> None:
    check(on_ranks(2, _takes_pending_reductions))


def _takes_dtensors_that_do_not_fit(rank: int) -> list[str]:
    spread = weft.distribute(nn.Linear(8, 8), {"tp": 2}, {"weight": "[{tp}, {}]"})
    own, x = spread.groups.devices, torch.ones(4, 8)
    wide = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "dp"))
    other = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    told: list[str] = []
    with torch.no_grad():
        spread(distribute_tensor(x, own, [Shard(0)]))
        for given in (
            DTensor.from_local(x, own, [Partial("avg")]),
            distribute_tensor(x, wide, [Shard(0), Replicate()]),
            distribute_tensor(x, other, [Shard(0)]),
        ):
            try:
                spread(given)
            except ShardingError as error:
                told.append(str(error))
    return told


def test_dtensors_that_do_not_fit_are_refused() -> None:
    for told in on_ranks(2, _takes_dtensors_that_do_not_fit):
        assert len(told) == 3, told
        assert "reduction avg" in told[0] and "redistribute" in told[0]
        assert "0 is a DTensor on a mesh tp=2, dp=1" in told[1] and "weft.distribute gets" in told[1]
        assert "on a mesh dp=2" in told[2]


def _trains_in_part(rank: int) -> dict[str, float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.9))
    spread, x = weft.distribute(copy.deepcopy(model), {"tp": 2}, {"0.weight": "[{tp}, {}]"}), torch.ones(2, 8)
    with torch.no_grad():
        assert (spread(x) == 0).any(), "it drops"
        spread.model[1].eval()
        return {"output": float((spread(x) - model[0](x)).abs().max())}


def test_a_module_may_be_evaluated_while_others_train() -> None:
    check(on_ranks(2, _trains_in_part))


def _freezes_and_thaws(rank: int) -> list[list[bool]]:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    spread, x = weft.distribute(model, {"tp": 2}, {"0.weight": "[{tp}, {}]"}), torch.ones(2, 8)
    found: list[list[bool]] = []
    for first in (False, True, False):
        spread.zero_grad()
        spread.model[0].requires_grad_(first)
        spread(x).sum().backward()
        found.append([parameter.grad is not None for parameter in spread.parameters()])
    return found


def test_parameters_may_be_frozen_and_thawed_between_steps() -> None:
    for found in on_ranks(2, _freezes_and_thaws):
        assert found == [[False, False, True, True], [True] * 4, [False, False, True, True]]


class Multiplied(nn.Module):
    """A module with a number that its program is traced with."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def _changes_an_attribute(rank: int) -> list[Any]:
    torch.manual_seed(0)
    model, x = Multiplied(), torch.randn(4, 8)
    expected = model(x).detach()
    spread = weft.distribute(model, {"tp": 2}, {"linear.weight": "[{tp}, {}]"})
    assert isinstance(spread, DistributedModel)
    far: list[float] = []
    with torch.no_grad():
        for set_on, scale in ((model, 1.0), (model, 2.0), (spread, 3.0), (model, 1.0), (spread, 3.0)):
            set_on.scale = scale
            far.append(float((spread(x) - expected * scale).abs().max()))
    return [max(far) < 1e-5, len(spread.programs)]


def test_an_attribute_that_changes_makes_another_program() -> None:
    assert on_ranks(2, _changes_an_attribute) == [[True, 3], [True, 3]]


class Shifted(nn.Module):
    """A module with tensors that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.shift = torch.arange(8.0)
        self.scales = {"all": [torch.full((8,), 3.0)]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scales["all"][0] + self.shift


def _holds_plain_tensors(rank: int) -> dict[str, float]:
    torch.manual_seed(0)
    model, x = Shifted(), torch.randn(4, 8)
    whole = copy.deepcopy(model)
    spread = weft.distribute(model, {"tp": 2}, {"linear.weight": "[{tp}, {}]"})
    for each in (whole, spread):
        each(x).square().sum().backward()
    weight = spread.model.linear.weight.grad
    assert isinstance(weight, DTensor) and whole.linear.weight.grad is not None
    scale = float(whole.linear.weight.grad.abs().max())
    return {
        "output": float((spread(x) - whole(x)).abs().max().detach()),
        "gradient": float((weight.full_tensor() - whole.linear.weight.grad).abs().max()) / scale,
    }


def test_tensors_that_are_plain_attributes_are_constants() -> None:
    check(on_ranks(2, _holds_plain_tensors))


def _trains_a_plain_tensor(rank: int) -> str:
    model = nn.Sequential(Shifted())
    model[0].shift = torch.ones(8, requires_grad=True)
    try:
        weft.distribute(model, {"tp": 2}, {"0.linear.weight": "[{tp}, {}]"})
    except UnsupportedError as error:
        return str(error)
    return "it went on"


def test_plain_attributes_that_require_gradients_are_refused() -> None:
    for told in on_ranks(2, _trains_a_plain_tensor):
        assert "0.shift requires a gradient" in told and "nn.Parameter" in told


def _asks_for_an_inputs_gradient(rank: int) -> str:
    spread = weft.distribute(nn.Linear(8, 8), {"tp": 2}, {"weight": "[{tp}, {}]"})
    try:
        spread(torch.ones(2, 8, requires_grad=True))
    except UnsupportedError as error:
        return str(error)
    return "it went on"


def test_gradients_of_inputs_are_refused() -> None:
    for told in on_ranks(2, _asks_for_an_inputs_gradient):
        assert "only parameters get one" in told


def _ranks_out_of_order(rank: int) -> str:
    try:
        weft.distribute(nn.Linear(8, 8), DeviceMesh("cpu", [1, 0], mesh_dim_names=("tp",)), {"weight": "[{tp}, {}]"})
    except ShardingError as error:
        return str(error)
    return "it went on"


def test_ranks_out_of_order_are_refused() -> None:
    for told in on_ranks(2, _ranks_out_of_order):
        assert "are not in order: [1, 0]" in told


def _dies(rank: int) -> Any:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    spread = weft.distribute(model, {"tp": 2}, {"0.weight": "[{tp}, {}]", "0.bias": "[{tp}]", "1.weight": "[{}, {tp}]"})
    x = torch.ones(2, 8)
    with torch.no_grad():
        spread(x)
        dist.barrier()
        if rank == 1:
            time.sleep(0.2)
            os._exit(3)
        time.sleep(1)
        start = time.monotonic()
        try:
            spread(x)
        except RankError as error:
            return f"{error.ranks} {error.message}", time.monotonic() - start
    return "it went on", 0.0


def test_a_rank_that_dies_is_named() -> None:
    first, second = on_ranks(2, _dies)
    assert second is None
    assert "(1,) rank 1 does not answer" in first[0]
    assert first[1] < 60


def _fails_twice(rank: int) -> list[Any]:
    store = dist.distributed_c10d._get_default_store()
    before = store.timeout
    first = failures.silent_ranks([0, 1], 1)
    dist.barrier()
    second = failures.silent_ranks([0, 1], 2) if rank == 0 else []
    after = store.timeout
    dist.barrier()  # it keeps the store
    return [first, second, before == after]


def test_an_answer_after_one_failure_is_none_after_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_ANSWER", timedelta(seconds=3))
    assert on_ranks(2, _fails_twice) == [[[], [1], True], [[], [], True]]


def _waits_as_told(rank: int, port: int) -> list[Any]:
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)
    weft.distribute(nn.Linear(8, 8), {"tp": 2}, {"weight": "[{tp}, {}]"}, timeout=timedelta(seconds=77))
    group = dist.distributed_c10d._get_default_group()
    waits = group._get_backend(torch.device("cpu")).options._timeout
    try:
        weft.distribute(nn.Linear(8, 8), {"tp": 2}, {"weight": "[{tp}, {}]"}, timeout=timedelta(seconds=5))
    except ShardingError as error:
        return [waits.total_seconds(), str(error)]
    return [waits.total_seconds(), "it went on"]


def test_the_timeout_is_that_of_the_process_group() -> None:
    store = meeting_place()
    for seconds, told in on_ranks(2, _waits_as_told, store.port):
        assert seconds == 77 and "is there already" in told


def _waits_for_one_that_hangs(rank: int, port: int) -> Any:
    failures._ANSWER = timedelta(seconds=3)
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(port)
    wait = timedelta(seconds=6)
    spread = weft.distribute(nn.Linear(8, 8), {"dp": 1, "tp": 2}, {"weight": "[{}, {tp}]"}, timeout=wait)
    with torch.no_grad():
        spread(torch.ones(2, 8))
        if rank == 1:
            time.sleep(12)
            return "slept"
        start = time.monotonic()
        try:
            spread(torch.ones(2, 8))
        except RankError as error:
            return error.ranks, error.message, time.monotonic() - start
    return "it went on"


def test_a_rank_that_hangs_is_named() -> None:
    """On a mesh of several axes, too, for whose groups torch waits half an hour unless told otherwise."""
    store = meeting_place()
    first, second = on_ranks(2, _waits_for_one_that_hangs, store.port)
    assert second == "slept"
    ranks, message, seconds = first
    assert ranks == (1,) and "rank 1 lives but has not come to this call" in message
    assert seconds < 60


def _ends(rank: int, where: str) -> Any:
    failures._ANSWER = timedelta(seconds=3)
    if where == "place" and rank == 1:
        os._exit(3)
    start = time.monotonic()
    try:
        spread = weft.distribute(nn.Linear(8, 8), {"dp": 2}, Plan(inputs={"0": "[{dp}, {}]"}))
        if where == "compile" and rank == 1:
            os._exit(3)
        start = time.monotonic()
        loss = spread(torch.ones(2, 8)).sum()
        if where == "backward" and rank == 1:
            os._exit(3)
        start = time.monotonic()
        loss.backward()
    except RankError as error:
        return error.ranks, time.monotonic() - start
    return "it went on"


@pytest.mark.parametrize("where", ["compile", "backward", pytest.param("place", marks=pytest.mark.slow)])
def test_a_process_that_ends_is_named(where: str) -> None:
    first, second = on_ranks(2, _ends, where)
    assert second is None
    assert first[0] == (1,) and first[1] < 60, first


def _called_with_other_inputs(rank: int) -> list[Any]:
    spread = weft.distribute(nn.Linear(8, 8), {"tp": 2}, {"weight": "[{}, {tp}]"})
    told: list[Any] = []
    with torch.no_grad():
        for x in (torch.ones(2 + 6 * rank, 8), torch.ones(2, 8, dtype=(torch.float32, torch.float64)[rank])):
            try:
                spread(x)
            except RankError as error:
                told.append((error.ranks, error.message))
        assert spread(torch.ones(4, 8)).shape == (4, 8), "and go on together"
        spread(torch.ones(2, 8))
        try:
            spread(torch.ones(4 - 2 * rank, 8))
        except RankError as error:
            told.append((error.ranks, error.message))
    return told


def test_ranks_that_are_called_with_other_inputs_are_named() -> None:
    for told in on_ranks(2, _called_with_other_inputs):
        (ranks, shapes), (_, dtypes), (_, known) = told
        assert ranks == (1,)
        assert "rank 1 calls the model with (0: float32[8, 8])" in shapes and "rank 0 with (0: float32[2, 8])" in shapes
        assert "float64[2, 8]" in dtypes
        assert "float32[4, 8]" in known and "float32[2, 8]" in known  # though all have compiled both


class Packed(nn.Module):
    """A gate and an up projection in one matrix, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.both, self.drop = nn.Linear(8, 32, bias=False), nn.Dropout(0.25)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.both(x).chunk(2, -1)
        return self.drop(self.down(nn.functional.silu(gate) * up))


PACKED = {"both.weight": "[{tp/2}, {}]", "down.weight": "[{}, {tp}]"}


def _trains_a_packed_layer(rank: int, folder: str) -> dict[str, float]:
    """Two steps of AdamW over accumulated and clipped gradients, each rank with a seed of its own."""
    import torch.distributed.checkpoint as checkpoint

    torch.manual_seed(0)
    model, x, errors = Packed(), torch.randn(4, 8), dict[str, float]()
    whole = copy.deepcopy(model)
    spread = weft.distribute(model, {"tp": 4}, PACKED)
    norms: list[float] = []
    for each in (whole, spread):
        torch.manual_seed(rank if each is spread else 0)
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            for scale in (1, 2):
                each(scale * x).square().sum().backward()
            norm = torch.nn.utils.clip_grad_norm_(each.parameters(), 1.0)
            norms.append(float(norm.full_tensor() if isinstance(norm, DTensor) else norm))
            optimizer.step()
    errors["norm"] = max(abs(norms[0] - norms[2]), abs(norms[1] - norms[3])) / norms[0]
    whole.eval()
    spread.eval()
    errors["steps"] = float((spread(x) - whole(x)).abs().max().detach())
    checkpoint.save({"model": spread.model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=folder)
    expected = whole.state_dict()
    found = {"model": Packed().state_dict()}
    checkpoint.load(found, checkpoint_id=folder)
    return errors | {key: float((value - expected[key]).abs().max()) for key, value in found["model"].items()}


def _loads_a_packed_layer(rank: int, folder: str) -> dict[str, float]:
    import torch.distributed.checkpoint as checkpoint

    whole = Packed().eval()
    spread = weft.distribute(Packed().eval(), {"tp": 2}, PACKED)
    for each in (whole, spread.model):
        state = {"model": each.state_dict()}
        checkpoint.load(state, checkpoint_id=folder)
        each.load_state_dict(state["model"])
    x = torch.ones(2, 8)
    with torch.no_grad():
        return {"output": float((spread(x) - whole(x)).abs().max())}


def test_packed_parameters_train_and_move_between_four_ranks_and_two(tmp_path: Any) -> None:
    check(on_ranks(4, _trains_a_packed_layer, os.fspath(tmp_path)))
    check(on_ranks(2, _loads_a_packed_layer, os.fspath(tmp_path)))


def _optimizes_and_saves(rank: int, folder: str) -> Any:
    import torch.distributed.checkpoint as checkpoint

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    whole = copy.deepcopy(model)
    plan = {"0.weight": "[{tp}, {}]", "0.bias": "[{tp}]", "2.weight": "[{}, {tp}]"}
    spread = weft.distribute(model, {"tp": 2}, plan)
    x = torch.randn(4, 8)
    for each in (whole, spread):
        optimizer = torch.optim.Adam(each.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
    checkpoint.save({"model": spread.model.state_dict()}, checkpoint_id=folder)
    error = float((spread(x) - whole(x)).abs().max().detach())
    with torch.no_grad():
        for parameter in spread.parameters():
            parameter.zero_()
    state = {"model": spread.model.state_dict()}
    checkpoint.load(state, checkpoint_id=folder)
    spread.model.load_state_dict(state["model"])
    return {"steps": error, "loaded": float((spread(x) - whole(x)).abs().max().detach())}


def test_parameters_are_optimized_saved_and_loaded_in_parts(tmp_path: Any) -> None:
    check(on_ranks(2, _optimizes_and_saves, os.fspath(tmp_path)))


def _refusals(rank: int) -> list[str]:
    model = nn.Linear(6, 9)
    told: list[str] = []
    for mesh, plan in (
        ({"tp": 2}, {"weight": "[{tp}, {}]"}),
        ({"tp": 2}, {"wieght": "[{}, {tp}]"}),
        ({"tp": 2}, {"weight": "[{tp}]"}),
        ({"tp": 3}, {"weight": "[{}, {tp}]"}),
        ({"tp": 2}, {"weight": "[{}, {dp}]"}),
        ({"tp": 2}, "tp"),
    ):
        try:
            weft.distribute(model, mesh, plan)
        except ShardingError as error:
            told.append(str(error))
    return told


def test_what_does_not_fit_is_refused() -> None:
    (told, _) = on_ranks(2, _refusals)
    expected = (
        "9 is not a multiple of 2",
        "no parameter is called wieght",
        "has 2 dimensions",
        "has 3 ranks, and there are 2",
        "has no axis dp",
        "carries no plan",
    )
    assert len(told) == len(expected), told
    for text, part in zip(told, expected, strict=True):
        assert part in text


def test_messages_of_a_program_that_is_no_stage_are_refused() -> None:
    function = FuncOp.make("stage", {"x": Tensor(f32, (4,))})
    b = GraphBuilder(function.block)
    b.insert(Send.make(function.block.args[0], axis="pp", to=1, channel=0))
    b.insert(ReturnOp.make([function.block.args[0]]))
    with pytest.raises(UnsupportedError, match="no stage of a pipeline"):
        CollectiveLowering(function, {}, {}).run()


def test_a_plan_of_transformers_is_read() -> None:
    settings = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = seeded(lambda: configured("Llama", "ForCausalLM", {**settings, "vocab_size": 48}))
    plan = plan_of_transformers(model)
    assert plan.parameters["model.layers.0.self_attn.q_proj.weight"] == "[{tp}, {}]"
    assert plan.parameters["model.layers.0.mlp.down_proj.weight"] == "[{}, {tp}]"
    assert "model.norm.weight" not in plan.parameters
