"""Judges a random `nn.Module`: compiled against eager with float64 as the oracle, call after call, as `torch_judge`.

A call of a module leaves something behind: buffers, and parameters where an optimizer steps. So every run makes the
module anew and does all calls in order, and what is compared is also the module's state and all gradients.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import copy
import inspect
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

import weft
from weft.testing.fuzz.module_case import ModuleCase, module_functions
from weft.testing.fuzz.shrink import shrink
from weft.testing.fuzz.torch_case import Draw
from weft.testing.fuzz.torch_judge import (
    SEED,
    Backend,
    CaseRuns,
    Result,
    cotangent,
    grad_mode,
    judge_runs,
    kept,
    sharing,
)
from weft.testing.fuzz.verdict import Verdict


def judge_module(case: ModuleCase, backend: Backend = "weft") -> Verdict:
    """The verdict on a module."""
    start = time.perf_counter()
    return replace(judge_runs(ModuleRuns(case), backend), seconds=time.perf_counter() - start)


@dataclass(frozen=True)
class ModuleRuns(CaseRuns):
    """A case, whose module and inputs are made anew for each run."""

    case: ModuleCase

    @property
    def narrow(self) -> torch.dtype:
        return getattr(torch, self.case.autocast or self.case.dtype)

    @property
    def draws(self) -> bool:
        return self.case.draws

    def _run(
        self, backend: Backend, wide: bool, only: int | None, mode: contextlib.AbstractContextManager[Any]
    ) -> tuple[list[Result], Exception | None]:
        case, results = self.case, list[Result]()
        before = torch.get_default_dtype()
        last = len(case.calls) - 1 if only is None else only
        try:
            inputs, program = module_functions(case, wide=wide)
            compiled = Compiled(case, program, backend, wide)
            torch.set_default_dtype(torch.float64 if wide else before)
            for number, sizes in enumerate(case.calls[: last + 1]):
                draw = Draw(case.seed + number, wide, sizes.get("layout", 0), case.device, train=case.mode == "train")
                given = inputs(draw, **{name: size for name, size in sizes.items() if name != "layout"})
                torch.manual_seed(SEED)
                with grad_mode(case.mode), mode:
                    results.append(compiled.call(given, draw.leaves))
                compiled.change_hands()
        except Exception as error:  # whatever it is, it is the answer
            return results if only is None else [], error
        finally:
            torch.set_default_dtype(before)
        return results if only is None else results[-1:], None


class Compiled:
    """The module of a case, as it is called, and its optimizer."""

    def __init__(self, case: ModuleCase, program: type[nn.Module], backend: Backend, wide: bool) -> None:
        self.case, self._program, self._backend, self._wide = case, program, backend, wide
        if backend is not None:
            torch.compiler.reset()
        self._call, self._module = self._made()
        self._optimizer: Any = None
        self._step: Callable[[], Any] = lambda: None
        if case.optimizer and case.mode == "train":
            scope = {"torch": torch, "parameters": list(self._module.parameters())}
            self._optimizer = eval(case.optimizer, scope)
            self._step = self._optimizer.step if backend is None else torch.compile(self._optimizer.step, **self._asked)

    @property
    def _asked(self) -> dict[str, Any]:
        options = {"cache": False, "freeze": self.case.mode == "freeze"} if self._backend == "weft" else None
        return {"backend": self._backend, "options": options}

    def _made(self, seed: int = 0) -> tuple[Any, Any]:
        case = self.case
        torch.manual_seed(case.seed + seed)
        module = self._program().to(case.device, getattr(torch, case.dtype))
        module = (module.double() if self._wide else module).train(case.training)
        if self._backend is None:
            return module, module
        if case.way == "weft" and self._backend == "weft":
            return weft.compile(module, dynamic=case.dynamic, **self._asked["options"]), module
        if case.way in ("method", "weft"):
            module.compile(dynamic=case.dynamic, **self._asked)
            return module, module
        whole = case.way == "fullgraph"
        return torch.compile(module, dynamic=case.dynamic, fullgraph=whole, **self._asked), module

    def change_hands(self) -> None:
        """After a call, what the way of the case asks for: a copy of the module goes on, or another with its state."""
        if self.case.way == "copied" and self._optimizer is None:
            self._call = copy.deepcopy(self._call)
            self._module = getattr(self._call, "_orig_mod", self._call)  # type: ignore[assignment]
        elif self.case.way == "loaded" and self._optimizer is None:
            call, module = self._made(1)
            module.load_state_dict(self._module.state_dict())
            self._call, self._module = call, module

    def call(self, given: Sequence[Tensor], leaves: Sequence[Tensor]) -> Result:
        """What a call gives and leaves behind: results, inputs and state, gradients, and which share memory."""
        case, module = self.case, self._module
        parameters = list(module.parameters())
        for parameter in parameters:
            parameter.grad = None
        dtype = getattr(torch, case.autocast) if case.autocast and not self._wide else None
        with torch.autocast(case.device.partition(":")[0], dtype) if dtype else contextlib.nullcontext():
            outputs = list(self._call(*given))
        if case.mode == "train":
            self._backward(outputs)
        gradients = [kept(each.grad) for each in (*leaves, *parameters)]
        if self._optimizer is not None:
            self._step()
        return {
            "outputs": [kept(each) for each in outputs],
            "inputs": [kept(each) for each in (*given, *module.state_dict().values())],
            "gradients": gradients,
            "shared": sharing([*outputs, *given]),
        }

    def _backward(self, outputs: Sequence[Any]) -> None:
        wanted = [each for each in outputs if isinstance(each, Tensor) and each.requires_grad]
        if wanted:
            generator = torch.Generator().manual_seed(SEED)
            torch.autograd.backward(wanted, [cotangent(each, generator) for each in wanted])


def shrink_module(case: ModuleCase, interesting: Callable[[ModuleCase], bool], seconds: float) -> ModuleCase:
    """A smaller case that fails the same way: plain settings first, then `shrink`'s moves, then fewer layers."""
    until = time.perf_counter() + seconds
    shrunk = True
    while shrunk and time.perf_counter() < until:
        before = case
        for candidate in _plainer_settings(case):
            if time.perf_counter() < until and interesting(smaller := replace(case, **candidate)):
                case = smaller
        found: Any = shrink(case, lambda other: interesting(_as_module(other)), max(until - time.perf_counter(), 0.0))
        case = _fewer_layers(found, interesting, until)
        shrunk = case != before
    return case


