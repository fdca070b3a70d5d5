"""One family in one element type: a small model, compiled and run forward and backward, against eager and float64.

Every run starts from an equal copy and takes the same draws of inputs in the same order, so what a call leaves behind
is compared too. Some models choose by comparing (experts, kinks): there one draw can exceed its bound by chance. So two
draws decide where both are right; otherwise four do, and at least half must be. What is not right is tried with
`aot_eager`, which runs the same graphs as torch does: what that gets wrong too is torch's own.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from weft.frontends.torch.report import record_targets
from weft.testing.bench.benchmark import describe
from weft.testing.bench.compile_clock import compile_clock
from weft.testing.comparison import TensorComparison, compare, error_vs_float64, magnitude, scale_of, widen
from weft.testing.conformance.model_check import Compile, compile_with, moved
from weft.testing.zoo.families import SmallModel, output_tensors

Status = Literal["right", "wrong", "error", "torch", "none"]

FEW, MANY = 2, 4
UNKNOWN_ERROR = 0.02
"""Where eager is as far from float64 as this in f32, both do not compute the same: numbers were drawn, say."""
SPREAD = 4.0
"""How many times as far as eager's results go by a rounding of its weights, results may be from eager's."""
LOOSE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
TIMED_SECONDS = 0.4

Draw = dict[str, dict[str, Tensor | None]]
"""Results of a call by kind: outputs and, of a training step, gradients and buffers."""


@dataclass(slots=True)
class Verdict:
    """What came of one mode, `inference` or `training`; `none` is a model that eager does not run so."""

    status: Status
    reason: str = ""
    graphs: int = 0
    again: int = 0
    """Graphs that were compiled in later calls of the same shapes, beyond those that `aot_eager` compiles too."""
    backend_seconds: float = 0.0
    """Of the processor, inside the backend."""
    left: list[str] = field(default_factory=list[str])
    """What was left to torch."""
    speeds: dict[str, float] = field(default_factory=dict[str, float])
    """How many times eager's speed, by backend."""

    def figures(self) -> dict[str, Any]:
        """The verdict as plain data, without what says nothing."""
        return {name: value for name, value in asdict(self).items() if value or name == "status"}


