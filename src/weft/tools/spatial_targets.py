"""What the streaming machines have to reach, row by row, and what they do: scheduled and proved anew each time.

Targets are published figures, or follow from them; a row says which bound stands beside what is reached.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from weft.backends.reference.graph import run as run_graph
from weft.spatial.decoder import DecoderShape
from weft.spatial.isa import Opcode
from weft.spatial.machine import StreamingMachine, SystolicMachine, load_machine
from weft.spatial.program import Program
from weft.spatial.racks import plan_racks
from weft.spatial.scheduler.compile import compile_graph
from weft.spatial.scheduler.distribute import distribute_graph
from weft.spatial.scheduler.installs import install_all_planes
from weft.spatial.scheduler.place import map_placed, place_model, placed_system
from weft.spatial.simulator.issues import run_queues
from weft.spatial.simulator.run import simulate
from weft.spatial.simulator.system import simulate_system
from weft.spatial.systolic import schedule_product
from weft.spatial.verifier.verify import verify, verify_system
from weft.testing.spatial.collectives import all_reduce
from weft.testing.spatial.programs import RandomProgram, random_program, vector_stack
from weft.testing.spatial.resnet import resnet
from weft.testing.spatial.scale_sim import OBLONG, SQUARE
from weft.tools.spatial_models import quantized_model

PROGRAMS = 50
"""Random programs of row 11, each on one chip and on several."""
_LAYOUTS = ((2, 1), (2, 2), (4, 2), (8, 8), (16, 4), (3, 1), (16, 8), (16, 1), (4, 4))


@dataclass(frozen=True)
class Outcome:
    """A target and what was reached."""

    what: str
    target: str
    reached: str
    ok: bool


Row = Callable[[StreamingMachine], Iterator[Outcome]]


def identities(machine: StreamingMachine) -> Iterator[Outcome]:
    """What follows from the description."""
    wanted = {
        "lanes": (machine.width, 320),
        "memory bytes": (machine.memory_bytes, 230_686_720),
        "memory bytes a cycle": (machine.memory_rate, 56_320),
        "stream bytes a cycle": (machine.stream_rate, 20_480),
        "int8 MACs": (machine.int8_macs, 409_600),
        "fp16 MACs": (machine.fp16_macs, 102_400),
        "cycles to load a half": (machine.weight_floor, 20),
        "ALUs": (machine.width * machine.alus, 5_120),
        "fetch bytes a cycle": (machine.fetch_rate, 2_304),
        "link bits a second": (machine.link_bits, 3_840_000_000_000),
    }
    wrong = [f"{name} {value:,}" for name, (value, other) in wanted.items() if value != other]
    yield Outcome("identities", f"{len(wanted)} exact", ", ".join(wrong) or f"{len(wanted)} exact", not wrong)


def installs(machine: StreamingMachine) -> Iterator[Outcome]:
    """All planes are filled from memory."""
    shape = (machine.matrix.planes, machine.matrix.rows, machine.matrix.columns)
    program = install_all_planes(machine, np.random.default_rng(0).integers(-128, 128, shape, dtype=np.int8))
    verify(program)
    issues = run_queues(program)
    last = int(issues["cycle"][issues.of(Opcode.INSTALL_WEIGHTS)].max()) + machine.latency.install_weights
    cycles = last - int(issues["cycle"].min())
    yield Outcome("weights of all planes", "20 ≤ cycles < 40", f"{cycles}", 20 <= cycles < 40)


def systolic(machine: StreamingMachine) -> Iterator[Outcome]:
    """The cycles of another simulator, from schedules."""
    del machine
    wrong, rows = 0, 0
    for sizes, golden in (((128, 128), SQUARE), ((32, 64), OBLONG)):
        array = load_machine("systolic128", {"array.rows": sizes[0], "array.columns": sizes[1]})
        assert isinstance(array, SystolicMachine), "it is one"
        for shape, cycles in golden.items():
            wrong, rows = wrong + (schedule_product(array, *shape).last_cycle != cycles), rows + 1
    yield Outcome("SCALE-Sim v3", f"{rows} rows exact", f"{rows - wrong} exact", not wrong)


def resnet50(machine: StreamingMachine) -> Iterator[Outcome]:
    """ResNet-50, its band, its bits, and how long both take."""
    given = resnet(50)
    begin = time.process_time()
    program = compile_graph(given.function, machine, given.constants)
    compiled = time.process_time() - begin
    verify(program)
    low, high = (compile_graph(given.function, machine.scaled(f), given.constants).cycles for f in (0.5, 2))
    reached = f"{program.cycles:,} [{low:,} … {high:,}], planes at least {program.bounds['MXM']:,}"
    yield Outcome("ResNet-50, batch 1, int8", "≤ 44,118 cycles", reached, program.cycles <= 44_118)
    busy = program.bounds["MXM"] / program.cycles
    yield Outcome("its planes busy", "≥ 64 %", f"{busy:.1%}", busy >= 0.64)
    begin = time.process_time()
    same = _is_exact(program, given)
    simulated = time.process_time() - begin
    yield Outcome("its cycles and bits", "those of the graph", "equal" if same else "other", same)
    times = f"{compiled:.1f} and {simulated:.1f} s of one core"
    yield Outcome("to compile and to simulate it", "< 60 s each", times, max(compiled, simulated) < 60)
    begin = time.process_time()
    timed = simulate(program, None).cycles
    rate = timed / (time.process_time() - begin)
    fast = timed == program.cycles and rate >= 100_000
    yield Outcome("its cycles without data", "≥ 100,000 a second of one core", f"{rate:,.0f}", fast)


def depths(machine: StreamingMachine) -> Iterator[Outcome]:
    """What deeper networks take more."""
    cycles: dict[int, int] = {}
    for depth in (50, 101, 152):
        given = resnet(depth)
        program = compile_graph(given.function, machine, given.constants)
        verify(program)
        cycles[depth] = program.cycles
    for (less, more), target in {(50, 101): 18_819, (101, 152): 21_175}.items():
        grown = cycles[more] - cycles[less]
        wanted = f"≤ {target:,} cycles + 10 %"
        yield Outcome(
            f"ResNet-{more} less -{less}", wanted, f"{grown:,} ({grown / target - 1:+.1%})", grown <= 1.1 * target
        )


def stacks(machine: StreamingMachine) -> Iterator[Outcome]:
    """Products of single vectors, by the least cycles in which their weights are loaded."""
    for widths in ((5120,) * 4, (4096,) * 5, (3200,) * 3, (4096, 11008, 4096)):
        given = vector_stack(widths)
        program = compile_graph(given.function, machine, given.constants)
        verify(program)
        ratio = program.cycles / program.bounds["weights"]
        yield Outcome(
            f"single vector, {' → '.join(map(str, widths))}", "≤ 1.10 of the weights", f"{ratio:.3f}", ratio <= 1.1
        )


def racks(machine: StreamingMachine) -> Iterator[Outcome]:
    """Llama-2-70B on 576 chips."""
    shape = DecoderShape("Llama-2-70B", 8192, 64, 8, 128, 28672, 80, 32000)
    plans = [plan_racks(shape, machine, 576, tensor, 511) for tensor in (1, 8)]
    held = max(each.total for plan in plans for each in plan.memory)
    fits = f"≤ {machine.memory_bytes:,} bytes"
    yield Outcome("Llama-2-70B, the fullest of 576 chips", fits, f"{held:,}", held <= machine.memory_bytes)
    alone, shared = (plan.tokens_per_second for plan in plans)
    yield Outcome("stages one after another", "200 … 267 tokens/s", f"{alone:.1f}", 200 <= alone <= 267)
    yield Outcome("8 chips share a layer", "faster (ideal 1,550)", f"{shared:.1f}", shared > alone)


def bert_base(machine: StreamingMachine) -> Iterator[Outcome]:
    """All layers of BERT-base."""
    given = encoder(12, 128, 768, 12)
    program = compile_graph(given.function, machine, given.constants)
    verify(program)
    yield Outcome("BERT-base, 128 tokens, int8", "≤ 117,000 cycles", f"{program.cycles:,}", program.cycles <= 117_000)


def bert_large(machine: StreamingMachine) -> Iterator[Outcome]:
    """All layers of BERT-large, in stages on four chips."""
    for length in (128, 384):
        given = encoder(24, length, 1024, 16)
        system = distribute_graph(given.function, machine, given.constants, 4)
        verify_system(system)
        spent = system.cycles / machine.clock_hz * 1e6
        reached = f"{spent:,.0f} µs, {system.cycles:,} cycles"
        yield Outcome(f"BERT-large, {length} tokens, int8, 4 chips", "≤ 1,225 µs", reached, spent <= 1225)


def links(machine: StreamingMachine) -> Iterator[Outcome]:
    """A hop, and a sum over eight chips."""
    given = all_reduce(8, 16384, machine.width)
    made = place_model(
        map_placed(given.function, machine, given.constants), machine, 8, to=dict.fromkeys(range(8), range(8))
    )
    system = placed_system(made)
    verify_system(system)
    run = simulate_system(system, given.inputs)
    expected = run_graph(given.function, given.arrays)
    same = run.cycles == system.cycles and all(map(np.array_equal, run.results, expected))
    cycles = made.rounds[-1].end - made.rounds[0].begin
    wait = machine.link_latency
    yield Outcome("one hop", "216 + 24 cycles + slack", f"{wait}", wait >= 240)
    yield Outcome("all-reduce of 16 KiB, 8 chips", "621 … 1,890 cycles", f"{cycles:,}", same and 621 <= cycles <= 1890)
    yield Outcome("all-reduce of 16 KiB, its target", "≤ 763 cycles", f"{cycles:,}", same and cycles <= 763)


def determinism(machine: StreamingMachine) -> Iterator[Outcome]:
    """Random programs on one chip and on several."""
    exact = 0
    for seed in range(PROGRAMS):
        given = random_program(seed)
        expected = run_graph(given.function, given.arrays)
        exact += _is_exact(compile_graph(given.function, machine, given.constants), given)
        system = distribute_graph(given.function, machine, given.constants, *_LAYOUTS[seed % len(_LAYOUTS)])
        verify_system(system)
        run = simulate_system(system, given.inputs)
        exact += run.cycles == system.cycles and all(map(np.array_equal, run.results, expected))
    wanted = f"{2 * PROGRAMS} of {2 * PROGRAMS}"
    yield Outcome("programs exact in cycles and bits, 1 to 16 chips", wanted, f"{exact}", exact == 2 * PROGRAMS)


def encoder(layers: int, rows: int, channels: int, heads: int) -> RandomProgram:
    """Layers of BERT from PyTorch, quantized."""
    import torch

    from weft.testing.spatial.transformers import EncoderLayer, exported_graph

    torch.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    module = torch.nn.Sequential(*(EncoderLayer(channels, heads, 4 * channels) for _ in range(layers)))
    model = quantized_model(*exported_graph(module, (torch.randn(1, rows, channels),)), 0)
    return RandomProgram(model.function, model.constants or {}, [])


def _is_exact(program: Program, given: RandomProgram) -> bool:
    run = simulate(program, given.inputs)
    expected = run_graph(given.function, given.arrays)
    return run.cycles == program.cycles and all(map(np.array_equal, run.results, expected))


ROWS: Mapping[int, Row] = {
    1: identities,
    2: installs,
    3: systolic,
    4: resnet50,
    5: depths,
    6: stacks,
    7: racks,
    8: bert_base,
    9: bert_large,
    10: links,
    11: determinism,
}
