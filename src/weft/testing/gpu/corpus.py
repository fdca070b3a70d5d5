"""Kernels to try a GPU back end on: those of the ops' samples, and those of the benchmark's suites.

Nothing here needs a GPU: kernels are scheduled for one, and suites are traced with small tensors on the CPU.
"""

# torch leaves what its own compilers use without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.target import NvidiaTarget
from weft.config import Config
from weft.errors import ShapeError
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.ir.types import dtype_of_numpy
from weft.lower.machine import gpu_machine
from weft.ops.base import REGISTRY, Elementwise, Movement, OpSpec, Reduction, Scan
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.pipelines import compile_nvidia
from weft.testing.bench.benchmark import Contender
from weft.testing.devices import HostDevice
from weft.testing.gpu.case import GpuCase, Place
from weft.testing.op_cases import OpCase, op_cases
from weft.tile.dialect import KernelOp

GENERATED = (Elementwise, Movement, Reduction, Scan)
"""The kinds of ops that a GPU has kernels of Weft's for; libraries do the others."""


def generated_ops() -> list[OpSpec]:
    """The ops whose kernels are Weft's own on a GPU."""
    import weft.ops  # pyright: ignore[reportUnusedImport]  # noqa: F401  it fills the registry

    return [spec for spec in REGISTRY if issubclass(spec.cls, GENERATED)]


def op_kernels(spec: OpSpec, *, dynamic: bool = False) -> dict[str, KernelOp]:
    """The kernels of an op's samples, scheduled for a GPU, by name."""
    kernels: dict[str, KernelOp] = {}
    for case in op_cases(spec, dynamic):
        try:
            trial = case.trial(gpu_machine())
        except ShapeError:
            continue  # parameters like the shape of a reshape do not change with the operand's sizes
        kernels.update({call.kernel.op.sym_name.data: call.kernel.op for call in trial.lowered.calls})
    return kernels


def op_function(case: OpCase) -> FuncOp:
    """A program that is one op on the sample's inputs."""
    from weft.ir.types import Tensor

    arrays = case.arrays()
    tensors = {f"x{i}": Tensor(dtype_of_numpy(array.dtype), array.shape) for i, array in enumerate(arrays)}
    function = FuncOp.make(case.name, tensors)
    b = GraphBuilder(function.block)
    made: Any = b.emit(case.spec.name, *function.block.args, **case.sample.params)
    results = list(made) if isinstance(made, tuple | list) else [made]
    b.insert(ReturnOp.create(operands=results))
    return function


def traced(call: Callable[[Callable[[Callable[..., Any]], Callable[..., Any]]], Any]) -> list[FuncOp]:
    """The graphs that reach a backend while `call(compile)` runs, as programs for a GPU."""
    found: list[FuncOp] = []

    def keep(module: Any, _: Any) -> Any:
        found.append(import_graph(module, f"graph_{len(found)}", Config(cache=False)).function.clone())
        return make_boxed_func(module.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, inference_compiler=keep, decompositions=decompositions())
    torch.compiler.reset()
    call(lambda function: torch.compile(function, backend=backend))
    return found


def suite_functions(case: GpuCase, shrink: int = 2048) -> list[FuncOp]:
    """The programs that Weft gets in a case of the benchmark, with fewer rows."""

    def start(compile: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        work = case.build(Place(HostDevice(), shrink))
        work.start(Contender("traced", compile))()

    with torch.set_grad_enabled(case.training):
        return traced(start)


def device_code(function: FuncOp, target: NvidiaTarget, options: Mapping[str, Any] | None = None) -> DeviceCode:
    """A program's kernels for a target."""
    return compile_nvidia(function, Config(cache=False, **(options or {})), target).code