@dataclass(frozen=True, slots=True)
class Judge:
    """How a model is judged: where, in which element type, and beside which compilers it is timed."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    backend: str = "weft"
    speed: bool = True
    inductor: bool = False

    def verdicts(self, model: SmallModel) -> Iterator[tuple[str, Verdict]]:
        """A verdict for each mode."""
        module = model.build().to(self.device, self.dtype)
        yield "inference", self._verdict(model, module, _inference)
        yield "training", self._verdict(model, module, _training)

    def _verdict(self, model: SmallModel, module: nn.Module, step: Step) -> Verdict:
        with record_targets() as targets, compile_clock() as clock:
            verdict = self._compared(model, module, step, self.backend)
        if verdict.status == "none":
            return verdict
        verdict.graphs, verdict.backend_seconds = clock.graphs, round(clock.processor_seconds, 2)
        verdict.left = sorted(targets.opaque)
        if verdict.status in ("wrong", "error") or verdict.again:
            theirs = self._compared(model, module, step, "aot_eager")
            verdict.again = max(verdict.again - theirs.again, 0)
            if theirs.status in ("wrong", "error") and verdict.status != "right":
                verdict.status, verdict.reason = "torch", f"{verdict.reason}; aot_eager: {theirs.reason}"
        if self.speed and verdict.status == "right":
            verdict.speeds = self._speeds(model, module, step)
        return verdict

    def _compared(self, model: SmallModel, module: nn.Module, step: Step, backend: str) -> Verdict:
        torch.compiler.reset()
        compiled = compile_with(backend, fullgraph=False, **({"cache": False} if backend == "weft" else {}))
        eager = self._draws(model, module, step, _as_it_is)
        wide = self._in_float64(model, module, step)
        shaken, seen = self._shaken(model, module, step), list[Draw]()

        def rounded() -> Draw:
            seen.extend(itertools.islice(shaken, drawn - len(seen)))
            return seen[-1]

        wrong: list[str] = []
        drawn = first = again = 0
        with compile_clock() as clock:
            mine = self._draws(model, module, step, compiled)
            while drawn < FEW or (wrong and drawn < MANY):
                try:
                    theirs = next(eager)
                except Exception as error:  # whatever it is, there is nothing to compare with
                    return Verdict("none", describe(error))
                try:
                    ours = next(mine)
                except Exception as error:
                    return Verdict("error", describe(error))
                drawn += 1
                first, again = (clock.graphs, 0) if drawn == 1 else (first, clock.graphs - first)
                wrong += _differences(ours, theirs, next(wide), rounded, self.dtype)[:1]
        right = len(wrong) * 2 <= drawn
        return Verdict("right" if right else "wrong", "" if right else wrong[0], again=again)

    def _draws(
        self, model: SmallModel, module: nn.Module, step: Step, compiled: Compile, dtype: torch.dtype | None = None
    ) -> Iterator[Draw]:
        """The results of calls, one after the other, of an equal copy of the module."""
        own = copy.deepcopy(module)
        call = compiled(own.train() if step is _training else own.eval())
        for seed in range(MANY):
            inputs = moved(model.inputs(module, seed), self.device, self.dtype)
            if dtype is not None:
                inputs = widen(inputs, dtype)
            torch.manual_seed(seed)
            yield step(own, call, inputs)

    def _shaken(self, model: SmallModel, module: nn.Module, step: Step) -> Iterator[Draw]:
        """What eager says with weights that are a rounding away."""
        own = copy.deepcopy(module)
        generator = torch.Generator(self.device).manual_seed(0)
        with torch.no_grad():
            for each in own.parameters():
                if each.dtype == self.dtype:
                    noise = torch.rand(each.shape, generator=generator, device=each.device, dtype=torch.float32)
                    each.copy_((each.float() * (1 + torch.finfo(each.dtype).eps * (2 * noise - 1))).to(each.dtype))
        yield from self._draws(model, own, step, _as_it_is)

    def _in_float64(self, model: SmallModel, module: nn.Module, step: Step) -> Iterator[Draw | None]:
        """The draws in float64, or 16-bit floats' in f32; None where the model cannot be run so."""
        drawn = 0
        for dtype in (torch.float64, *([torch.float32] if self.dtype.itemsize == 2 else [])):
            wide: Any = copy.deepcopy(module).to(dtype)
            try:
                if hasattr(wide, "set_experts_implementation"):
                    wide.set_experts_implementation("eager")  # torch's grouped product takes no float64
                for draw in itertools.islice(self._draws(model, wide, step, _as_it_is, dtype), drawn, None):
                    drawn += 1
                    yield draw
                return
            except Exception:  # a cast to float32 in the model, an op without float64
                continue
        yield from itertools.repeat(None)

    def _speeds(self, model: SmallModel, module: nn.Module, step: Step) -> dict[str, float]:
        found: dict[str, float] = {}
        eager = self._seconds(model, module, step, _as_it_is)
        for backend in (self.backend, *(["inductor"] if self.inductor else [])):
            torch.compiler.reset()
            try:
                taken = self._seconds(model, module, step, compile_with(backend, fullgraph=False))
            except Exception:  # the other compiler's
                continue
            found[backend] = round(eager / taken, 2)
        return found

    def _seconds(self, model: SmallModel, module: nn.Module, step: Step, compiled: Compile) -> float:
        own = copy.deepcopy(module)
        call = compiled(own.train() if step is _training else own.eval())
        inputs = moved(model.inputs(module, 0), self.device, self.dtype)
        times: list[float] = []
        step(own, call, inputs)
        until = time.perf_counter() + TIMED_SECONDS
        while len(times) < 3 or (time.perf_counter() < until and len(times) < 50):
            start = time.perf_counter()
            step(own, call, inputs)
            if self.device != "cpu":
                torch.cuda.synchronize(self.device)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


Step = Callable[[nn.Module, Callable[..., Any], dict[str, Tensor]], Draw]


def _inference(module: nn.Module, call: Callable[..., Any], inputs: dict[str, Tensor]) -> Draw:
    with torch.no_grad():
        return {"outputs": {name: each.detach().clone() for name, each in output_tensors(call(**inputs)).items()}}


