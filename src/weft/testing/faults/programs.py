"""The programs that faults befall: captured once, so that a child process compiles one in a moment, without Dynamo."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from weft.config import Config
from weft.frontends.torch import caching
from weft.frontends.torch.backend import compile_graph
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.executors import load_graph
from weft.runtime import stored_programs
from weft.runtime.record import CompilationRecord, recording

Tensors = Sequence[torch.Tensor]


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(F.layer_norm(x, x.shape[-1:]) @ w, -1)


def chained(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = F.gelu(x * y + 1) - x.sin()
    return z, z.sum(0)


def placed(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x.index_select(0, places), 0).roll(1, 0)


def updated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(0.5).add_(y)
    return x.amax(1)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], Tensors]]] = {
    "normalised": (normalised, lambda: (torch.randn(12, 32), torch.randn(32, 24))),
    "chained": (chained, lambda: (torch.randn(17, 33), torch.randn(33))),
    "placed": (placed, lambda: (torch.randn(9, 20), torch.randint(9, (14,)))),
    "updated": (updated, lambda: (torch.randn(8, 40), torch.randn(40))),
}


@dataclass(frozen=True)
class Program:
    """A captured graph, with what makes arguments for it."""

    name: str
    function: Callable[..., Any]
    draw: Callable[[], Tensors]
    module: fx.GraphModule
    inputs: Sequence[Any]

    def compiled(self, *, cache: bool = True) -> Callable[[list[Any]], Sequence[Any]]:
        return compile_graph(self.module, self.inputs, name="inference", config=Config(cache=cache))

    def loaded(self) -> Callable[[list[Any]], Sequence[Any]] | None:
        """What the cache holds of it, ready to be called."""
        config, record = Config(), CompilationRecord("inference")
        key = caching.graph_key(self.module, "inference", config)
        return None if key is None else load_graph(key, self.module, {}, record, config, torch.device("cpu"))

    def trouble(self, call: Callable[[list[Any]], Sequence[Any]]) -> str | None:
        """What is wrong with the results for new arguments, None if nothing is."""
        arguments = [*self.draw()]
        others = copy.deepcopy(arguments)
        with torch.no_grad():
            expected = self.function(*arguments)
            given = call(list(others))
        return difference([*given, *others], [*_several(expected), *arguments], self.name)


def _several(results: Any) -> Sequence[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def difference(given: Sequence[Any], expected: Sequence[Any], name: str) -> str | None:
    """What tells results from eager's, beyond rounding; None if nothing does."""
    if len(given) != len(expected):
        return f"{name}: {len(given)} results, expected {len(expected)}"
    for number, (one, other) in enumerate(zip(given, expected, strict=True)):
        try:
            torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)
        except AssertionError as error:
            return f"{name}: result {number}: {str(error).splitlines()[0]}"
    return None


def captured_programs() -> list[Program]:
    """Each of the functions as AOTAutograd hands it to the back end."""
    found: list[Program] = []
    for name, (function, draw) in FUNCTIONS.items():
        grabbed: list[tuple[fx.GraphModule, Sequence[Any]]] = []

        def grab(
            module: fx.GraphModule, inputs: Sequence[Any], into: list[tuple[fx.GraphModule, Sequence[Any]]] = grabbed
        ) -> Callable[..., Any]:
            into.append((module, inputs))
            return module.forward

        backend: Any = aot_autograd(
            fw_compiler=grab, decompositions=decompositions("cpu"), keep_inference_input_mutations=True
        )
        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(function, backend=backend)(*draw())
        found.append(Program(name, function, draw, *grabbed[0]))
    return found


def check_all(programs: Sequence[Program]) -> str | None:
    """Compile or load each program and compare its results; what is wrong, None if nothing is."""
    for program in programs:
        trouble = program.trouble(program.compiled())
        if trouble is not None:
            return trouble
    return None


def sources(programs: Sequence[Program]) -> tuple[list[str], str | None]:
    """Where each program came from, `compiled` or `cache`, and what is wrong with the results."""
    with recording() as records:
        trouble = check_all(programs)
    return [record.source for record in records], trouble


def use_cache(root: str) -> None:
    """Let compiled programs be kept in this folder from now on, in this process."""
    os.environ["WEFT_CACHE_DIR"] = root
    os.environ.pop("WEFT_CACHE", None)
    stored_programs.disk_cache.cache_clear()
