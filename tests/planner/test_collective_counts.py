"""What collectives carry, counted by torch on ranks that are not there: whole models at 8 and at 1,024 of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import weft
from tests.planner.test_counts import MODELS
from weft.frontends.torch.distributed.hints import Plan, plan_of_transformers
from weft.passes.sharding.counts import count_program
from weft.planner.counts import counts
from weft.planner.mapping import Mapping, rank_program
from weft.planner.model import known_models, model_of

TOKENS, TP = 16, 8
KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_reduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
}


class RankCounts(TorchDispatchMode):
    """Bytes that collectives take, or that all-gathers give, and what torch counts of a rank's own products."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: dict[str, int] = {}
        self.flops = 0
        self.counts = True

    def leave_out_angles(self, model: nn.Module) -> None:
        """Some releases of transformers find the angles of rotary embeddings by a product, no work of the model's."""
        for name, module in model.named_modules():
            if name.endswith("rotary_emb"):
                module.register_forward_pre_hook(lambda *_: setattr(self, "counts", False))
                module.register_forward_hook(lambda *_: setattr(self, "counts", True))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it calls again, with a rank's own tensors
        result = func(*args, **(kwargs or {}))
        # With fake tensors DTensor finds out what a whole product's shape is.
        counted = flop_registry.get(func._overloadpacket)
        if self.counts and counted is not None and not any(issubclass(each, FakeTensor) for each in types):
            self.flops += counted(*args, **(kwargs or {}), out_val=result)
        name = func._schema.name.partition("::")[2]
        if func.namespace == "_c10d_functional" and name in KINDS:
            carried = result if name == "all_gather_into_tensor" else args[0]
            tensors = carried if isinstance(carried, list | tuple) else [carried]
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            self.bytes[KINDS[name]] = self.bytes.get(KINDS[name], 0) + size
        return result


