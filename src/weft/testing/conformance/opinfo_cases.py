"""OpInfo cases judged in this process: a sample of an operator through eager, an identity backend, and one under test.

PyTorch's `op_db` holds the samples; `opinfo_worker` calls this in a child process, `conformance` gathers the verdicts.
A case that fails counts only where the identity backend gives eager's result: elsewhere the layers above are at odds
with eager already.
"""

# torch's testing package has no types, and some of torch's own arguments have none.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from weft.testing.comparison import Comparison, TensorComparison, compare, compare_close, widen
from weft.testing.conformance.identity import (
    WHOLE_GRAPH,
    TargetRecord,
    TargetRecorder,
    Targets,
    identity_backend,
    is_core,
    record_identity_targets,
    resolve,
)
from weft.testing.conformance.opinfo_units import WITHOUT_VALUES, Backend, CaseResult, CaseSettings, Unit, operators
from weft.testing.conformance.ties import SORTING, eager_in_the_order_of
from weft.testing.conformance.transform_cases import is_supported, run_oracle, run_transformed

SEED = 20
IDENTITY = "identity"

_PASSED = CaseResult("", "", 0, "passed")
_NO_OPERATOR = "Dynamo hands no operator to a backend"
_TRIVIAL_SAMPLES = 12


def judge_unit(unit: Unit, settings: CaseSettings, first: int = 0) -> Iterator[CaseResult]:
    """Judge the samples of one operator from `first` on, one at a time."""
    op, dtype = operators()[unit.index], getattr(torch, unit.dtype)
    place = settings.device
    differentiable = settings.gradients and op.supports_autograd and dtype in op.supported_backward_dtypes(place)
    if settings.transform and not is_supported(op, dtype, settings.transform, place):
        return
    # Of transformations, the first samples count that hand a backend anything at all.
    count = settings.samples + (_TRIVIAL_SAMPLES if settings.transform else 0)
    try:
        samples = list(itertools.islice(op.sample_inputs(place, dtype, requires_grad=differentiable), count))
    except Exception as error:
        yield CaseResult(unit.op, unit.dtype, 0, "skipped", f"no samples: {first_line(error)}")
        return
    judged = first
    for number, sample in enumerate(samples[first:], first):
        start = time.perf_counter()
        judge = _judge_transformed if settings.transform else _judge_case
        result = judge(Case(op, sample, (False, True) if differentiable else (False,)), settings)
        if result.reason == _NO_OPERATOR and number + 1 < len(samples):
            continue
        yield replace(result, op=unit.op, dtype=unit.dtype, sample=number, seconds=time.perf_counter() - start)
        judged += 1
        if judged >= settings.samples:
            return


@dataclass(frozen=True, slots=True)
class Case:
    """A sample of an operator, and how it is called: without gradients (False), then with them (True)."""

    op: Any
    sample: Any
    modes: tuple[bool, ...]
    compiling: Mapping[str, Any] = field(default_factory=lambda: {"dynamic": False})
    """Arguments of `torch.compile`."""

    @property
    def arguments(self) -> Any:
        return (self.sample.input, self.sample.args, self.sample.kwargs)


def _judge_case(case: Case, settings: CaseSettings) -> CaseResult:
    try:
        eager = [run_case(case, case.arguments, None, None, training) for training in case.modes]
    except Exception as error:
        return replace(_PASSED, status="skipped", reason=f"eager: {first_line(error)}")
    with _recorder(settings)() as record:
        mine = attempt(case, eager, _backend(settings), _options(settings))
    if mine.status != "passed" or mine.strides_differ:
        # The identity backend has a say only where something differs: asked about every case it would double the time.
        identity = attempt(case, eager, identity_backend(), None)
        mine = replace(mine, strides_differ=mine.strides_differ and not identity.strides_differ)
        if mine.status != "passed" and identity.status != "passed":
            mine = replace(mine, status="skipped", reason=f"identity backend: {identity.reason}")
    mine = _refused(mine, record, settings)
    opaque = record.opaque | record.seen if WHOLE_GRAPH in record.opaque else record.opaque
    return replace(
        mine,
        seen=tuple(sorted(record.seen)),
        core=tuple(sorted(filter(is_core, record.seen))),
        opaque=tuple(sorted(opaque)),
    )


