"""Models that NNSmith draws, where it is installed, judged as other programs are: its generator, Weft's own judge.

https://github.com/ise-uiuc/nnsmith makes models whose ops and shapes fit by solving constraints. A case is a seed and
which values the model returns: fewer of them need fewer of its ops.
"""

# NNSmith has no types, and neither have some of torch's arguments.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingImports=false, reportMissingModuleSource=false

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from weft.errors import WeftError
from weft.testing.comparison import widen
from weft.testing.fuzz.noise import RoundingNoise
from weft.testing.fuzz.torch_judge import SEED, Backend, Result, Runs, compiled, judge_runs, result_of
from weft.testing.fuzz.verdict import Verdict

ELEMENTS = 2**12
SECONDS = 10_000  # milliseconds, for the solver


@dataclass(frozen=True)
class NnsmithCase:
    """The model of a seed; `returned` are the values it gives back, all that nothing uses if there are none."""

    seed: int
    nodes: int = 6
    returned: tuple[str, ...] = ()
    train: bool = False
    device: str = "cpu"

    def script(self, said: str) -> str:
        first = said.replace("\\", "/").replace('"""', "'''").splitlines()[0] if said else ""
        settings = f"{self.seed}, {self.nodes}, {self.returned}, train={self.train}, device={self.device!r}"
        model = "\n".join(f"# {line}" for line in described(self))
        return (
            f'"""Found by `weft fuzz`: {first}"""\n\n'
            f"from weft.testing.fuzz.nnsmith_models import reproduce\n\n{model}\n\n"
            f'if __name__ == "__main__":\n    reproduce({settings})\n'
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> NnsmithCase:
        given: dict[str, Any] = {**record, "returned": tuple(record["returned"])}
        return NnsmithCase(**given)


def draw_model(seed: int, device: str = "cpu") -> NnsmithCase:
    """The case of a seed."""
    rng = random.Random(seed)
    return NnsmithCase(seed, rng.choice((3, 5, 8, 12)), (), rng.random() < 0.3, device)


def check_installed() -> None:
    """Say that NNSmith is not there."""
    if importlib.util.find_spec("nnsmith") is None:
        raise WeftError("NNSmith is not installed here", hint="pip install nnsmith")


@cache
def _generator() -> tuple[Any, Any]:
    """NNSmith's class of torch models, and the ops that this torch has."""
    check_installed()
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset

    with contextlib.redirect_stdout(io.StringIO()):
        model = Model.init("torch", backend_target="cpu")
        return model, auto_opset(model, None)


@dataclass(frozen=True)
class _Model:
    """A model as a list of calls over named values."""

    calls: tuple[tuple[Callable[..., Any], Sequence[str], Sequence[str], str], ...]
    inputs: dict[str, Any]
    returned: tuple[str, ...]

    def program(self) -> Callable[..., tuple[Any, ...]]:
        names, calls, returned = tuple(self.inputs), self.calls, self.returned

        def program(*given: Tensor) -> tuple[Any, ...]:
            values = dict(zip(names, given, strict=True))
            for function, arguments, results, _ in calls:
                made = function(*[values[name] for name in arguments])
                for name, value in zip(results, made if isinstance(made, tuple | list) else (made,), strict=True):
                    values[name] = value
            return tuple(values[name] for name in returned)

        return program


def _model(case: NnsmithCase) -> _Model:
    type_, opset = _generator()
    from nnsmith.graph_gen import model_gen

    given = {"max_nodes": case.nodes, "timeout_ms": SECONDS, "max_elem_per_tensor": ELEMENTS}
    made = model_gen(opset=opset, method="symbolic-cinit", seed=case.seed, **given)
    torch.manual_seed(case.seed)
    net = type_.from_gir(made.make_concrete()).torch_model.eval()
    returned = case.returned or tuple(net.output_like)
    needed, calls = set(returned), list[Any]()
    for function, arguments, results, op in reversed(net.instructions):
        if needed & set(results):
            needed |= set(arguments)
            calls.append((function, tuple(arguments), tuple(results), str(op)))
    inputs = {name: like for name, like in net.input_like.items() if name in needed}
    return _Model(tuple(reversed(calls)), inputs, returned)


def described(case: NnsmithCase) -> list[str]:
    """The model's calls, a line each."""
    model = _model(case)
    lines = [f"{name} = input {list(like.shape)} {like.dtype}" for name, like in model.inputs.items()]
    lines += [f"{', '.join(results)} = {op}({', '.join(arguments)})" for _, arguments, results, op in model.calls]
    return [*lines, f"return {', '.join(model.returned)}"]


@dataclass(frozen=True)
class ModelRuns(Runs):
    """A model on inputs of its seed."""

    case: NnsmithCase
    model: _Model

    def run(
        self, backend: Backend = None, *, wide: bool = False, only: int | None = None, noise: int = 0
    ) -> tuple[list[Result], Exception | None]:
        case, model = self.case, copy.deepcopy(self.model)
        for function, *_ in model.calls:
            if isinstance(function, torch.nn.Module):
                function.to(case.device, torch.float64 if wide else None)
        generator = torch.Generator().manual_seed(case.seed)
        given = [_input(like, generator).to(case.device) for like in model.inputs.values()]
        given = widen(given) if wide else given
        leaves = [each.requires_grad_() for each in given if case.train and each.is_floating_point()]
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64 if wide else before)
        mode = "train" if case.train else "no_grad"
        try:
            call = model.program()
            if backend is not None:
                call = compiled(call, backend, mode, None)
            torch.manual_seed(SEED)
            with torch.set_grad_enabled(case.train), RoundingNoise(noise) if noise else contextlib.nullcontext():
                return [result_of(call, given, leaves, mode)], None
        except Exception as error:  # whatever it is, it is the answer
            return [], error
        finally:
            torch.set_default_dtype(before)


