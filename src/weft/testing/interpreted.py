"""Runs what was compiled for a GPU without one: kernels on the tile interpreter, calls by torch on the processor.

compiled = torch.compile(model, backend=gpu_interpreter(gpu_machine()))

The graph is imported as one of CUDA tensors is, passes and schedules are the GPU's, and every access is checked. It is
slow, and meant for small tensors.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from xdsl.dialects.builtin import ModuleOp

from weft.backends.nvidia.check.simulator import simulate
from weft.backends.nvidia.target import target_named
from weft.backends.reference.tile import run_kernel
from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.compiled_graph import CompiledGraph
from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.execution.reference import to_array, to_tensor
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.ir.expr import evaluate
from weft.lower.machine import Machine
from weft.lower.plan import Planned, build_plan
from weft.lower.steps import CallStep, DotStep, IfStep, KernelStep, LaunchStep, LoopStep, Place, Step
from weft.pipelines import annotate, nvidia_passes, run_passes
from weft.runtime.constants import prepared
from weft.runtime.record import compilation
from weft.tile.dialect import KernelOp


@dataclass
class InterpretedExecutor:
    """A plan whose steps are carried out one by one."""

    planned: Planned
    opaque: OpaqueRuntime
    simulated: bool = False
    """Whether kernels run as blocks of threads, on the simulator."""

    def __call__(self, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> list[torch.Tensor]:
        plan = self.planned.plan
        held: dict[int, torch.Tensor] = {}
        given = iter([tensor for place, tensor in enumerate(tensors) if place not in plan.fixed])
        fixed = [tensors[place] for place in plan.fixed]
        for number in plan.inputs:
            held[number] = self._fitting(number, next(given), symbols)
        if plan.constants:
            arrays = prepared(plan, self.planned.prepare, [to_array(tensor) for tensor in fixed])
            held |= {number: self._fitting(number, to_tensor(array), symbols) for number, array in arrays.items()}
        self._run_steps(plan.steps, held, symbols)
        results = [held[number] for number in plan.outputs]
        kept = set(plan.replacing)
        return [r if n in kept or plan.outputs[n] not in plan.inputs else r.clone() for n, r in enumerate(results)]

    def _run_steps(self, steps: Sequence[Step], held: dict[int, torch.Tensor], symbols: Mapping[str, int]) -> None:
        plan = self.planned.plan
        for step in steps:
            match step:
                case KernelStep():
                    buffers = [_flat(self._buffer(number, held, symbols)) for number in step.buffers]
                    sizes = [symbols[name] for name in step.symbols]
                    self._run(self.planned.kernels[step.function], _typed(buffers, plan, step), sizes)
                case CallStep():
                    operands = [self._place(place, held, symbols) for place in step.operands]
                    results = self.opaque.call(step.target, step.arguments, operands, symbols)
                    for number, result in zip(step.results, results, strict=True):
                        if result is not None:
                            held[number] = self._fitting(number, result, symbols)
                case DotStep():
                    a, b, out = (self._place(place, held, symbols) for place in (step.a, step.b, step.out))
                    out.copy_(out + a @ b if step.accumulates else a @ b)
                case LaunchStep():
                    raise UnsupportedError(f"{step.label} is a kernel for the processor")
                case IfStep():
                    chosen = step.then if bool(self._buffer(step.condition, held, symbols)) else step.otherwise
                    self._run_steps(chosen, held, symbols)
                case LoopStep():
                    turns, turn = evaluate(step.trip_count, symbols), 0
                    while turn != turns and (step.condition < 0 or bool(self._buffer(step.condition, held, symbols))):
                        for each in step.slices:
                            whole = self._place(each.whole, held, symbols)
                            held[each.buffer] = whole[turn if each.direction > 0 else turns - 1 - turn]
                        self._run_steps(step.body, held, symbols)
                        turn += 1

    def _run(self, kernel: KernelOp, buffers: Sequence[np.ndarray], sizes: Sequence[int]) -> None:
        if not self.simulated:
            run_kernel(kernel, buffers, sizes)
            return
        annotated, launch = annotate(kernel.clone(), target_named("sm_90a"))
        simulate(annotated, buffers, sizes, launch.shared)

    def _buffer(self, number: int, held: dict[int, torch.Tensor], symbols: Mapping[str, int]) -> torch.Tensor:
        if number not in held:
            buffer = self.planned.plan.buffers[number]
            shape, strides = (_values(each, symbols) for each in (buffer.tensor.shape, buffer.layout.strides))
            held[number] = torch.empty_strided(shape, strides, dtype=to_torch(buffer.tensor.dtype))
            _flat(held[number])[:] = 0xAB
        return held[number]

    def _place(self, place: Place, held: dict[int, torch.Tensor], symbols: Mapping[str, int]) -> torch.Tensor:
        base = self._buffer(place.buffer, held, symbols)
        shape, strides = (_values(each, symbols) for each in (place.tensor.shape, place.layout.strides))
        return base.as_strided(shape, strides, base.storage_offset() + evaluate(place.layout.offset, symbols))

    def _fitting(self, number: int, tensor: torch.Tensor, symbols: Mapping[str, int]) -> torch.Tensor:
        """The tensor as the buffer lies, in memory of its own unless it is written over."""
        strides = _values(self.planned.plan.buffers[number].layout.strides, symbols)
        if tensor.stride() == tuple(strides) and tensor.storage_offset() == 0:
            return tensor.detach()
        return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor.detach())


def _values(sizes: Sequence[Any], symbols: Mapping[str, int]) -> list[int]:
    return [evaluate(size, symbols) for size in sizes]


def _flat(tensor: torch.Tensor) -> np.ndarray:
    """All bytes of a tensor's memory, from its first element on."""
    start = tensor.storage_offset() * tensor.element_size()
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()[start:]


def _typed(buffers: Sequence[np.ndarray], plan: Any, step: KernelStep) -> list[np.ndarray]:
    dtypes = [plan.buffers[number].tensor.dtype.numpy for number in step.buffers]
    return [
        flat[: flat.size // dtype.itemsize * dtype.itemsize].view(dtype)
        for flat, dtype in zip(buffers, map(np.dtype, dtypes), strict=True)
    ]


@dataclass
class GpuInterpreter:
    """A backend for `torch.compile`; `plans` has what it compiled."""

    machine: Machine
    plans: list[Planned] = field(default_factory=list[Planned])
    device_checks: str = "off"
    simulated: bool = False

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        backend: Any = aot_autograd(
            fw_compiler=self._compile,
            decompositions=decompositions("cuda"),
            keep_inference_input_mutations=True,
        )
        return backend(module, example_inputs)

    def _compile(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        config = Config(cache=False, verify=True, device_checks=self.device_checks)
        imported = import_graph(module, "interpreted", config, capabilities=self.machine.capabilities)
        owner = ModuleOp([imported.function])
        with compilation("interpreted") as report:
            run_passes(owner, nvidia_passes(config), report, verify=True)
        planned = build_plan(imported.function, machine=self.machine)
        self.plans.append(planned)
        executor = InterpretedExecutor(planned, OpaqueRuntime(imported.objects), self.simulated)
        return CompiledGraph(imported.calling, imported.constants, executor)
