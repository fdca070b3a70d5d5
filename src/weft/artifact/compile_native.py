"""A graph function → machine code for a processor that need not be this one, as a shared object and what it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from weft.artifact.manifest import PREPARED, WEIGHTS, Constant, CpuCode, NewArray, Output, Packing
from weft.artifact.processors import BASELINES, HOST, flags_here
from weft.backends.cpu.microkernel import cpu_machine, panel_form
from weft.backends.cpu.native_program import EXPORTS, native_module, native_text, outputs_of
from weft.backends.cpu.objects.link_shared import link_shared
from weft.backends.cpu.target import CpuTarget, compile_object, host_target
from weft.backends.cpu.thread_pool import has_own_pool
from weft.backends.llvm.builder import Module
from weft.config import Config
from weft.diagnostics import nearest
from weft.errors import ArtifactError
from weft.ir.expr import Size, evaluate
from weft.lower.constants import Constant as PlannedConstant
from weft.lower.plan import Planned, build_plan
from weft.lower.steps import Plan
from weft.ops.graph import FuncOp, module_of
from weft.pipelines import cpu_passes, run_passes
from weft.runtime.constants import sources_of
from weft.runtime.record import compilation
from weft.runtime.signature import Signature
from weft.runtime.strides import row_major


@dataclass(frozen=True)
class NativeCode:
    """Machine code of a plan: LLVM IR for a processor, and the plan that it is of."""

    name: str
    target: CpuTarget
    requires: tuple[str, ...]
    planned: Planned
    module: Module

    def shared_object(self, *, more: str = "", exports: tuple[str, ...] = EXPORTS) -> bytes:
        """The shared object; `more` is LLVM IR that belongs to it."""
        return link_shared(self.object_file(more), exports)

    def object_file(self, more: str = "") -> bytes:
        return compile_object(native_text(self.module) + more, self.target, jit=False)


def processor(name: str) -> tuple[CpuTarget, tuple[str, ...]]:
    """A target by name, and the flags that its code needs."""
    if name == HOST:
        target = host_target()
        if not has_own_pool(target.triple) or not flags_here():
            raise ArtifactError(
                f"there is no code on its own for {target.triple}", hint="name a baseline: x86-64-v3, aarch64"
            )
        return target, tuple(sorted(flags_here()))
    if name not in BASELINES:
        known = (HOST, *BASELINES)
        raise ArtifactError(
            f"there is no target {name!r}{nearest(name, known)}", hint=f"{', '.join(known)}, and GPUs: sm_90a"
        )
    triple, cpu, requires = BASELINES[name]
    return CpuTarget(triple, cpu, ""), requires


def compile_native(function: FuncOp, name: str, config: Config) -> NativeCode:
    """Compile a function, which is changed, for a processor by name."""
    target, requires = processor(name)
    with compilation(function.sym_name.data) as report:
        report.imported(function)
        passes = cpu_passes(
            config,
            blas=False,
            own_tiles=target.has_matrix_tiles,
            byte_products=target.packs_bytes,
            wide_vectors=target.vector_bits == 512,
        )
        run_passes(module_of(function), passes, report, verify=config.verify)
        planned = build_plan(function, partial(panel_form, target), cpu_machine(target))
        report.planned(planned.plan, planned.schedules)
        module = native_module(planned.plan, planned.kernels, target)
    return NativeCode(name, target, requires, planned, module)


def describe_code(
    code: NativeCode,
    member: str,
    signature: Signature,
    weights: Mapping[str, np.ndarray],
    prepared: MutableMapping[str, np.ndarray],
) -> CpuCode:
    """What a manifest says of machine code. Arrays that are computed of weights go to `prepared`, by their digests."""
    plan = code.planned.plan
    return CpuCode(
        code.name,
        code.target.triple,
        code.target.cpu,
        code.requires,
        member,
        plan.symbols,
        tuple(_texts(plan.buffers[number].layout.strides) for number in plan.inputs),
        tuple(
            NewArray(buffer.tensor.dtype.name, _texts(buffer.tensor.shape), _texts(buffer.layout.strides))
            for buffer in (plan.buffers[number] for number in outputs_of(plan))
        ),
        tuple(_result(plan, position, number) for position, number in enumerate(plan.outputs)),
        _constants(code.planned, signature, weights, prepared),
    )


def constant_arrays(planned: Planned, signature: Signature, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What constants are made of, in the order of their `source`."""
    given = [weights[signature.names[place]] for place in planned.plan.fixed]
    return sources_of(planned.plan, planned.prepare, given)


def strides_of(plan: Plan, constant: PlannedConstant, array: np.ndarray) -> tuple[int, ...] | None:
    """The strides by which code reads a constant that is not packed, if they are others than its rows' own."""
    buffer = plan.buffers[constant.buffer]
    sizes = {str(size): actual for size, actual in zip(buffer.tensor.shape, array.shape, strict=True)}
    wanted = tuple(evaluate(stride, sizes) for stride in buffer.layout.strides)
    rows = row_major(array.shape)
    return None if all(n <= 1 or a == b for n, a, b in zip(array.shape, wanted, rows, strict=True)) else wanted


def packing_of(constant: PlannedConstant) -> Packing | None:
    """How a constant is packed, as a manifest says it."""
    if constant.packing is None:
        return None
    given, panels = constant.packing, constant.packing.panels
    form = panels.K, panels.N, panels.NR, given.batch, panels.together, panels.unit
    return Packing(*form, given.strides, given.offset)


def _constants(
    planned: Planned,
    signature: Signature,
    weights: Mapping[str, np.ndarray],
    prepared: MutableMapping[str, np.ndarray],
) -> tuple[Constant, ...]:
    plan = planned.plan
    arrays = constant_arrays(planned, signature, weights)
    made: list[Constant] = []
    for constant in plan.constants:
        array = arrays[constant.source]
        if constant.source < len(plan.fixed):
            member, name = WEIGHTS, signature.names[plan.fixed[constant.source]]
        else:
            whole = np.ascontiguousarray(array)
            about = f"{array.dtype.name}{array.shape}".encode()
            member, name = PREPARED, hashlib.sha256(about + whole.tobytes()).hexdigest()[:32]
            prepared[name] = array
        strides = strides_of(plan, constant, array) if constant.packing is None else None
        made.append(Constant(member, name, strides, packing_of(constant)))
    return tuple(made)


def _result(plan: Plan, position: int, number: int) -> Output:
    if number in plan.inputs:
        return Output("replaced" if position in plan.replacing else "input", plan.inputs.index(number))
    if plan.buffers[number].role == "output":
        return Output("output", outputs_of(plan).index(number))
    return Output("constant", [constant.buffer for constant in plan.constants].index(number))


def _texts(sizes: tuple[Size, ...]) -> tuple[int | str, ...]:
    return tuple(size if isinstance(size, int) else str(size) for size in sizes)