def _training(module: nn.Module, call: Callable[..., Any], inputs: dict[str, Tensor]) -> Draw:
    module.zero_grad()
    outputs = output_tensors(call(**inputs))
    losses = [_distance_from_wave(each) for each in outputs.values() if each.requires_grad]
    if not losses:
        raise ValueError("no output has a gradient")
    torch.stack([each.to(losses[0].dtype) for each in losses]).sum().backward()
    buffers = {name: each.detach().clone() for name, each in module.named_buffers() if each.is_floating_point()}
    return {
        "outputs": {name: each.detach().clone() for name, each in outputs.items()},
        "gradients": {
            name: None if each.grad is None else each.grad.detach().clone() for name, each in module.named_parameters()
        },
        "buffers": {**buffers},
    }


def _distance_from_wave(state: Tensor) -> Tensor:
    """A loss that is smooth, and that no norm keeps constant; places that are masked by an infinity do not count."""
    wave = torch.arange(state.numel(), dtype=torch.float32, device=state.device).cos().to(state.dtype).view(state.shape)
    finite = state.detach().isfinite() & (state.detach().abs() < 1e4)
    return ((state - wave).masked_fill(~finite, 0.0)).square().mean()


def _as_it_is(module: nn.Module) -> Callable[..., Any]:
    return module


def _differences(
    mine: Draw, eager: Draw, wide: Draw | None, rounded: Callable[[], Draw], dtype: torch.dtype
) -> list[str]:
    """What is wrong with a draw, in words; empty where nothing is. `rounded` makes eager's with rounded weights."""
    found: list[str] = []
    for kind, results in mine.items():
        oracle = wide[kind] if wide is not None else None
        if oracle is not None and (oracle.keys() != eager[kind].keys() or _is_other(eager[kind], oracle)):
            oracle = None
        if oracle is None:
            if _far_from(results, eager[kind], {}, LOOSE[dtype]):
                found += [f"{kind} {text}" for text in _far_from(results, eager[kind], rounded()[kind], LOOSE[dtype])]
            continue
        judged = compare(results, eager[kind], oracle, together=kind != "outputs")
        found += [f"{kind} {_said(leaf)}" for leaf in judged.wrong]
    return found


def _said(leaf: TensorComparison) -> str:
    return f"{leaf.path} {leaf.dtype}{list(leaf.shape)}: {leaf.reason}"


def _is_other(eager: dict[str, Tensor | None], oracle: dict[str, Tensor | None]) -> bool:
    """Whether eager itself is so far from float64, or finite where that is not, that both compute something else."""
    largest = max((magnitude(each) for each in oracle.values() if each is not None), default=0.0)

    def error(found: Tensor, wide: Tensor) -> float:
        return error_vs_float64(found, wide, scale_of(wide, largest))

    return any(
        (a is None) != (b is None)
        or (a is not None and b is not None and a.shape == b.shape and bool((a.isfinite() & ~b.isfinite()).any()))
        or (a is not None and b is not None and a.shape != b.shape)
        or (a is not None and b is not None and a.dtype == torch.float32 and error(a, b) > UNKNOWN_ERROR)
        for a, b in ((eager[name], oracle[name]) for name in eager)
    )


def _far_from(
    mine: dict[str, Tensor | None], eager: dict[str, Tensor | None], rounded: dict[str, Tensor | None], loose: float
) -> list[str]:
    """Where results are farther from eager's than a share of the largest value, and than rounding takes those."""
    if mine.keys() != eager.keys():
        return [f"names {sorted(mine.keys() ^ eager.keys())[:3]} are not in both"]
    found: list[str] = []
    largest = max(
        (each.abs().max().item() for each in eager.values() if each is not None and each.numel()), default=0.0
    )
    for name, theirs in eager.items():
        ours = mine[name]
        if ours is None or theirs is None:
            if (ours is None) != (theirs is None):
                found.append(f"{name}: there is one only in {'eager' if ours is None else 'ours'}")
            continue
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            found.append(f"{name}: {ours.dtype}{list(ours.shape)}, eager's is {theirs.dtype}{list(theirs.shape)}")
            continue
        if not torch.equal(ours.isnan(), theirs.isnan()):
            found.append(f"{name}: NaN at {int(ours.isnan().sum())} places, eager's at {int(theirs.isnan().sum())}")
            continue
        other = rounded.get(name)
        allowed = max(loose, 0.0 if other is None else SPREAD * error_vs_float64(other, theirs.double()))
        error = error_vs_float64(ours, theirs.double())
        if error > allowed and (ours - theirs).abs().max() > 1e-6 * largest:
            found.append(f"{name}: {error:.1e} from eager's, allowed {allowed:.0e}")
    return found
