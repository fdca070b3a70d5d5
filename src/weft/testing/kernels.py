"""Runs lowered groups on arrays, on the tile interpreter or as machine code: what the tests of lowerings stand on.

group = group_of([Tensor(f32, (4, 5))], lambda b, x: b.exp(x))
trial = Trial.of(group, "exp")
(y,) = run_interpreted(trial, [x])
(y,) = CpuModule([trial]).run(trial, [x])
"""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import llvmlite.binding as llvm
import numpy as np
from xdsl.ir import Block, Region, SSAValue

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import CpuTarget, compile_object, host_target
from weft.backends.llvm.builder import Module
from weft.backends.reference.tile import run_kernel
from weft.ir.expr import evaluate, product
from weft.ir.types import Tensor, contiguous_strides, tensor_of, tensor_type
from weft.lower.dispatch import lower
from weft.lower.lowered import KernelCall, Lowered
from weft.lower.machine import CPU, Machine
from weft.ops.graph import GraphBuilder, GroupOp, YieldOp
from weft.ops.layouts import StridedLayout

Symbols: TypeAlias = Mapping[str, int]

# Bytes on both sides of every array that a kernel may write, to see that it writes nothing else.
_GUARD = 64


def plainer_processors() -> list[str]:
    """Processors whose code this one runs too, and that multiply bytes otherwise: with AVX2, and with SSE2 alone."""
    host = host_target()
    plainer = ["haswell", "x86-64"] if "+avx2" in host.features.split(",") else ["x86-64"]
    return [cpu for cpu in plainer if host.is_x86 and cpu != host.cpu]


def group_of(tensors: Sequence[Tensor], body: Callable[..., SSAValue | Sequence[SSAValue]]) -> GroupOp:
    """A group with the given operands; `body(b, *operands)` appends its ops and returns what leaves it."""
    block = Block(arg_types=[tensor_type(tensor) for tensor in tensors])
    b = GraphBuilder(block)
    made = body(b, *block.args)
    outputs = [made] if isinstance(made, SSAValue) else list(made)
    b.insert(YieldOp.create(operands=outputs))
    return GroupOp.create(regions=[Region(block)])


@dataclass(frozen=True)
class Trial:
    """A lowered group and the types of what it takes and gives, all row-major."""

    lowered: Lowered
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, group: GroupOp, name: str, machine: Machine = CPU) -> Trial:
        inputs = tuple(tensor_of(value.type) for value in group.block.args)
        outputs = tuple(tensor_of(value.type) for value in group.yielded)
        layouts = [[StridedLayout(contiguous_strides(t.shape)) for t in tensors] for tensors in (inputs, outputs)]
        lowered = lower(group, name, layouts[0], layouts[1], machine)
        for call in lowered.calls:
            call.kernel.op.verify()
        return cls(lowered, inputs, outputs)

    def buffers(self, arrays: Sequence[np.ndarray], symbols: Symbols) -> _Buffers:
        inputs = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
        outputs, scratch = (
            [_guarded(tensor, symbols) for tensor in tensors] for tensors in (self.outputs, self.lowered.scratch)
        )
        return _Buffers({"input": inputs, "output": outputs, "scratch": scratch}, symbols)


@dataclass(frozen=True)
class _Buffers:
    """Flat arrays for the pointers of a trial's kernels."""

    roles: Mapping[str, list[np.ndarray]]
    symbols: Symbols

    def of(self, call: KernelCall) -> list[np.ndarray]:
        return [self.roles[argument.role][argument.number] for argument in call.arguments]

    def sizes(self, call: KernelCall) -> list[int]:
        return [self.symbols[name] for name in call.kernel.symbols]

    def results(self, trial: Trial) -> list[np.ndarray]:
        for flat in (*self.roles["output"], *self.roles["scratch"]):
            whole = flat.base
            assert isinstance(whole, np.ndarray) and whole.dtype == np.uint8
            if (whole[:_GUARD] != 0xAB).any() or (whole[_GUARD + flat.nbytes :] != 0xAB).any():
                raise AssertionError(f"{trial.lowered.calls[0].kernel.op.sym_name.data} wrote outside its arrays")
        shapes = [[evaluate(size, self.symbols) for size in tensor.shape] for tensor in trial.outputs]
        return [flat.reshape(shape) for flat, shape in zip(self.roles["output"], shapes, strict=True)]


def _guarded(tensor: Tensor, symbols: Symbols) -> np.ndarray:
    """A flat array full of rubbish, with margins around it."""
    count = evaluate(product(tensor.shape), symbols)
    taken = count * tensor.dtype.bytes
    whole = np.full(taken + 2 * _GUARD, 0xAB, np.uint8)
    return whole[_GUARD : _GUARD + taken].view(tensor.dtype.numpy)


def run_interpreted(trial: Trial, arrays: Sequence[np.ndarray], symbols: Symbols | None = None) -> list[np.ndarray]:
    """The group's results by the meaning of its kernels."""
    buffers = trial.buffers(arrays, symbols or {})
    for call in trial.lowered.calls:
        run_kernel(call.kernel.op, buffers.of(call), buffers.sizes(call))
    return buffers.results(trial)


class CpuModule:
    """Many trials compiled to machine code at once, which is several times faster than one by one.

    The code is for this processor, or for a `target` that this one can run the code of.
    """

    def __init__(self, trials: Sequence[Trial], level: int = 2, target: CpuTarget | None = None) -> None:
        target = target or host_target()
        module = Module(target.triple, target.lacks)
        names = [call.kernel.op.sym_name.data for trial in trials for call in trial.lowered.calls]
        for trial in trials:
            for call in trial.lowered.calls:
                emit_kernel(module, call.kernel.op, target)
        image = compile_object(str(module), target, level)
        builder = llvm.JITLibraryBuilder().add_object_img(image).add_current_process()
        for name in names:
            builder = builder.export_symbol(name)
        # The code lives as long as the compiler does.
        self._compiler = llvm.create_lljit_compiler()
        self._library = builder.link(self._compiler, "trials")
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._functions = {name: prototype(self._library[name]) for name in names}

    def run(self, trial: Trial, arrays: Sequence[np.ndarray], symbols: Symbols | None = None) -> list[np.ndarray]:
        """The group's results by its machine code. Parallel kernels run in uneven parts, last part first."""
        buffers = trial.buffers(arrays, symbols or {})
        for call in trial.lowered.calls:
            kernel = call.kernel.op
            pointers = [array.ctypes.data for array in buffers.of(call)]
            arguments = np.array([*pointers, *buffers.sizes(call)], np.int64)
            count = evaluate(product(kernel.grid.data), buffers.symbols)
            cut = 0 if kernel.serial else count // 3
            for begin, end in ((cut, count), (0, cut)):
                if begin < end:
                    self._functions[kernel.sym_name.data](arguments.ctypes.data, begin, end)
        return buffers.results(trial)
