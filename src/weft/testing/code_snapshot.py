"""The code of every case of the benchmarks in a folder, and the difference of two such folders.

What a change of the compiler's own shape must not change is what it makes:

    python -m weft.testing.code_snapshot write before
    python -m weft.testing.code_snapshot write after
    python -m weft.testing.code_snapshot compare before after

Cases of the GPU suites are traced with tensors that have no memory, in their full size, and compiled to PTX, which
needs no GPU. Kernels in Triton's language are launched small, and compiled for a GPU beside. Cases of the CPU suites
run once, and are kept as assembly. A case that is there already is not made again.
"""

# torch leaves what its own compilers use without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateImportUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.backends.cpu.target import compile_assembly, host_target
from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.target import NvidiaTarget, target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.triton.enable import enable
from weft.frontends.triton.listings.device_listing import device_listing_of
from weft.frontends.triton.runtime.jit import JITFunction
from weft.pipelines import compile_nvidia
from weft.runtime.record import recording
from weft.testing.bench.benchmark import WEFT, Contender, contenders, quantized_contenders
from weft.testing.bench.benchmark_case import Case
from weft.testing.devices import HostDevice
from weft.testing.gpu.case import GpuCase, Place
from weft.testing.gpu.suites import SUITES
from weft.testing.triton.triton_tutorials import kernels_of

ARCH = "sm_90a"
TRITON_SHRINK = 2048
Make = Callable[[], str]


class _Compiled(Exception):
    """There is code of a graph, and nothing that could be run in its place."""


def gpu_code(case: GpuCase, target: NvidiaTarget) -> str:
    """The PTX of a case. Its tensors have no memory, unless it cannot be built from such: then no graph of it runs."""
    with torch.set_grad_enabled(case.training):
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        try:
            with mode:
                work = case.build(Place(HostDevice()))
        except Exception:  # modules that convert their weights, say
            work, mode = case.build(Place(HostDevice())), nullcontext()
        found: list[str] = []
        config = Config.from_options({"cache": False, **work.options})
        runs = not isinstance(mode, nullcontext)
        backend = partial(_device_backend, config=config, target=target, found=found, runs=runs)
        torch.compiler.reset()
        # Attention is written out, as it is not for a processor: its own op would be torch's here.
        with mode, suppress(_Compiled), sdpa_kernel(SDPBackend.MATH):
            work.start(Contender(WEFT, lambda function: torch.compile(function, backend=backend)))()
    return "".join(found)