def _judge_transformed(case: Case, settings: CaseSettings) -> CaseResult:
    """The verdict on a sample under a transformation, which may not run in eager."""

    def run(runner: Callable[..., Any], call: Callable[..., Any]) -> Any:
        copies = pytree.tree_map_only(Tensor, lambda tensor: _copied(tensor, True in case.modes), case.arguments)
        return runner(call, copies, case.sample.output_process_fn_grad, settings.transform)

    def call(*args: Any, **kwargs: Any) -> Any:
        return case.op.op(*args, **kwargs)

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        """The operator where it has derivatives: of a matrix with symmetry, that is taken from all of its elements."""
        return case.op.gradcheck_wrapper(case.op.op, *args, **kwargs)

    def compiled() -> Callable[..., Any]:
        options: Any = {"backend": _backend(settings), "dynamic": False, "options": _options(settings)}
        if call is differentiated and case.op.gradcheck_wrapper.__name__ == "gradcheck_wrapper_masked_operation":
            # It makes a mask by the operator's name, which Dynamo takes for an operand.
            return functools.partial(case.op.gradcheck_wrapper, torch.compile(case.op.op, **options))
        return torch.compile(call, **options)

    if settings.transform != "vmap":
        call = differentiated
    try:
        eager = run(run_oracle, call)
    except Exception as error:
        return replace(_PASSED, status="skipped", reason=f"eager: {first_line(error)}")
    torch.compiler.reset()
    with _recorder(settings)() as record:
        try:
            actual = run(run_transformed, compiled())
        except Exception as error:
            mine = replace(_PASSED, status="error", reason=first_line(error))
        else:
            # Numbers that nobody has written, or others than those that eager's kernels draw.
            if case.op.name in WITHOUT_VALUES or _draws_random_numbers(case):
                actual, eager = _without_values(actual), _without_values(eager)
            comparison = compare_close(actual, eager)
            mine = _PASSED if comparison.ok else replace(_PASSED, status="wrong", reason=str(comparison))
    mine = _refused(mine, record, settings)
    if mine.status == "passed" and WHOLE_GRAPH in record.opaque:
        mine = replace(mine, status="error", reason="it ran in eager")
    if mine.status == "passed" and not record.seen:
        mine = replace(mine, status="skipped", reason=_NO_OPERATOR)
    seen, opaque = tuple(sorted(record.seen)), tuple(sorted(record.opaque))
    return replace(mine, seen=seen, core=tuple(filter(is_core, seen)), opaque=opaque)


def _options(settings: CaseSettings) -> dict[str, Any] | None:
    return {"strict": True} if settings.strict else None


def _refused(verdict: CaseResult, record: TargetRecord, settings: CaseSettings) -> CaseResult:
    """An error of a strict backend is a refusal where it met what torch must carry out."""
    refuses = verdict.status == "error" and settings.strict and record.opaque
    return replace(verdict, status="refused") if refuses else verdict


def attempt(case: Case, eager: Sequence[Any], backend: Backend, options: dict[str, Any] | None) -> CaseResult:
    """The verdict on what a backend makes of a case, in each of its modes."""
    verdict = _PASSED
    for training, expected in zip(case.modes, eager, strict=True):
        torch.compiler.reset()
        try:
            actual = run_case(case, case.arguments, backend, options, training)
        except Exception as error:
            return replace(verdict, status="error", reason=f"{_mode(training)}: {first_line(error)}")
        comparison = _judge(case, actual, expected, training)
        if not comparison.ok:
            return replace(verdict, status="wrong", reason=f"{_mode(training)}: {comparison}")
        verdict = replace(verdict, strides_differ=verdict.strides_differ or _strides_differ(actual, expected))
    return verdict


def run_case(
    case: Case, arguments: Any, backend: Backend | None, options: dict[str, Any] | None, training: bool
) -> dict[str, Any]:
    """Results, inputs as the call left them, and gradients, of the operator on copies of the arguments."""
    op = case.op.op

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    if backend is not None:
        call = torch.compile(call, backend=backend, options=options, **case.compiling)
    first, rest, named = copies = pytree.tree_map_only(Tensor, lambda tensor: _copied(tensor, training), arguments)
    torch.manual_seed(SEED)
    with torch.set_grad_enabled(training):
        outputs = call(first, *rest, **named)
        gradients = _gradients(case, outputs, copies) if training else None
    return {"outputs": _detached(outputs), "inputs": _detached(copies), "gradients": gradients}


def _gradients(case: Case, outputs: Any, inputs: Any) -> tuple[Tensor | None, ...]:
    """Of the inputs, for cotangents that are random: ones would let many a wrong gradient cancel."""
    # The sample's own function takes out what the mathematics leaves open, such as the signs of singular vectors.
    results = [leaf for leaf in _tensors(case.sample.output_process_fn_grad(outputs)) if leaf.requires_grad]
    wanted = [leaf for leaf in _tensors(inputs) if leaf.requires_grad]
    if not results or not wanted:
        return ()
    generator = torch.Generator().manual_seed(SEED)
    cotangents = [_cotangent(leaf, generator) for leaf in results]
    return torch.autograd.grad(results, wanted, cotangents, allow_unused=True)