def _as_module(case: Any) -> ModuleCase:
    assert isinstance(case, ModuleCase)
    return case


def _plainer_settings(case: ModuleCase) -> Iterator[dict[str, Any]]:
    for name, plain in (("optimizer", ""), ("autocast", ""), ("way", "compile"), ("training", False)):
        if getattr(case, name) != plain:
            yield {name: plain}


def _fewer_layers(case: ModuleCase, interesting: Callable[[ModuleCase], bool], until: float) -> ModuleCase:
    for line in reversed(case.layers):
        smaller = replace(case, layers=tuple(other for other in case.layers if other != line))
        if time.perf_counter() < until and interesting(smaller):
            case = smaller
    return case


def reproduce(
    inputs: Callable[..., Any], program: type[nn.Module], calls: Sequence[dict[str, int]], **settings: Any
) -> NoReturn:
    """Judge the module of a script, say what happens, and exit with 1 if it fails."""
    verdict = judge_module(module_case_of(inputs, program, calls, **settings))
    print(f"{verdict.status}: {verdict.reason}" if verdict.reason else verdict.status)
    raise SystemExit(verdict.failed)


def module_case_of(
    inputs: Callable[..., Any], program: type[nn.Module], calls: Sequence[dict[str, int]], **settings: Any
) -> ModuleCase:
    """The case that a script's function and class state."""

    def lines(function: Callable[..., Any]) -> list[str]:
        text = textwrap.dedent(inspect.getsource(function))
        return [line.strip() for line in text.splitlines()[1:] if line.strip()]

    *body, last = lines(program.forward)
    outputs = tuple(name for name in last.removeprefix("return").strip("( )").replace(" ", "").split(",") if name)
    layers = tuple(lines(program.__init__)[1:])
    return ModuleCase(tuple(lines(inputs)[:-1]), tuple(body), outputs, tuple(calls), layers=layers, **settings)
