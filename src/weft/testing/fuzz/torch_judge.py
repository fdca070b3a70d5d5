"""Judges a random PyTorch program: compiled against eager, with float64 as the oracle and eager's error as the bound.

Each run makes its inputs anew from the seed. Compared are results, inputs as the call left them, gradients, and which
of them share memory. Where something differs, the identity backend says whether torch's own layers are at fault, and
runs with other rounding errors (`noise`) whether the numbers mean anything.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from weft.testing.comparison import Comparison, TensorComparison, compare, compare_close, error_vs_float64
from weft.testing.conformance.identity import identity_backend
from weft.testing.fuzz.noise import RoundingNoise
from weft.testing.fuzz.repeated_draws import RecordedDraws, RepeatedDraws
from weft.testing.fuzz.torch_case import Draw, Mode, TorchCase, functions
from weft.testing.fuzz.verdict import Verdict

SEED = 20
NOISY_RUNS = 6
NOISE_FACTOR = 4.0
# The parts of a result that hold numbers.
VALUES = ("outputs", "inputs", "gradients")

Backend = str | Callable[..., Any] | None
Result = dict[str, Any]


class Runs(Protocol):
    """A program that can be run in several ways; each gives results up to the first call that raises, and the error."""

    @property
    def narrow(self) -> torch.dtype:
        """The narrowest floats that it computes with, as far as no result shows them."""
        return torch.float64

    def run(
        self, backend: Backend = None, *, wide: bool = False, only: int | None = None, noise: int = 0
    ) -> tuple[list[Result], Exception | None]:
        """Eager if there is no backend; `wide` is the oracle, `only` one of the calls, `noise` the seed of one."""
        ...


class CaseRuns(Runs, Protocol):
    """A case that is run anew each time; the oracle of one that draws has the numbers that eager draws."""

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        ...

    def _run(
        self, backend: Backend, wide: bool, only: int | None, mode: contextlib.AbstractContextManager[Any]
    ) -> tuple[list[Result], Exception | None]: ...

    def run(
        self, backend: Backend = None, *, wide: bool = False, only: int | None = None, noise: int = 0
    ) -> tuple[list[Result], Exception | None]:
        if noise:
            return self._run(backend, wide, only, RoundingNoise(noise))
        if not wide or not self.draws:
            return self._run(backend, wide, only, contextlib.nullcontext())
        recorded = RecordedDraws()
        self._run(backend, False, only, recorded)
        return self._run(backend, wide, only, RepeatedDraws(recorded))


@dataclass
class _Log(logging.Handler):
    """Collects what the compiler could not do."""

    lines: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "runs uncompiled" in text or "cannot be made" in text:
            self.lines.append(text.partition("\n")[0])

    __hash__ = logging.Handler.__hash__


@contextlib.contextmanager
def failures_inside() -> Generator[list[str]]:
    """What the compiler leaves to torch because something went wrong, in words."""
    handler, log = _Log(), logging.getLogger("weft")
    shown, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        log.removeHandler(handler)
        log.propagate = shown


def judge(case: TorchCase, backend: Backend = "weft") -> Verdict:
    """The verdict on a program."""
    start = time.perf_counter()
    return replace(judge_runs(TorchRuns(case), backend), seconds=time.perf_counter() - start)


def judge_runs(runs: Runs, backend: Backend) -> Verdict:
    """The verdict on a program, however it is run."""
    eager, refusal = runs.run()
    with failures_inside() as inside:
        mine, error = runs.run(backend)
    if refusal is not None and error is None and len(mine) > len(eager):
        return Verdict("accepts", f"eager raises {_first_line(refusal)}")
    verdict = Verdict("refused" if refusal is not None else "right")
    if error is not None and len(mine) < len(eager):
        verdict = Verdict("raises", f"call {len(mine)}: {_first_line(error)}")
    for number, (found, expected) in enumerate(zip(mine, eager, strict=False)):
        said = difference(runs, number, found, expected)
        if said:
            verdict = Verdict("wrong", f"call {number}: {said}")
            break
    if verdict.failed:
        return _excused(runs, eager, mine, verdict)
    return Verdict("uncompiled", inside[0]) if inside else verdict


def _excused(runs: Runs, eager: Sequence[Result], mine: Sequence[Result], verdict: Verdict) -> Verdict:
    """The verdict, or why it cannot be held against Weft."""
    identity, error = runs.run(identity_backend())
    same = all(not difference(runs, n, a, b) for n, (a, b) in enumerate(zip(identity, eager, strict=False)))
    if not same or (error is not None and len(identity) < len(eager)):
        return Verdict("torch", verdict.reason)
    if verdict.status == "wrong" and all(
        _is_noise(runs, number, found, expected)
        for number, (found, expected) in enumerate(zip(mine, eager, strict=False))
    ):
        return Verdict("undecided", verdict.reason)
    return verdict


def difference(runs: Runs, number: int, found: Result, expected: Result) -> str:
    """What is wrong with the result of a call, in a line; nothing where all is within its bound."""
    if found["shared"] != expected["shared"]:
        return f"memory is shared by {sorted(found['shared'])}, in eager by {sorted(expected['shared'])}"
    comparison = _compared(runs, number, found, expected)
    return "" if comparison.ok else str(comparison).replace("\n", ";")


def _compared(runs: Runs, number: int, found: Result, expected: Result) -> Comparison:
    mine, theirs = ({part: result[part] for part in VALUES} for result in (found, expected))
    close = compare_close(mine, theirs)
    if close.ok:
        return close
    oracle, _ = runs.run(wide=True, only=number)
    if not oracle:
        return close
    wider = {part: oracle[0][part] for part in VALUES}
    try:
        wide = compare(mine, pytree.tree_map(_finite_as_the_oracle, theirs, mine, wider), wider)
    except (ValueError, RuntimeError):
        return close
    floats = [leaf.dtype for leaf in _leaves(expected) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    coarsest = max(torch.finfo(dtype).eps for dtype in (*floats, runs.narrow))
    return Comparison(tuple(b if _acquits(b, coarsest) else a for a, b in zip(close.leaves, wide.leaves, strict=True)))


def _finite_as_the_oracle(theirs: Any, mine: Any, oracle: Any) -> Any:
    """Eager's result, and the oracle's where its bits left eager no number: in 16 of them tanh of 4 rounds to 1, where
    acos is steep, in 32 GELU of -5.7 to 0, by which none can be divided.

    Kernels round what they store, not each step, and may keep a number there; it has to be the oracle's.
    """
    if not isinstance(theirs, Tensor) or theirs.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return theirs
    if not all(isinstance(each, Tensor) and each.shape == theirs.shape for each in (mine, oracle)):
        return theirs
    lost = ~torch.isfinite(theirs) & torch.isfinite(mine) & torch.isfinite(oracle)
    return torch.where(lost, oracle.to(theirs.dtype), theirs)


def _acquits(leaf: TensorComparison, coarsest: float) -> bool:
    """Whether the oracle may acquit: where eager is far from it, twice eager's error would let anything pass.

    What is far is told by the coarsest floats of the program: a float64 that is made of float16 is off as that is.
    """
    dtype = getattr(torch, leaf.dtype, None)
    if not leaf.ok or dtype is None or not (dtype.is_floating_point or dtype.is_complex):
        return leaf.ok
    far = math.sqrt(max(coarsest, torch.finfo(dtype).eps))
    return leaf.eager_error <= far or leaf.error <= 2 * torch.finfo(dtype).eps


def _is_noise(runs: Runs, number: int, found: Result, expected: Result) -> bool:
    """Whether other rounding errors change the result of a call as much as it is off."""
    if found["shared"] != expected["shared"]:
        return False
    noisy = [runs.run(only=number, noise=seed)[0] for seed in range(1, NOISY_RUNS + 1)]
    others = [_leaves(each[0]) for each in noisy if each]
    wrong = {position for position, leaf in enumerate(_compared(runs, number, found, expected).leaves) if not leaf.ok}
    for position, (mine, theirs) in enumerate(zip(_leaves(found), _leaves(expected), strict=True)):
        moved = [other[position] for other in others]
        if position in wrong and not _moves_as_much(mine, theirs, moved):
            return False
    return True


def _moves_as_much(mine: Any, theirs: Any, moved: Sequence[Any]) -> bool:
    if not all(isinstance(each, Tensor) for each in (mine, theirs, *moved)):
        return False
    same = [each for each in moved if (each.shape, each.dtype) == (theirs.shape, theirs.dtype)]
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype) or not same:
        return len(same) < len(moved)  # a shape that hangs on a rounding error
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return any(not torch.equal(each, theirs) for each in same)
    patterns = [torch.isfinite(each) for each in (mine, theirs)]
    if not torch.equal(*patterns):
        return any(not torch.equal(torch.isfinite(each), patterns[1]) for each in same)
    spread = max(error_vs_float64(each, theirs) for each in same)
    return error_vs_float64(mine, theirs) <= NOISE_FACTOR * spread


def _leaves(result: Result) -> list[Any]:
    return [leaf for part in VALUES for leaf in result[part]]


@dataclass(frozen=True)
class TorchRuns(CaseRuns):
    """A case, whose inputs are made anew for each run."""

    case: TorchCase

    @property
    def draws(self) -> bool:
        return self.case.draws

    def _run(
        self, backend: Backend, wide: bool, only: int | None, mode: contextlib.AbstractContextManager[Any]
    ) -> tuple[list[Result], Exception | None]:
        case, results = self.case, list[Result]()
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if wide else before)
        try:
            inputs, program = functions(case, wide=wide)
            call = program if backend is None else compiled(program, backend, case.mode, case.dynamic)
            weighted = case.mode == "freeze"
            for number, sizes in enumerate(case.calls):
                if only is not None and number != only:
                    continue
                seed = case.seed + (0 if case.mode == "freeze" else number)
                draw = Draw(seed, wide, sizes.get("layout", 0), case.device, train=case.mode == "train")
                given = inputs(draw, **{name: size for name, size in sizes.items() if name != "layout"})
                if weighted and backend is not None:
                    call, weighted = compiled(_with_weight(program, given), backend, case.mode, case.dynamic), False
                torch.manual_seed(SEED)
                with grad_mode(case.mode), mode:
                    results.append(result_of(call, given, draw.leaves, case.mode))
        except Exception as error:  # whatever it is, it is the answer
            return results, error
        finally:
            torch.set_default_dtype(before)
        return results, None


def compiled(
    program: Callable[..., Any], backend: str | Callable[..., Any], mode: Mode, dynamic: bool | None
) -> Callable[..., Any]:
    """A program through a backend, from nothing."""
    torch.compiler.reset()
    options: Any = {"cache": False, "freeze": mode == "freeze"} if backend == "weft" else None
    return torch.compile(program, backend=backend, dynamic=dynamic, options=options)


class _Frozen(nn.Module):
    """A program one of whose arguments is a parameter."""

    def __init__(self, program: Callable[..., Any], place: int, weight: Tensor) -> None:
        super().__init__()
        self.program, self.place = program, place
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, *given: Tensor) -> Any:
        return self.program(*given[: self.place], self.weight, *given[self.place + 1 :])


def _with_weight(program: Callable[..., Any], given: Sequence[Tensor]) -> Callable[..., Any]:
    """The program with the last argument that can be one as a frozen weight."""
    memory = [tensor.untyped_storage().data_ptr() for tensor in given]
    places = [
        place
        for place, tensor in enumerate(given)
        if tensor.is_floating_point() and memory.count(memory[place]) == 1 and tensor.numel()
    ]
    return _Frozen(program, places[-1], given[places[-1]]) if places else program


@contextlib.contextmanager
def grad_mode(mode: Mode) -> Generator[None]:
    if mode == "inference_mode":
        with torch.inference_mode():
            yield
    else:
        with torch.set_grad_enabled(mode in ("grad", "train")):
            yield


def result_of(call: Callable[..., Any], given: Sequence[Tensor], leaves: Sequence[Tensor], mode: Mode) -> Result:
    """What a call gives and leaves behind: results, inputs, gradients, and which of them share memory."""
    outputs = list(call(*given))
    gradients: list[Any] = []
    wanted = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
    if mode == "train" and wanted and leaves:
        generator = torch.Generator().manual_seed(SEED)
        cotangents = [cotangent(each, generator) for each in wanted]
        gradients = list(torch.autograd.grad(wanted, list(leaves), cotangents, allow_unused=True))
    shared = sharing([*outputs, *given])
    return {
        "outputs": [kept(each) for each in outputs],
        "inputs": [kept(each) for each in given],
        "gradients": [kept(each) for each in gradients],
        "shared": shared,
    }


def cotangent(like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers that every float type holds exactly."""
    shape = (*like.shape, 2) if like.is_complex() else like.shape
    drawn = torch.randn(shape, generator=generator, dtype=torch.float32).bfloat16().double()
    return (torch.view_as_complex(drawn) if like.is_complex() else drawn).to(like.device, like.dtype)