def _input(like: Any, generator: torch.Generator) -> Tensor:
    dtype, shape = like.dtype.torch(), tuple(like.shape)
    if dtype.is_complex:
        pair = torch.rand((*shape, 2), generator=generator) * 4 - 1
        return torch.view_as_complex(pair).to(dtype)
    values = torch.rand(shape, generator=generator) * 4 - 1  # mostly positive, as NNSmith has them, but smaller
    return values.to(dtype) if dtype.is_floating_point else values.round().to(dtype)


def judge_model(case: NnsmithCase, backend: Backend = "weft") -> Verdict:
    """The verdict on a model."""
    start = time.perf_counter()
    try:
        model = _model(case)
    except Exception as error:
        if isinstance(error, WeftError):
            raise
        return Verdict("undecided", f"NNSmith cannot make it: {type(error).__name__}: {error}"[:200])
    return replace(judge_runs(ModelRuns(case, model), backend), seconds=time.perf_counter() - start)


def shrink_model(case: NnsmithCase, interesting: Callable[[NnsmithCase], bool], seconds: float) -> NnsmithCase:
    """The model with the fewest ops that fails the same way, by what it returns."""
    until = time.perf_counter() + seconds
    if case.train and interesting(replace(case, train=False)):
        case = replace(case, train=False)
    for _, _, results, _ in _model(replace(case, returned=())).calls:
        smaller = replace(case, returned=tuple(results))
        if time.perf_counter() > until:
            break
        if interesting(smaller):
            return smaller
    return case


def reproduce(
    seed: int, nodes: int, returned: Sequence[str] = (), *, train: bool = False, device: str = "cpu"
) -> NoReturn:
    """Judge a model, say what happens, and exit with 1 if it fails."""
    verdict = judge_model(NnsmithCase(seed, nodes, tuple(returned), train, device))
    print(f"{verdict.status}: {verdict.reason}" if verdict.reason else verdict.status)
    raise SystemExit(verdict.failed)
