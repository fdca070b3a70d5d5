"""What `weft spatial racks` does: a decoder over racks of spatial chips, alone and together with GPUs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from weft.backends.reference.graph import run as run_graph
from weft.errors import UnsupportedError
from weft.planner.capacity import memory as gpu_memory
from weft.planner.hardware import Gpu, find_gpu
from weft.planner.mapping import Mapping as GpuMapping
from weft.planner.mapping import fits_heads, rank_program
from weft.planner.model import ExpertBlock, Model, SelfAttention, find_model
from weft.planner.search import open_costs
from weft.planner.step_costs import step_costs
from weft.spatial.decoder import DecoderBuilder, DecoderShape, LayerWeights, spans, tensor_parallel, whole
from weft.spatial.machine import StreamingMachine, streaming_machine
from weft.spatial.rack_page import rack_page
from weft.spatial.racks import RackPlan, Timing, plan_racks, schedule_layer
from weft.spatial.scheduler.place import map_placed, place_model, placed_system
from weft.spatial.simulator.system import simulate_system
from weft.spatial.verifier.verify import verify_system
from weft.tools.terminal import Terminal, UsageError, check_file


def decoder_shape(model: Model) -> DecoderShape:
    """The sizes of a decoder whose layers are alike and have grouped heads."""
    (layer, _), *others = model.layers
    mixer, block = layer.mixer, layer.block
    if others or not isinstance(mixer, SelfAttention) or mixer.latent or mixer.head_dim != mixer.value_dim:
        raise UnsupportedError(
            f"{model.name} has layers of several kinds, or attention without heads of keys",
            hint="`weft spatial distribute` takes the graph of a layer",
        )
    if isinstance(block, ExpertBlock):
        return DecoderShape(
            model.name, model.hidden, mixer.heads, mixer.kv_heads, mixer.head_dim, block.width, model.depth,
            model.vocabulary, block.experts, block.per_token,
        )  # fmt: skip
    if not block.gated:
        raise UnsupportedError(
            f"{model.name} has hidden layers without a gate",
            hint="`weft spatial distribute` takes the graph of a layer",
        )
    return DecoderShape(
        model.name,
        model.hidden,
        mixer.heads,
        mixer.kv_heads,
        mixer.head_dim,
        block.width,
        model.depth,
        model.vocabulary,
    )


@dataclass(frozen=True)
class Way:
    """A way to run a model: a token's time for each user, by what it is spent on."""

    name: str
    parts: Mapping[str, float]
    """Seconds."""

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def binds(self) -> str:
        return max(self.parts, key=lambda name: self.parts[name])


def plan_file(
    terminal: Terminal,
    name: str,
    machine_name: str,
    overrides: Mapping[str, Any],
    chips: int,
    tensors: Sequence[int],
    context: int,
    batch: int,
    gpu: str | None,
    output: Path | None,
) -> None:
    """Plan a decoder over chips; beside GPUs and together with them, where one is named."""
    if output is not None:
        check_file(output, "--output")
    machine = streaming_machine(machine_name, overrides)
    model = find_model(name)
    shape = decoder_shape(model)
    if context < 1 or batch < 1:
        raise UsageError("a context and a batch have one token at least", hint="--context 1024 --batch 1")
    with _reporting(terminal, f"planning {name}") as report:
        plans = [plan_racks(shape, machine, chips, each, context, batch, report) for each in tensors]
        ways = _ways(model, shape, machine, find_gpu(gpu), plans, context, batch, report) if gpu else []
    for plan in plans:
        _show(terminal, machine, plan)
    if ways:
        table = Table("way", "tokens/s for each user", "ms", "most of it", title=f"with {gpu}, batch {batch}")
        for way in ways:
            spent = ", ".join(f"{what} {value * 1e3:.3f}" for what, value in way.parts.items())
            table.add_row(way.name, f"{1 / way.seconds:,.0f}", f"{way.seconds * 1e3:.3f} ({spent})", way.binds)
        best = min(ways, key=lambda way: way.seconds)
        terminal.show(table, f"the fastest: {best.name}")
    if output is not None:
        output.write_text(rack_page(f"{name} on {machine.name}", plans, machine.memory_bytes), encoding="utf-8")
        terminal.show(f"drawn in {output}")
    terminal.finish(
        {
            "ok": True,
            "model": name,
            "machine": f"{machine.name}@{machine.digest}",
            "plans": [_figures(machine, plan) for plan in plans],
            "ways": [{"name": w.name, "seconds": w.seconds, "parts": dict(w.parts), "binds": w.binds} for w in ways],
        }
    )


@contextmanager
def _reporting(terminal: Terminal, what: str) -> Generator[Callable[[str], None]]:
    """Tells what is being done, where a person is watching."""
    if not terminal.err.is_terminal or terminal.json:
        yield lambda _: None
        return
    with terminal.err.status(what) as status:
        yield lambda step: status.update(f"{what}: {step}")