def kept(value: Any) -> Any:
    """A result as it is now: later calls may change what it is a view of."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def sharing(tensors: Sequence[Any]) -> frozenset[tuple[int, int]]:
    """The pairs of places whose tensors share memory; one without elements has none, whatever it is a view of."""
    memory = [
        each.untyped_storage().data_ptr() if isinstance(each, Tensor) and each.layout == torch.strided else 0
        for each in tensors
    ]
    return frozenset(
        (a, b)
        for b in range(len(memory))
        for a in range(b)
        if memory[a] == memory[b] and memory[a] and tensors[a].numel() and tensors[b].numel()
    )


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "inner_exception", None) or error  # Dynamo wraps what a backend raises
    text = str(cause).strip()
    return f"{type(cause).__name__}: {text.splitlines()[0] if text else ''}"[:300]


def reproduce(
    inputs: Callable[..., Any],
    program: Callable[..., Any],
    calls: Sequence[dict[str, int]],
    mode: Mode,
    *,
    dynamic: bool | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> NoReturn:
    """Judge the program of a script, say what happens, and exit with 1 if it fails."""
    verdict = judge(case_of(inputs, program, calls, mode, dynamic=dynamic, seed=seed, device=device))
    print(f"{verdict.status}: {verdict.reason}" if verdict.reason else verdict.status)
    raise SystemExit(verdict.failed)


def case_of(
    inputs: Callable[..., Any],
    program: Callable[..., Any],
    calls: Sequence[dict[str, int]],
    mode: Mode,
    **settings: Any,
) -> TorchCase:
    """The case that a script's functions state."""

    def lines(function: Callable[..., Any]) -> list[str]:
        return [line.strip() for line in inspect.getsource(function).splitlines()[1:] if line.strip()]

    *body, last = lines(program)
    outputs = tuple(name for name in last.removeprefix("return").strip("( )").replace(" ", "").split(",") if name)
    return TorchCase(tuple(lines(inputs)[:-1]), tuple(body), outputs, tuple(calls), mode, **settings)
