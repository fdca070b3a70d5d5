"""The ops' samples on a GPU, each a compiled program of its own, judged as on the CPU.

`python -m weft.testing.gpu.op_checks [i/n] [--least COUNT]` runs them in one process, which is what compute-sanitizer
watches: sizes are small, and every op has kernels of its own.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import torch

from weft.backends.nvidia.target import NvidiaTarget, target_of_capability
from weft.config import Config
from weft.errors import WeftError
from weft.frontends.torch.execution.reference import to_array, to_tensor
from weft.pipelines import compile_nvidia
from weft.testing.conformance.journal import part
from weft.testing.gpu.corpus import generated_ops, op_function
from weft.testing.op_cases import OpCase, op_cases


@cache
def target_here() -> NvidiaTarget:
    """What this machine's GPU runs."""
    properties = torch.cuda.get_device_properties(0)
    return target_of_capability(properties.major, properties.minor, properties.multi_processor_count)


def cases() -> list[OpCase]:
    """Every sample of every op that has kernels of Weft's own."""
    return [case for spec in generated_ops() for case in op_cases(spec)]


def run_on_gpu(case: OpCase) -> tuple[list[np.ndarray], list[str]]:
    """The op's results, computed on the GPU, and the names of its kernels."""
    from weft.frontends.torch.execution.cuda_executor import CudaExecutor, load_program
    from weft.frontends.torch.importer.opaque import OpaqueRuntime

    compiled = compile_nvidia(op_function(case), Config(cache=False), target_here())
    program = load_program(compiled.plan, compiled.code, compiled.prepare)
    executor = CudaExecutor(program, OpaqueRuntime({}), cuda_graphs=False)
    tensors = [to_tensor(array).cuda() for array in case.arrays()]
    results = [to_array(result.cpu()) for result in executor(tensors, {})]
    return results, list(compiled.code.launches)


def checked(chosen: Sequence[OpCase]) -> Iterator[tuple[str, str, list[str]]]:
    """The name of each case, what is wrong with it (nothing, if it is right), and its kernels."""
    for case in chosen:
        try:
            results, kernels = run_on_gpu(case)
        except WeftError as error:
            yield case.name, f"{type(error).__name__}: {error}", []
            continue
        yield case.name, case.complaint(results), kernels


def main(arguments: Sequence[str]) -> int:
    """Run a part of the cases, say what is wrong, and how many distinct kernels ran."""
    shard, least, seconds = (0, 1), 0, 400.0
    for argument in arguments:
        if "/" in argument:
            index, _, count = argument.partition("/")
            shard = int(index), int(count)
        elif argument.startswith("--least="):
            least = int(argument.removeprefix("--least="))
        elif argument.startswith("--seconds="):
            seconds = float(argument.removeprefix("--seconds="))
    start, ran, wrong, kernels = time.perf_counter(), 0, 0, set[str]()
    for name, complaint, launched in checked(part(cases(), shard)):
        ran += 1
        kernels.update(launched)
        if complaint:
            wrong += 1
            print(f"WRONG {name}: {complaint}", flush=True)
        if time.perf_counter() - start > seconds:
            print(f"no time was left after {name}", flush=True)
            break
    print(f"{ran} cases, {len(kernels)} kernels, {wrong} wrong", flush=True)
    return int(wrong > 0 or len(kernels) < least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
