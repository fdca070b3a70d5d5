"""Judge a compiled model against eager and float64: one forward pass and one training step of a `ModelCase`.

Every run starts from an equal copy of the module, so what a step changes (batch-norm statistics, gradients) is compared
too. Outputs are judged tensor by tensor, gradients and buffers each as one result, and the loss together with the
outputs: it is a number made of them, whose rounding errors may cancel in one run and not in another.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.testing.comparison import Comparison, compare, widen
from weft.testing.models import ModelCase

Compile = Callable[[nn.Module], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The verdict on each kind of result: `forward` and, of the training step, outputs, loss, gradients and buffers."""

    name: str
    results: dict[str, Comparison]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results.values())

    def __str__(self) -> str:
        head = f"{self.name}: {'right' if self.ok else 'WRONG'}, {self.seconds:.1f} s"
        return "\n".join([head, *(f"  {kind}: {result}" for kind, result in self.results.items())])


def compile_with(backend: str | Callable[..., Any], *, fullgraph: bool = True, **options: Any) -> Compile:
    """What `check_model` takes, made of a `torch.compile` backend."""
    return lambda module: torch.compile(module, backend=backend, fullgraph=fullgraph, options=options or None)


def check_model(
    case: ModelCase,
    compiled: Compile,
    *,
    training: bool = True,
    seed: int = 0,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> ModelReport:
    """Compile the model with `compiled`, run it on a device, and judge outputs, loss, gradients and buffers."""
    start = time.perf_counter()
    module, inputs = case.build().to(device, dtype), moved(case.inputs(seed), device, dtype)
    wide, wide_inputs = case.widen(copy.deepcopy(module)), widen(inputs)
    torch.compiler.reset()
    mine = forward(module, compiled, inputs)
    results = {"forward": compare(mine, forward(module, _eager, inputs), forward(wide, _eager, wide_inputs))}
    if training:
        torch.compiler.reset()
        mine = training_step(case, module, compiled, inputs)
        eager = training_step(case, module, _eager, inputs)
        oracle = training_step(case, wide, _eager, wide_inputs)
        for kind in mine:
            parts = ("outputs", kind) if kind == "loss" else (kind,)
            found = ([step[part] for part in parts] for step in (mine, eager, oracle))
            results[kind] = compare(*found, together=kind != "outputs")
    return ModelReport(case.name, results, time.perf_counter() - start)


def moved(inputs: dict[str, Tensor], device: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The inputs on a device, numbers that are not whole in an element type."""
    return {name: value.to(device, dtype if value.is_floating_point() else None) for name, value in inputs.items()}


def forward(module: nn.Module, compiled: Compile, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs of an equal copy of the module, without gradients."""
    with torch.no_grad():
        return _tensors(compiled(copy.deepcopy(module).eval())(**inputs))


def training_step(
    case: ModelCase, module: nn.Module, compiled: Compile, inputs: dict[str, Tensor]
) -> dict[str, dict[str, Tensor | None]]:
    """What one step computes from an equal copy of the module: outputs, loss, gradients and the buffers afterwards."""
    module = case.train(copy.deepcopy(module))
    outputs = compiled(module)(**inputs)
    loss = case.loss(outputs)
    loss.backward()
    return {
        "outputs": {**_tensors(outputs)},
        "loss": {"loss": loss.detach()},
        "gradients": {name: None if p.grad is None else p.grad.detach() for name, p in module.named_parameters()},
        "buffers": {name: buffer.detach() for name, buffer in module.named_buffers()},
    }


def _eager(module: nn.Module) -> Callable[..., Any]:
    return module


def _tensors(outputs: Any) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in dict(outputs).items() if isinstance(value, Tensor)}
