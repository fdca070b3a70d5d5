"""Compiles elementwise kernels with LLVM: run on this machine, or turned into assembly for others."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from weft.backends.cpu.target import CpuTarget, host_target
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.cast import load_convert, store_convert
from weft.backends.llvm.values import V, i64, memory_type, vector
from weft.ir.types import DType

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

Emit = Callable[[Function, list[V]], V]

TRIPLES = {
    "x86-64-v2": "x86_64-unknown-linux-gnu",
    "skylake": "x86_64-unknown-linux-gnu",
    "skylake-avx512": "x86_64-unknown-linux-gnu",
    "neoverse-n1": "aarch64-unknown-linux-gnu",
}

# LLVM aborts the process when it cannot select an instruction, so code for other machines is made in a child.
_COMPILE = """
import json, sys
from weft.backends.cpu.target import CpuTarget, compile_assembly

target = CpuTarget(*sys.argv[1:], "")
for name, text in json.load(sys.stdin).items():
    print(json.dumps([name, None]), flush=True)
    print(json.dumps([name, compile_assembly(text, target)]), flush=True)
"""


def kernel_text(machine: CpuTarget, emit: Emit, sources: Sequence[DType], target: DType, lanes: int) -> str:
    """`for (i = 0; i < n; i += lanes) out[i:] = f(in[i:], ...)`"""
    module = Module(machine.triple, machine.lacks)
    params = [("ptr", f"in{i}") for i in range(len(sources))]
    b = Function(module, "kernel", [*params, ("ptr", "out"), ("i64", "n")])
    *inputs, output, n = b.args
    with b.loop(i64(0), n, i64(lanes)) as i:
        values: list[V] = []
        for pointer, dtype in zip(inputs, sources, strict=True):
            memory = memory_type(dtype)
            raw = b.load(vector(memory, lanes), b.gep(pointer, i, memory), 1)
            values.append(load_convert(b, raw, dtype))
        result = store_convert(b, emit(b, values), target)
        b.store(result, b.gep(output, i, memory_type(target)), 1)
    b.finish()
    return str(module)


@dataclass(frozen=True)
class Jit:
    """Kernels for this machine, and assembly for the ones in `TRIPLES`."""

    def run(
        self, emit: Emit, arrays: Sequence[np.ndarray], sources: Sequence[DType], target: DType, lanes: int
    ) -> np.ndarray:
        count = arrays[0].size
        padded = -(-count // lanes) * lanes
        inputs = [np.resize(np.ascontiguousarray(array).ravel(), padded) for array in arrays]
        out = np.empty(padded, target.numpy)
        module = llvm.parse_assembly(kernel_text(host_target(), emit, sources, target, lanes))
        module.verify()
        features = llvm.get_host_cpu_features().flatten()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True
        )
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (len(inputs) + 1), ctypes.c_int64)
        kernel = signature(engine.get_function_address("kernel"))
        kernel(*(array.ctypes.data for array in [*inputs, out]), padded)
        return out[:count].reshape(arrays[0].shape)

    def text(self, cpu: str, emit: Emit, sources: Sequence[DType], target: DType, lanes: int) -> str:
        return kernel_text(CpuTarget(TRIPLES[cpu], cpu, ""), emit, sources, target, lanes)

    def calls(self, cpu: str, texts: Mapping[str, str]) -> dict[str, list[str]]:
        """The calls left in each kernel's machine code; fails with the name of the one that LLVM aborts on."""
        child = subprocess.run(
            [sys.executable, "-c", _COMPILE, TRIPLES[cpu], cpu],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            cwd=Path(__file__).parent,
        )
        answers: dict[str, str] = dict(json.loads(line) for line in child.stdout.splitlines())
        assert child.returncode == 0, f"{cpu}: {list(answers)[-1:]}: {child.stderr[-500:]}"
        found: dict[str, list[str]] = {}
        for name, assembly in answers.items():
            lines = [line.split("//")[0].split("#")[0].split() for line in assembly.splitlines()]
            found[name] = [" ".join(line) for line in lines if line and line[0] in ("bl", "blr", "call", "callq")]
        return found


@pytest.fixture(scope="session")
def jit() -> Jit:
    return Jit()


@pytest.fixture(params=sorted(TRIPLES))
def cpu(request: pytest.FixtureRequest) -> str:
    return request.param