def _show(terminal: Terminal, machine: StreamingMachine, plan: RackPlan) -> None:
    token = plan.token
    how = f"{plan.tensor} chips share a layer, {plan.stages} stages" if plan.tensor > 1 else f"{plan.stages} stages"
    table = Table("", "cycles", "", title=f"{plan.shape.name} on {plan.chips} {machine.name}, {how}")
    for name, cycles in (
        ("weights", token.weights),
        ("hops", token.hops),
        ("links", token.links),
        ("rest", token.rest),
    ):
        table.add_row(name, f"{cycles:,}", f"{cycles / token.cycles:.1%}")
    table.add_row("a token", f"{token.cycles:,}", f"{token.cycles / machine.clock_hz * 1e3:.3f} ms")
    fullest = max(plan.memory, key=lambda each: each.total)
    parts = ", ".join(f"{name} {size:,}" for name, size in vars(fullest).items())
    used = sum(each.total > 0 for each in plan.memory)
    terminal.show(
        table,
        f"{plan.tokens_per_second:,.1f} tokens/s for each user, {plan.rows} at a time, {plan.context} in the cache; "
        + ", ".join(f"{what} {cycles:,}" for what, cycles in plan.layer_cycles.items()),
        f"{used} chips used; the fullest: {fullest.total:,} of {machine.memory_bytes:,} bytes ({parts})",
    )


def _figures(machine: StreamingMachine, plan: RackPlan) -> dict[str, Any]:
    fullest = max(plan.memory, key=lambda each: each.total)
    return {
        "chips": plan.chips,
        "used": sum(each.total > 0 for each in plan.memory),
        "tensor": plan.tensor,
        "stages": plan.stages,
        "tokens_per_second": plan.tokens_per_second,
        "cycles": {**vars(plan.token), "rest": plan.token.rest},
        "parts": plan.layer_cycles,
        "fullest": {**vars(fullest), "total": fullest.total, "capacity": machine.memory_bytes},
    }


def _ways(
    model: Model,
    shape: DecoderShape,
    machine: StreamingMachine,
    gpu: Gpu,
    plans: Sequence[RackPlan],
    context: int,
    batch: int,
    report: Callable[[str], None],
) -> list[Way]:
    """GPUs alone, chips alone, and attention with the cache on GPUs and hidden layers on chips."""
    ways = [Way(f"chips alone, {plan.tensor} share a layer", _seconds(plan.token, machine)) for plan in plans]
    gpus = _gpu_parts(model, gpu, context, batch)
    if not gpus:
        raise UnsupportedError(f"{model.name} does not fit on a node of {gpu.device}", hint="name another with --gpu")
    count, parts = min(gpus, key=lambda found: sum(found[1].values()))
    ways.append(Way(f"{count} GPUs alone", parts))
    tensor = max(plan.tensor for plan in plans)
    if tensor > 1:
        weights = LayerWeights(shape)
        placement = tensor_parallel(shape, range(tensor), machine.width)
        half = schedule_layer(weights, placement, machine, tensor, context, batch, half="ffn", report=report)
        moved = batch * shape.hidden
        network = 2 * shape.layers * (gpu.network_latency + moved / gpu.network)
        both = {f"{name} on GPUs": value for name, value in parts.items() if not _hidden_layer(name)}
        hidden = _seconds(half.timing.times(shape.layers), machine)
        both |= {f"{name} on chips": value for name, value in hidden.items()}
        ways.append(Way(f"attention on {count} GPUs, hidden layers on chips", {**both, "network": network}))
    return ways


def _hidden_layer(name: str) -> bool:
    return name in ("hidden layers", "experts", "collectives of hidden layers")


def _seconds(timing: Timing, machine: StreamingMachine) -> dict[str, float]:
    spent = {"weights": timing.weights, "hops": timing.hops, "links": timing.links, "rest": timing.rest}
    return {name: cycles / machine.clock_hz for name, cycles in spent.items()}


def _gpu_parts(model: Model, gpu: Gpu, context: int, batch: int) -> list[tuple[int, dict[str, float]]]:
    """For each number of GPUs that holds the model in 8 bits, a decoding step by what it is spent on."""
    small = model.with_precision("fp8") if gpu.fp8 else model
    costs, found = open_costs(gpu, None, "weft"), list[tuple[int, dict[str, float]]]()
    for tensor in (1, 2, 4, 8):
        mapping = GpuMapping(tensor, moe_tp=tensor) if model.has_experts else GpuMapping(tensor)
        if tensor > gpu.nvlink_domain or not fits_heads(small, mapping):
            continue
        program = rank_program(small, mapping, 1.0)
        if gpu_memory(small, program, mapping, gpu, 2048).cache_tokens < batch * context:
            continue
        step, parts = step_costs(program, costs, "fp8"), dict[str, float]()
        for part in step.parts:
            kind = "attention"
            if part.kind == "collective":
                hidden = part.name.startswith(("block", "expert", "dispatch", "combine"))
                kind = "collectives of hidden layers" if hidden else "collectives"
            elif part.name.startswith(("block", "shared")):
                kind = "hidden layers"
            elif part.kind == "experts" or part.name in ("router", "top experts"):
                kind = "experts"
            elif part.name in ("vocabulary", "sampling", "last norm", "embedding"):
                kind = "words"
            parts[kind] = parts.get(kind, 0.0) + step.part_seconds(part, batch, context)
        found.append((tensor, parts))
    return found


