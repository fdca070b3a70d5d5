"""Runs lowered groups as machine code of another processor: linked into a small program, under user-mode emulation.

module = EmulatedModule([trial], CpuTarget("x86_64-unknown-linux-gnu", "haswell", ""))
((y,),) = module.run([(trial, [x])])

Debian's `qemu-user` and a cross compiler (`gcc-x86-64-linux-gnu`, `gcc-aarch64-linux-gnu`) are all that it takes; code
for this machine's own family runs without emulation. What is missing is said by `missing_for`.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft.backends.cpu.codegen import emit_kernel
from weft.backends.cpu.target import CpuTarget, compile_object
from weft.backends.llvm.builder import Module
from weft.errors import WeftError
from weft.ir.expr import evaluate, product
from weft.testing.kernels import Trial

_SECONDS = 120

_MAIN = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

DECLARATIONS
static void (*const kernels[])(void *, int64_t, int64_t) = {NAMES};

static int64_t word(FILE *file) {
    int64_t value;
    if (fread(&value, 8, 1, file) != 1) exit(2);
    return value;
}

/* Arrays, then calls: a kernel, its first and last program, its arrays. All arrays are written back at the end. */
int main(int count, char **names) {
    FILE *in = fopen(names[1], "rb");
    if (!in) return 3;
    int64_t arrays = word(in), *sizes = malloc(8 * arrays);
    char **data = malloc(sizeof(char *) * arrays);
    for (int64_t i = 0; i < arrays; i++) {
        sizes[i] = word(in);
        data[i] = aligned_alloc(64, (sizes[i] + 127) / 64 * 64);
        if (sizes[i] && fread(data[i], 1, sizes[i], in) != (size_t)sizes[i]) return 4;
    }
    for (int64_t calls = word(in); calls > 0; calls--) {
        int64_t kernel = word(in), begin = word(in), end = word(in), taken = word(in);
        int64_t *arguments = malloc(8 * (taken + 1));
        for (int64_t i = 0; i < taken; i++) arguments[i] = (int64_t)data[word(in)];
        kernels[kernel](arguments, begin, end);
    }
    FILE *out = fopen(names[2], "wb");
    if (!out) return 5;
    for (int64_t i = 0; i < arrays; i++) fwrite(data[i], 1, sizes[i], out);
    return fclose(out);
}
"""


def missing_for(target: CpuTarget) -> str | None:
    """What has to be installed to run code of a processor; None if nothing."""
    family = target.triple.partition("-")[0]
    needed = [_compiler(family), *([] if family == platform.machine() else [f"qemu-{family}"])]
    missing = [name for name in needed if shutil.which(name) is None]
    return f"{' and '.join(missing)} not installed (Debian: qemu-user, gcc-x86-64-linux-gnu)" if missing else None


def _compiler(family: str) -> str:
    return "gcc" if family == platform.machine() else f"{family}-linux-gnu-gcc"


class EmulatedModule:
    """Many trials as machine code of a processor, in one program. Sizes are known."""

    def __init__(self, trials: Sequence[Trial], target: CpuTarget) -> None:
        self.target = target
        module = Module(target.triple, target.lacks)
        self.names: list[str] = []
        for trial in trials:
            for call in trial.lowered.calls:
                self.names.append(call.kernel.op.sym_name.data)
                emit_kernel(module, call.kernel.op, target)
        self.code = compile_object(str(module), target, jit=False)

    def run(self, cases: Sequence[tuple[Trial, Sequence[np.ndarray]]]) -> list[list[np.ndarray]]:
        """The results of each trial by its machine code."""
        arrays: list[np.ndarray] = []
        calls: list[list[int]] = []
        results: list[list[tuple[int, tuple[int, ...]]]] = []
        for trial, given in cases:
            buffers = trial.buffers(given, {})
            places = {id(array): len(arrays) + i for i, array in enumerate(_all(buffers.roles.values()))}
            arrays += _all(buffers.roles.values())
            for call in trial.lowered.calls:
                kernel, taken = call.kernel.op, [places[id(array)] for array in buffers.of(call)]
                programs = evaluate(product(kernel.grid.data), {})
                calls.append([self.names.index(kernel.sym_name.data), 0, programs, len(taken), *taken])
            shapes = [tuple(evaluate(size, {}) for size in tensor.shape) for tensor in trial.outputs]
            outputs = buffers.roles["output"]
            results.append([(places[id(a)], shape) for a, shape in zip(outputs, shapes, strict=True)])
        found = self._run(arrays, calls)
        return [[found[place].reshape(shape) for place, shape in each] for each in results]

    def _run(self, arrays: Sequence[np.ndarray], calls: Sequence[Sequence[int]]) -> list[np.ndarray]:
        with tempfile.TemporaryDirectory(prefix="weft-emulated-") as name:
            folder = Path(name)
            program = self._linked(folder)
            with open(folder / "in", "wb") as file:
                file.write(np.int64(len(arrays)).tobytes())
                for array in arrays:
                    file.write(np.int64(array.nbytes).tobytes() + array.tobytes())
                words = [len(calls), *(word for call in calls for word in call)]
                file.write(np.array(words, np.int64).tobytes())
            family = self.target.triple.partition("-")[0]
            libraries = f"/usr/{family}-linux-gnu"
            runner = [] if family == platform.machine() else [f"qemu-{family}", "-cpu", "max", "-L", libraries]
            _checked([*runner, str(program), str(folder / "in"), str(folder / "out")])
            data, start = (folder / "out").read_bytes(), 0
        found: list[np.ndarray] = []
        for array in arrays:
            found.append(np.frombuffer(data[start : start + array.nbytes], array.dtype))
            start += array.nbytes
        return found

    def _linked(self, folder: Path) -> Path:
        declarations = "\n".join(f"void {name}(void *, int64_t, int64_t);" for name in self.names)
        text = _MAIN.replace("DECLARATIONS", declarations).replace("NAMES", ", ".join(self.names))
        (folder / "main.c").write_text(text)
        (folder / "kernels.o").write_bytes(self.code)
        family = self.target.triple.partition("-")[0]
        sources = [str(folder / "main.c"), str(folder / "kernels.o")]
        _checked([_compiler(family), "-O1", "-no-pie", *sources, "-lm", "-o", str(folder / "program")])
        return folder / "program"


def _all(groups: object) -> list[np.ndarray]:
    return [array for group in groups for array in group]  # type: ignore[attr-defined]


def _checked(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
    if done.returncode != 0:
        raise WeftError(f"{command[0]} failed with {done.returncode}: {done.stderr.strip()[-500:]}")