def _cotangent(like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers that every float type holds exactly: the oracle in float64 gets the very same."""
    if like.is_complex():
        pair = torch.randn((*like.shape, 2), generator=generator).bfloat16()
        return torch.view_as_complex(pair.double()).to(like.device, like.dtype)
    return torch.randn(like.shape, generator=generator).bfloat16().to(like.device, like.dtype)


def _judge(case: Case, actual: Any, eager: Any, training: bool) -> Comparison:
    """torch.testing's tolerances, or the float64 rule where an oracle can be had that can be trusted.

    Numbers drawn in float64 are others, those drawn in float32 the same as in narrower types: it is their oracle. Where
    they are not the same, eager is far from it, and it is not trusted.
    """
    if case.op.name in WITHOUT_VALUES:
        actual, eager = _without_values(actual), _without_values(eager)
    if case.op.name in SORTING:
        eager = eager_in_the_order_of(actual, eager, case.op.name, case.arguments)
    close = compare_close(actual, eager)
    draws = not close.ok and _draws_random_numbers(case)
    if close.ok or (draws and not _is_narrow(case)):
        return close
    try:
        arguments = widen(case.arguments, torch.float32 if draws else torch.float64)
        wide = compare(actual, eager, run_case(case, arguments, None, None, training))
    except Exception:  # the wider type is not taken by this operator: the tolerances have the last word
        return close
    if len(wide.leaves) != len(close.leaves):
        return close
    return Comparison(
        tuple(b if not a.ok and _trusted(a, b) else a for a, b in zip(close.leaves, wide.leaves, strict=True))
    )


def _trusted(close: TensorComparison, wide: TensorComparison) -> bool:
    """Whether the float64 rule may acquit: eager comes near the oracle, or the result is within 2 ulp of one of them.

    Where eager is far from the oracle (float64 took another branch, or half precision lost the result), twice its error
    would let anything pass.
    """
    dtype = getattr(torch, wide.dtype, None)
    if dtype is None or not wide.ok:
        return False
    eps = torch.finfo(dtype).eps
    return wide.eager_error <= math.sqrt(eps) or min(wide.error, close.error) <= 2 * eps


def _is_narrow(case: Case) -> bool:
    return any(tensor.dtype in (torch.bfloat16, torch.float16) for tensor in _tensors(case.arguments))


def _draws_random_numbers(case: Case) -> bool:
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        before = _generator_states()
        run_case(case, case.arguments, None, None, False)
        return any(not torch.equal(mine, now) for mine, now in zip(before, _generator_states(), strict=True))


def _generator_states() -> list[Tensor]:
    """Of the host, and of the GPU where one is in use."""
    used = torch.cuda.is_available() and torch.cuda.is_initialized()
    return [torch.random.get_rng_state(), *([torch.cuda.get_rng_state()] if used else [])]


def _backend(settings: CaseSettings) -> Backend:
    named = settings.backend
    if named == IDENTITY:
        return identity_backend()
    return resolve(named) if isinstance(named, str) and ":" in named else named


def _recorder(settings: CaseSettings) -> TargetRecorder:
    if settings.backend == IDENTITY:
        return record_identity_targets
    if settings.recorder is None:
        return lambda: contextlib.nullcontext(Targets())
    return resolve(settings.recorder)


def _copied(tensor: Tensor, training: bool) -> Tensor:
    plain = tensor.detach()
    # A deep copy keeps the strides of any view; only strided tensors have storage to copy.
    made = copy.deepcopy(plain) if plain.layout == torch.strided else plain.clone()
    return made.requires_grad_(training and tensor.requires_grad)


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, Tensor.detach, tree)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _without_values(tree: Any) -> Any:
    return pytree.tree_map_only(Tensor, torch.zeros_like, tree)


def _strides_differ(actual: Any, eager: Any) -> bool:
    def strides(tensor: Tensor) -> list[int]:
        strided = tensor.layout == torch.strided and tensor.numel() > 1
        return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1] if strided else []

    pairs = zip(_tensors(actual["outputs"]), _tensors(eager["outputs"]), strict=True)
    return any(strides(mine) != strides(theirs) for mine, theirs in pairs)


def _mode(training: bool) -> str:
    return "training" if training else "inference"


def first_line(error: Exception) -> str:
    """What an error is, in a line."""
    cause = getattr(error, "inner_exception", error)  # Dynamo wraps what a backend raises
    text = str(cause).strip()
    return f"{type(cause).__name__}: {text.splitlines()[0] if text else ''}"[:300]