def small_copy(shape: DecoderShape) -> DecoderShape:
    """A decoder of the same kind that is small enough to run with all its bits."""
    repeats = min(4, shape.repeats)
    experts = min(4, shape.experts)
    return replace(
        shape, name=f"{shape.name}, small", hidden=640, heads=2 * repeats, kv_heads=2, width=64,
        ffn=640 if experts else 1280, layers=2, vocabulary=640, experts=experts, chosen=min(2, shape.chosen),
    )  # fmt: skip


def run_small(
    terminal: Terminal, name: str, machine_name: str, overrides: Mapping[str, Any], chips: int, tensor: int, batch: int
) -> None:
    """Two layers of a small copy, split over chips and GPUs, with all their bits: compared with one piece."""
    machine = streaming_machine(machine_name, overrides)
    shape = small_copy(decoder_shape(find_model(name)))
    node = machine.network.chips_per_node
    if tensor < 1 or tensor > node or chips < tensor or chips > 2 * node:
        raise UsageError(
            f"{chips} chips and {tensor} that share a layer", hint=f"up to {2 * node}, and {node} share one"
        )
    with _reporting(terminal, f"running {shape.name}"):
        weights = [LayerWeights(shape, seed) for seed in range(2)]
        # The second layer has chips of its own, where there are enough.
        later = (
            range(tensor)
            if chips < 2 * tensor
            else (range(node, node + tensor) if chips > node else range(tensor, 2 * tensor))
        )
        placed = [tensor_parallel(shape, own, machine.width) for own in (range(tensor), later)]
        builder = DecoderBuilder(list(zip(weights, placed, strict=True)), 40, batch)
        function, given = builder.run(), builder.arguments()
        system = placed_system(place_model(map_placed(function, machine, builder.build.constants), machine, chips))
        verify_system(system)
        found = simulate_system(system, list(given.values()))
        one = DecoderBuilder([(each, whole(shape)) for each in weights], 40, batch)
        expected = run_graph(one.run(), [*one.arguments().values(), *one.build.constants.values()])[0]
        parts = len(placed[1].down)
        split = _run_split(weights, machine, batch)
    same = np.array_equal(np.concatenate(found.results[:parts], axis=1), expected)
    exact = found.cycles == system.cycles
    terminal.show(
        f"{shape.name}: two layers on {chips} chips, {tensor} share a layer: {found.cycles:,} cycles, predicted "
        f"{system.cycles:,}; {found.vectors:,} vectors sent; the bits of one piece: {'yes' if same else 'no'}",
        f"attention by the reference, as a GPU would, and hidden layers on chips: the bits of one piece: "
        f"{'yes' if split else 'no'}",
    )
    ok = same and exact and split
    figures = {
        "cycles": found.cycles,
        "predicted": system.cycles,
        "same": same,
        "split": split,
        "vectors": found.vectors,
    }
    terminal.finish({"ok": ok, **figures}, code=int(not ok))


def _run_split(weights: Sequence[LayerWeights], machine: StreamingMachine, batch: int) -> bool:
    """Attention of two layers by the reference and their hidden layers on chips, against all of it in one piece."""
    shape = weights[0].shape
    one = DecoderBuilder([(each, whole(shape)) for each in weights], 40, batch)
    given = one.arguments()
    expected = run_graph(one.run(), [*given.values(), *one.build.constants.values()])[0]
    x = given["x0"]
    for number, each in enumerate(weights):
        attention = DecoderBuilder([(each, whole(shape))], 40, batch, "attention")
        known = {
            name: given[name.replace("0.", f"{number}.", 1)] for name in attention.build.arguments if name[0] in "kv"
        }
        x = run_graph(attention.run(), [x, *known.values(), *attention.build.constants.values()])[0]
        placement = tensor_parallel(shape, range(2), machine.width)
        hidden = DecoderBuilder([(each, placement)], 40, batch, "ffn")
        function = hidden.run()
        system = placed_system(place_model(map_placed(function, machine, hidden.build.constants), machine, 2))
        verify_system(system)
        parts = [x[:, a:b] for a, b in spans(placement.out)]
        chosen = [given[f"r{number}.{expert}"] for expert in range(shape.experts)]
        x = np.concatenate(simulate_system(system, [*parts, *chosen]).results, axis=1)
    return bool(np.array_equal(x, expected))
