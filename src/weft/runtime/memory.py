"""Where temporaries lie, and for how long what a program works on is there: liveness over the steps, first fit by size.

A program has either one arena for all its temporaries, or, where that saves much, phases: what a segment of its steps
needs is made before it, and what nobody reads any more is given back after it, inputs too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.ir.expr import evaluate, product
from weft.ir.types import f32
from weft.lower.steps import CallStep, DotStep, Plan, Step, buffers_of, inner_steps

ALIGNMENT = 64


@dataclass(frozen=True)
class Arena:
    """Offsets of the temporaries in one block of memory."""

    size: int
    offsets: Mapping[int, int]


@dataclass(frozen=True)
class Phase:
    """What a segment needs beside what is there, and what nobody needs after it."""

    makes: tuple[int, ...]
    """Outputs, and temporaries that live on or are large, which it is the first to touch."""
    arena: Arena
    """Its own temporaries, but for large ones that share no memory."""
    drops: tuple[int, ...]
    """Inputs, results of calls and temporaries that it is the last to touch."""


@dataclass(frozen=True)
class Peak:
    """Bytes that a program works on at most at once: in phases, and with all of it there from first to last."""

    phased: int
    whole: int

    @property
    def is_worth_phases(self) -> bool:
        """Whether phases save enough for what they cost the host: memory is asked for again and again."""
        return self.whole - self.phased > max(_WORTH, self.whole * _WORTH_SHARE)


_WORTH, _WORTH_SHARE = 32 << 20, 0.02
_NEAR_THE_LEAST = 1.01
"""How much more than the least that is possible segments may take, so that each launches many kernels."""
_REUSED, _FITS = 32 << 20, 1.05
"""The bytes of a buffer from which on its memory is worth a cut, and how much larger than another it may be to fit."""
_TOGETHER_WITHIN_A_BUDGET = (8, 4, 2, 1)
"""Kernels that one tape launches where there is a budget of memory: as many of these as it allows."""


def lifetimes(plan: Plan, steps: Iterable[Step] | None = None) -> dict[int, tuple[int, int]]:
    """The first and last step that touches each temporary."""
    lives: dict[int, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps if steps is None else steps):
        for buffer in buffers_of(step):
            if plan.buffers[buffer].role == "temporary":
                first, _ = lives.get(buffer, (number, number))
                lives[buffer] = (first, number)
    return lives


def bytes_of(plan: Plan, buffer: int, sizes: Mapping[str, int]) -> int:
    """What a buffer takes."""
    tensor = plan.buffers[buffer].tensor
    return evaluate(product(tensor.shape), sizes) * tensor.dtype.bytes


def cut_finely(parts: Sequence[tuple[Step, ...]], most: int) -> list[tuple[Step, ...]]:
    """Runs of steps cut into shorter ones, between which memory can be given back."""
    return [part[k : k + most] for part in parts for k in range(0, len(part), most)]


def cut_by_peak(plan: Plan, sizes: Mapping[str, int], parts: Sequence[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
    """Runs of steps cut where memory has to be given back for a peak near the least that is possible.

    They are short where much memory is in use, and elsewhere as long as they were.
    """
    single = cut_finely(parts, 1)
    phases = plan_phases(plan, sizes, single)
    if not phases:
        return list(parts)
    limit = int(peak_of(plan, sizes, single, phases).phased * _NEAR_THE_LEAST)
    amounts = [bytes_of(plan, number, sizes) for number in range(len(plan.buffers))]
    before = _live_before(plan, amounts, single, phases)
    cut: list[tuple[Step, ...]] = []
    done = 0
    for part in parts:
        begin, done = done, done + len(part)
        taken = 0
        for number in range(begin, done):
            needs = sum(amounts[b] for b in phases[number].makes) + phases[number].arena.size
            if number > begin and before[begin] + taken + needs > limit:
                cut.append(tuple(step for (step,) in single[begin:number]))
                begin, taken = number, 0
            taken += needs
        cut.append(tuple(step for (step,) in single[begin:done]))
    return cut


def cut_for_reuse(plan: Plan, sizes: Mapping[str, int], parts: Sequence[tuple[Step, ...]]) -> list[tuple[Step, ...]]:
    """Runs of steps cut where a large buffer is made that fits where one lay which nobody reads any more.

    The program's peak may be elsewhere. But allocators give no memory back between steps, and a gradient for which a
    block of its size is at hand does not make them ask the device for another.
    """
    phases = plan_phases(plan, sizes, cut_finely(parts, 1))
    if not phases:
        return list(parts)
    amounts = [bytes_of(plan, number, sizes) for number in range(len(plan.buffers))]
    cut: list[tuple[Step, ...]] = []
    done = 0
    for part in parts:
        begin, first = done, done
        done += len(part)
        inside = _inside(plan, phases[first:done])
        free: list[int] = []
        for number in range(first, done):
            made = [amounts[b] for b in phases[number].makes if b not in inside and amounts[b] >= _REUSED]
            if any(size <= block <= size * _FITS for size in made for block in free):
                cut.append(part[begin - first : number - first])
                begin, free = number, []
            free += [amounts[b] for b in phases[number].drops if b not in inside and amounts[b] >= _REUSED]
        cut.append(part[begin - first :])
    return cut


def _inside(plan: Plan, phases: Sequence[Phase]) -> set[int]:
    """The temporaries that only steps of these phases touch: they lie in an arena."""
    made = {b for phase in phases for b in phase.makes if plan.buffers[b].role == "temporary"}
    return made.intersection(b for phase in phases for b in phase.drops)


def _live_before(
    plan: Plan, amounts: Sequence[int], single: Sequence[tuple[Step, ...]], phases: Sequence[Phase]
) -> list[int]:
    """The bytes in use before each step, if what nobody reads any more is given back after every one."""
    called = {number for number, buffer in enumerate(plan.buffers) if buffer.role == "external"}
    live, before = sum(amounts[b] for b in plan.inputs), list[int]()
    for (step,), phase in zip(single, phases, strict=True):
        before.append(live)
        new = called.intersection(buffers_of(step))
        called -= new
        live += sum(amounts[b] for b in (*phase.makes, *new)) - sum(amounts[b] for b in phase.drops)
    return before


def plan_phases(plan: Plan, sizes: Mapping[str, int], parts: Sequence[Sequence[Step]]) -> tuple[Phase, ...]:
    """The phases of a program whose segments run these steps; none where steps stand inside of others."""
    if any(inner_steps(step) for step in plan.steps):
        return ()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for number, steps in enumerate(parts):
        for buffer in (buffer for step in steps for buffer in buffers_of(step)):
            first.setdefault(buffer, number)
            last[buffer] = number
    returned, roles = set(plan.outputs), [buffer.role for buffer in plan.buffers]
    outputs = dict.fromkeys(b for b in plan.outputs if roles[b] == "output")
    first.update((buffer, 0) for buffer in outputs if buffer not in first)  # without elements: no step writes to it
    made_by, ended_by = _by_part(first), _by_part(last)
    phases: list[Phase] = []
    for number, steps in enumerate(parts):
        inside = {b: life for b, life in lifetimes(plan, steps).items() if first[b] == last[b]}
        arena = _without_large(inside, {b: bytes_of(plan, b, sizes) for b in inside})
        made, ended = ([b for b in each.get(number, ()) if b not in arena.offsets] for each in (made_by, ended_by))
        phases.append(
            Phase(
                tuple(b for b in made if roles[b] in ("output", "temporary")),
                arena,
                tuple(b for b in ended if roles[b] in ("input", "external", "temporary") and b not in returned),
            )
        )
    return tuple(phases)


def _without_large(lives: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]) -> Arena:
    """The arena of a segment's own temporaries, without large ones that would share no memory in it.

    An allocator has a block for each of them at hand sooner than one for all of them. But many small ones can lie where
    a large one was, too.
    """
    large = [b for b in lives if sizes[b] >= _REUSED]
    whole = lay_out(lives, sizes)
    if not large:
        return whole
    small = lay_out({b: life for b, life in lives.items() if b not in large}, sizes)
    return small if small.size + sum(sizes[b] for b in large) <= whole.size * _FITS else whole


def _by_part(places: Mapping[int, int]) -> dict[int, list[int]]:
    """The buffers of each part, of the part of each buffer."""
    found: dict[int, list[int]] = {}
    for buffer, number in places.items():
        found.setdefault(number, []).append(buffer)
    return found


def choose_phases(
    plan: Plan, sizes: Mapping[str, int], parts: list[tuple[Step, ...]]
) -> tuple[list[tuple[Step, ...]], tuple[Phase, ...]]:
    """The steps of each segment, cut finely where that saves memory, and their phases, where those do."""
    whole, parts = parts, cut_for_reuse(plan, sizes, parts)
    phases = plan_phases(plan, sizes, parts)
    peak = peak_of(plan, sizes, parts, phases)
    fine = cut_by_peak(plan, sizes, parts)
    finer = plan_phases(plan, sizes, fine)
    if Peak(peak_of(plan, sizes, fine, finer).phased, peak.phased).is_worth_phases:
        return fine, finer
    return (parts, phases) if peak.is_worth_phases and len(parts) > 1 else (whole, ())


def least_phases(
    plan: Plan, sizes: Mapping[str, int], parts: list[tuple[Step, ...]]
) -> tuple[list[tuple[Step, ...]], tuple[Phase, ...]]:
    """The steps of each segment and their phases, or none, whichever take the least memory: shorter segments only where
    they save some of it."""
    best: tuple[list[tuple[Step, ...]], tuple[Phase, ...]] = (parts, ())
    least = peak_of(plan, sizes, *best).whole
    for cut in (parts, *(cut_finely(parts, most) for most in _TOGETHER_WITHIN_A_BUDGET)):
        phases = plan_phases(plan, sizes, cut)
        peak = peak_of(plan, sizes, cut, phases).phased
        if peak < least * (1 - _WORTH_SHARE):
            best, least = (cut, phases), peak
    return best


def peak_of(
    plan: Plan,
    sizes: Mapping[str, int],
    parts: Sequence[Sequence[Step]],
    phases: Sequence[Phase],
    kept: Iterable[int] = (),
    together: Sequence[tuple[Collection[int], int]] = (),
) -> Peak:
    """What a program works on at most at once; the inputs `kept` are its caller's and stay.

    Inputs that lie `together` are one block of memory of so many bytes.
    """
    roles = [buffer.role for buffer in plan.buffers]
    awaited = _awaited(plan)  # what is waited for, and given in the same memory
    stays, known = set(kept) | awaited.keys(), set(awaited.values())
    there = [n for n, role in enumerate(roles) if role in ("input", "output", "external") and n not in known]
    whole = sum(bytes_of(plan, b, sizes) for b in there) + plan_arena(plan, sizes).size + sums_of(plan.steps, sizes)
    blocks = [(set(block), size) for block, size in together]
    shared = sum(bytes_of(plan, b, sizes) for block, _ in blocks for b in block) - sum(size for _, size in blocks)
    if not phases:
        return Peak(whole - shared, whole - shared)
    block_of = {number: each for each in blocks for number in each[0]}
    peak = live = sum(bytes_of(plan, b, sizes) for b in plan.inputs) - shared
    for steps, phase in zip(parts, phases, strict=True):
        called = {b for step in steps for b in buffers_of(step) if roles[b] == "external"} - known
        live += sum(bytes_of(plan, b, sizes) for b in phase.makes)
        live += sum(bytes_of(plan, b, sizes) for b in called)
        known |= called
        peak = max(peak, live + phase.arena.size + sums_of(steps, sizes))
        for number in (number for number in phase.drops if number not in stays):
            block, size = block_of.get(number, ({number}, bytes_of(plan, number, sizes)))
            block.discard(number)
            live -= 0 if block else size
    return Peak(peak, whole - shared)


def _awaited(plan: Plan) -> dict[int, int]:
    """The buffers that calls wait for, and as which they give them."""
    waits = [step for step in plan.steps if isinstance(step, CallStep) and step.claimed == "wait"]
    return {step.operands[0].buffer: step.results[0] for step in waits if len(step.results) == 1}


def sums_of(steps: Iterable[Step], sizes: Mapping[str, int]) -> int:
    """What the library takes for itself during one of these steps: it sums up products of 16-bit floats in f32.

    Of a batch it has one matrix at a time, or a few.
    """
    results = [step.out.tensor for step in steps if isinstance(step, DotStep)]
    narrow = [tensor for tensor in results if tensor.dtype.is_float and tensor.dtype.bytes < f32.bytes]
    return max((evaluate(product(tensor.shape[-2:]), sizes) * f32.bytes for tensor in narrow), default=0)


def plan_arena(plan: Plan, sizes: Mapping[str, int]) -> Arena:
    """Lay out the temporaries for known sizes; two share memory only if no step lies in both lifetimes."""
    lives = lifetimes(plan)
    return lay_out(lives, {buffer: bytes_of(plan, buffer, sizes) for buffer in lives})


def lay_out(lives: Mapping[int, tuple[int, int]], sizes: Mapping[int, int]) -> Arena:
    """Places for buffers of these sizes in bytes, the largest first, each the first that is free for its life."""
    placed: list[tuple[int, int, int]] = []
    offsets: dict[int, int] = {}
    total = 0
    for buffer in sorted(lives, key=lambda n: (-sizes[n], n)):
        first, last = lives[buffer]
        need = -(-max(sizes[buffer], 1) // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, other in sorted(placed):
            other_first, other_last = lives[other]
            if other_last < first or last < other_first:
                continue
            if offset + need <= start:
                break
            offset = max(offset, end)
        offsets[buffer] = offset
        placed.append((offset, offset + need, buffer))
        total = max(total, offset + need)
    return Arena(total, offsets)