def calls_seen(seen: CommDebugMode) -> dict[str, int]:
    found: dict[str, int] = {}
    for op, count in seen.get_comm_counts().items():
        if count:
            kind = KINDS[str(op).rpartition(".")[2]]
            found[kind] = found.get(kind, 0) + count
    return found


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """A mesh of ranks that are not there."""
    dist.init_process_group("fake", rank=0, world_size=request.param, store=FakeStore())
    yield init_device_mesh("cpu", (request.param // TP, TP), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def built(given: dict[str, Any]) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    fields = dict(given)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("batched_mm")
    return model.eval()


def spread(model: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor parallel as serving engines do it: columns, then rows; experts cut in width; the vocabulary cut."""
    for name, module in model.named_modules():
        if hasattr(module, "o_proj"):
            _spread_attention(module, mesh)
        elif hasattr(module, "experts"):
            _spread_experts(module, mesh)
        elif hasattr(module, "down_proj") and not isinstance(module.down_proj, nn.Parameter):
            rows = RowwiseParallel(output_layouts=Partial() if name.endswith("shared_experts") else Replicate())
            parallelize_module(
                module,
                mesh,
                {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": rows},
            )
    ends = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate())}
    ends["lm_head"] = ColwiseParallel(output_layouts=Replicate())  # type: ignore[assignment]
    parallelize_module(model, mesh, ends)  # type: ignore[arg-type]


def _spread_attention(attention: Any, mesh: DeviceMesh) -> None:
    columns = [name for name in ("q_proj", "q_b_proj", "kv_b_proj") if getattr(attention, name, None) is not None]
    if hasattr(attention, "k_proj"):
        heads = attention.k_proj.out_features // attention.head_dim
        if heads % TP == 0:
            columns += ["k_proj", "v_proj"]
        else:  # ranks share a head, and hold it whole
            for name in ("k_proj", "v_proj"):
                old = getattr(attention, name)
                has_bias, made = old.bias is not None, {"device": "meta", "dtype": torch.bfloat16}
                setattr(attention, name, nn.Linear(old.in_features, attention.head_dim, has_bias, **made))
            attention.num_key_value_groups = attention.q_proj.out_features // attention.head_dim // TP
    if getattr(attention, "sinks", None) is not None:
        attention.sinks = nn.Parameter(attention.sinks[: len(attention.sinks) // TP])
    plan = {name: ColwiseParallel() for name in columns} | {"o_proj": RowwiseParallel()}
    parallelize_module(attention, mesh, plan)


def _spread_experts(block: Any, mesh: DeviceMesh) -> None:
    experts = block.experts
    width = getattr(experts, "intermediate_size", None) or experts.intermediate_dim
    wide = list(experts.gate_up_proj.shape).index(2 * width, 1)
    cuts = {"gate_up_proj": wide, "gate_up_proj_bias": 1, "down_proj": 3 - wide}
    for name, parameter in list(experts.named_parameters()):
        if (dim := cuts.get(name)) is not None:
            part = parameter.narrow(dim, 0, parameter.shape[dim] // TP)
            setattr(experts, name, nn.Parameter(part.contiguous()))

    def summed(_: Any, args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        whole = DTensor.from_local(first, mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()
        return (whole, *output[1:]) if isinstance(output, tuple) else whole

    block.register_forward_hook(summed)


def check_model(name: str, mesh: DeviceMesh, layers: int | None) -> None:
    given = {key: value for key, value in known_models()[name].items() if key != "quantization_config"}
    if layers is not None:
        given["num_hidden_layers"] = layers
        if "layer_types" in given:
            given["layer_types"] = given["layer_types"][:layers]
    model = built(given)
    spread(model, mesh["tp"])
    ids = torch.zeros(1, TOKENS, dtype=torch.long, device="meta")
    mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16, device="meta")
    torch_counts = RankCounts()
    torch_counts.leave_out_angles(model)
    with torch.no_grad(), CommDebugMode() as seen, torch_counts:
        model(ids, attention_mask=mask, position_ids=ids, use_cache=False, logits_to_keep=1)
    planned, mapping = model_of(name, given, name), Mapping(tp=TP, moe_tp=TP)
    found = counts(planned, mapping, TOKENS)
    assert {kind: calls for kind, (calls, _) in found.collectives.items()} == calls_seen(seen)
    assert {kind: size for kind, (_, size) in found.collectives.items()} == torch_counts.bytes
    assert found.flops == torch_counts.flops
    held = sum(_local(parameter).numel() for parameter in model.parameters())
    assert rank_program(planned, mapping).weight_bytes == 2 * held


def _local(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


@pytest.mark.parametrize("ranks", [8, 1024], indirect=True)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "gpt-oss-120b"])
def test_a_few_layers(name: str, ranks: DeviceMesh) -> None:
    check_model(name, ranks, 2)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [8, 1024], indirect=True)
@pytest.mark.parametrize("name", MODELS)
def test_whole_models(name: str, ranks: DeviceMesh) -> None:
    check_model(name, ranks, None)


@pytest.mark.parametrize("ranks", [8, 1024], indirect=True)
@pytest.mark.parametrize("trains", [False, True])
def test_a_rank_runs_the_collectives_that_its_program_counts(ranks: DeviceMesh, trains: bool) -> None:
    """The sharded IR, and what torch sees when the program that was compiled from it runs."""
    torch.manual_seed(0)
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=8,
        vocab_size=128, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    hints = Plan(plan_of_transformers(model).parameters, inputs={"*": "[{dp}, {}]"}, fsdp="dp" if trains else None)
    ids = torch.zeros(ranks.size(0), 8, dtype=torch.int64)
    spread_model = weft.distribute(model, ranks, hints)
    program = spread_model.sharded(input_ids=ids, trains=trains)
    functions = [program.split.forward, program.split.backward] if program.split else [program.function]
    with torch.set_grad_enabled(trains):
        spread_model(input_ids=ids)  # compile
        with CommDebugMode() as seen, RankCounts() as torch_counts:
            logits = spread_model(input_ids=ids).logits
            if trains:
                logits.sum().backward()
    expected: dict[str, tuple[int, int]] = {}
    for function in functions:
        for each in count_program(function).collectives:
            calls, size = expected.get(each.kind, (0, 0))
            expected[each.kind] = calls + each.calls, size + each.bytes
    assert expected
    assert {kind: calls for kind, (calls, _) in expected.items()} == calls_seen(seen)
    assert {kind: size for kind, (_, size) in expected.items()} == torch_counts.bytes