def _device_backend(
    module: Any, inputs: Sequence[Any], *, config: Config, target: NvidiaTarget, found: list[str], runs: bool
) -> Any:
    """A backend of `torch.compile` that adds the code of a graph to what is `found`; torch runs it, if it runs."""

    def compiled(graph: Any, _: Any, name: str) -> Any:
        frozen = _weights(inputs) if config.freeze and name == "inference" else ()
        imported = import_graph(graph, name, config, frozen, target.capabilities)
        found.append(_printed(compile_nvidia(imported.function, config, target).code))
        return make_boxed_func(graph.forward if runs else _nothing)

    backend: Any = aot_autograd(
        fw_compiler=partial(compiled, name="forward"),
        bw_compiler=partial(compiled, name="backward"),
        inference_compiler=partial(compiled, name="inference"),
        decompositions=decompositions("cuda"),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
    return backend(module, inputs)


def _nothing(*_: Any) -> Any:
    raise _Compiled


def _weights(inputs: Sequence[Any]) -> frozenset[int]:
    """The places of weights, which need no values here, among the arguments of a graph."""
    context = TracingContext.try_get()
    lifted = list(context.params_flat or ()) if context is not None else []
    return frozenset(
        place
        for place, value in enumerate([*lifted, *inputs])
        if place < len(lifted) or getattr(value, "_dynamo_static_input_type", None) is not None
    )


def _printed(code: DeviceCode) -> str:
    parts = (f"// {name}: {code.launches[name]}\n{text}\n" for name, text in code.modules.items())
    return "".join(parts)


def triton_code(launch: Callable[[], Any], target: NvidiaTarget) -> str:
    """The PTX of the kernels in Triton's language that are launched; they run on the CPU, too."""
    found: list[str] = []

    def see(kernel: JITFunction, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        keywords = {name: value for name, value in keywords.items() if name not in ("grid", "warmup")}
        found.append(_printed(device_listing_of(kernel, arguments, keywords, target)[1]))

    with JITFunction.watching(see):
        launch()
    return "".join(found)


def cpu_code(case: Case) -> str:
    """The assembly of a case, which runs once."""
    torch.compiler.reset()
    chosen = quantized_contenders(case.quantize) if case.quantize else contenders(frozen=case.frozen)
    with torch.set_grad_enabled(case.training), recording(programs=True) as records:
        torch.manual_seed(0)
        start = case.build()
        for contender in chosen:
            if contender.name.startswith(WEFT):
                start(contender)()
    texts = [record.programs["llvm"] for record in records if "llvm" in record.programs]
    return "".join(compile_assembly(text, host_target()) for text in texts)


def cases(tutorials: Path | None) -> Iterator[tuple[str, Make]]:
    """The name of each case, with a folder and a suffix, and what makes its code."""
    from weft.testing.bench.benchmark_kernels import kernel_cases
    from weft.testing.bench.benchmark_models import model_cases, quantized_cases, train_cases
    from weft.testing.bench.benchmark_ops import op_cases

    target = target_named(ARCH)
    for suite, made in SUITES.items():
        for case in made():
            make = _launching(case, target) if suite == "kernels" else lambda case=case: gpu_code(case, target)
            yield f"gpu/{suite}/{case.name}.ptx", make
    if tutorials is not None:
        from weft.testing.triton.triton_tutorial_cases import CASES

        for file, launch in CASES.items():
            yield f"gpu/tutorials/{Path(file).stem}.ptx", _tutorial(tutorials, file, launch, target)
    for made in (op_cases, model_cases, quantized_cases, train_cases, kernel_cases):
        for case in made():
            yield f"cpu/{case.suite}/{case.name}.s", lambda case=case: cpu_code(case)


def _launching(case: GpuCase, target: NvidiaTarget) -> Make:
    def launch() -> None:
        torch.manual_seed(0)
        case.build(Place(HostDevice(), TRITON_SHRINK)).start(Contender(WEFT, lambda function: function))()

    return lambda: triton_code(launch, target)


def _tutorial(checkout: Path, file: str, launch: Callable[[Any], None], target: NvidiaTarget) -> Make:
    def make() -> str:
        with enable(), kernels_of(checkout, file) as kernels:
            return triton_code(lambda: launch(kernels), target)

    return make


def write(folder: Path, patterns: Sequence[str], tutorials: Path | None) -> int:
    """Make the code of all cases; how many failed."""
    failed = 0
    for name, make in cases(tutorials):
        path = folder / name
        if path.exists() or (patterns and not any(fnmatchcase(name, pattern) for pattern in patterns)):
            continue
        try:
            text = make()
        except Exception as error:  # one case that has no code must not keep the others from theirs
            failed += 1
            print(f"{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
            continue
        if not text:  # two of these would be equal, and say nothing
            failed += 1
            print(f"{name}: no code", flush=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(text)
        os.replace(part, path)
        print(f"{name}: {len(text) >> 10} KiB", flush=True)
    return failed


_DEBUGGING = re.compile(r"^\s*(\.loc|\.file|\.cfi_\w+|\.section\s+\.debug\S*|//|\$L__tmp\S*:|\.L?tmp\d+:).*$")
_SYMBOL = re.compile(r"(?:\.globl|\.type|\.visible \.entry|\.func)\s+\(?([\w$.]+)")


def code_lines(text: str) -> list[str]:
    """The lines that are code, with symbols by their number: names and debugging information may differ."""
    numbers = {name: f"symbol{number}" for number, name in enumerate(dict.fromkeys(_SYMBOL.findall(text)))}
    names = "|".join(sorted(map(re.escape, numbers), key=len, reverse=True)) or r"\Z."
    symbol = re.compile(rf"(?<![\w$.])({names})(?![\w$])|(?<![\w$.])({names})(?=_param_)")
    lines: list[str] = []
    for line in text.splitlines():
        if line.strip() and not _DEBUGGING.match(line):
            renamed = symbol.sub(lambda found: numbers[found.group()], line)
            lines.append(renamed.partition("//")[0].rstrip())
    return lines


def compare(before: Path, after: Path) -> int:
    """Say which cases differ; how many."""
    paths = {file.relative_to(root).as_posix() for root in (before, after) for file in root.rglob("*.[ps]*")}
    different = 0
    for path in sorted(paths):
        if not (before / path).exists() or not (after / path).exists():
            print(f"{path}: only in {before if (before / path).exists() else after}")
            different += 1
            continue
        old, new = (code_lines((root / path).read_text()) for root in (before, after))
        if old != new:
            different += 1
            first = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            print(f"{path}: {len(old)} and {len(new)} lines, the first difference is line {first} of its code")
            for sign, lines in (("-", old), ("+", new)):
                print("\n".join(f"  {sign} {line}" for line in lines[first : first + 2]))
    print(f"{len(paths)} cases, {different} differ")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.testing.code_snapshot", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="make the code of all cases")
    writing.add_argument("folder", type=Path)
    writing.add_argument("patterns", nargs="*", help="which cases, as in a shell: 'gpu/gemm/*'; all by default")
    writing.add_argument("--tutorials", type=Path, help="a checkout of Triton, for its tutorials' kernels")
    comparing = commands.add_parser("compare", help="say which cases differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return min(compare(given.before, given.after), 1)
    return min(write(given.folder, given.patterns, given.tutorials), 1)


if __name__ == "__main__":
    sys.exit(main())
