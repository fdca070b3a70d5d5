"""`weft doctor`: what Weft finds on this machine, whether it can compile here, and what to do if not."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from rich.table import Table
from rich.text import Text

from weft import __version__
from weft.tools.terminal import Terminal, counted

# The extras that this version makes use of, by the module that shows that one is there.
EXTRAS = {"torch": "torch", "onnx": "onnx", "plots": "matplotlib"}


@dataclass(frozen=True)
class Finding:
    """One line of the report. `status` is ok, note (works, but less well than it could) or failed."""

    name: str
    status: str
    text: str
    advice: str = ""
    figures: dict[str, Any] = field(default_factory=dict[str, Any])


def doctor(terminal: Terminal) -> None:
    """Examine, report, and exit with 1 if something failed."""
    findings: list[Finding] = []
    for name, examine in EXAMINATIONS.items():
        with terminal.working(f"looking at {name}"):
            findings.append(_examined(name, examine))
    failed = [finding for finding in findings if finding.status == "failed"]
    terminal.show(_table(findings))
    terminal.show("[green]Weft works here.[/]" if not failed else f"[red]{len(failed)} failed.[/]")
    figures = {f.name: {"status": f.status, "text": f.text, "advice": f.advice, **f.figures} for f in findings}
    terminal.finish({"ok": not failed, "version": __version__, "findings": figures}, code=1 if failed else 0)


def _examined(name: str, examine: Callable[[], Finding]) -> Finding:
    # Whatever goes wrong is what the report is for.
    try:
        return examine()
    except Exception as error:
        return Finding(name, "failed", f"{type(error).__name__}: {error}", "reinstall with `pip install -U weft`")


def _table(findings: list[Finding]) -> Table:
    colors = {"ok": "green", "note": "yellow", "failed": "red"}
    table = Table(title=f"Weft {__version__}", title_justify="left")
    for column in ("", "", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        status = Text(finding.status, colors[finding.status])
        table.add_row(status, finding.name, Text(finding.text), Text(finding.advice))
    return table


def python() -> Finding:
    supported = (3, 11) <= sys.version_info[:2] < (3, 14)
    advice = "" if supported else "use Python 3.11, 3.12 or 3.13"
    text = f"{platform.python_version()} on {platform.platform()}"
    return Finding("python", "ok" if supported else "failed", text, advice, {"version": platform.python_version()})


def processor() -> Finding:
    from weft.backends.cpu.target import host_target

    target = host_target()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    known = target.triple.startswith(("x86_64", "aarch64"))
    text = f"{target.cpu} ({target.triple}), {target.vector_bits}-bit vectors, {cores} cores"
    advice = "" if known else "Weft makes code for x86-64 and AArch64"
    figures = {"cpu": target.cpu, "triple": target.triple, "vector_bits": target.vector_bits, "cores": cores}
    return Finding("processor", "ok" if known else "failed", text, advice, figures)


def llvm() -> Finding:
    binding: Any = importlib.import_module("llvmlite.binding")  # it has no types
    version, wrapper = ".".join(map(str, binding.llvm_version_info)), metadata.version("llvmlite")
    return Finding("llvm", "ok", f"{version} (llvmlite {wrapper})", "", {"llvm": version, "llvmlite": wrapper})


def torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("torch", "note", "not installed", "`pip install weft[torch]` for torch.compile")
    import torch
    from torch._dynamo import list_backends  # pyright: ignore[reportUnknownVariableType]

    threads = torch.get_num_threads()
    figures = {"version": torch.__version__, "threads": threads}
    text = f"{torch.__version__}, {threads} threads"
    if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 11):
        return Finding("torch", "failed", text, "Weft needs torch 2.11 or newer: `pip install -U torch`", figures)
    if "weft" not in list_backends(exclude_tags=()):
        return Finding("torch", "failed", f"{text}, without the backend `weft`", "reinstall Weft with pip", figures)
    return Finding("torch", "ok", text, "", figures)


def gpu() -> Finding:
    """Which GPUs there are, and whether Weft makes code for them. None at all is no fault."""
    from weft.backends.nvidia.driver.libcuda import OLDEST_CAPABILITY, load_driver, version_text
    from weft.errors import DeviceError, NoDeviceError

    try:
        driver = load_driver()
        devices = [driver.facts(number) for number in range(driver.device_count())]
    except NoDeviceError as error:
        return Finding(
            "gpu", "ok", f"none: {error.message}", "" if "is no driver" in error.message else error.hint or ""
        )
    except DeviceError as error:
        return Finding("gpu", "note", error.message, error.hint or "")
    version = version_text(driver.version)
    names = [f"{facts.name} ({facts.arch}{'' if facts.is_supported else ', not supported'})" for facts in devices]
    figures = {
        "driver": version,
        "devices": [
            {"name": facts.name, "arch": facts.arch, "supported": facts.is_supported, "bytes": facts.memory_bytes}
            for facts in devices
        ],
    }
    text = f"{', '.join(names) or 'none'}, driver of CUDA {version}"
    if all(facts.is_supported for facts in devices):
        return Finding("gpu", "ok", text, "", figures)
    oldest = ".".join(map(str, OLDEST_CAPABILITY))
    return Finding("gpu", "note", text, f"Weft makes code for compute capability {oldest} and newer", figures)


def openmp() -> Finding:
    from weft.runtime.openmp import can_use_threads, loaded_libraries, uses_own_pool

    if not can_use_threads():
        return Finding("openmp", "note", "none: kernels run in one thread", "install torch, which brings one")
    if uses_own_pool():
        return Finding("openmp", "ok", "none: kernels run on Weft's own threads", "", {"libraries": []})
    found = loaded_libraries(r"^lib(gomp|omp|iomp5)[.-]")
    return Finding("openmp", "ok", ", ".join(found) or "in the process", "", {"libraries": found})


def blas() -> Finding:
    from weft.runtime.blas import LIBRARIES, blas_symbols
    from weft.runtime.openmp import loaded_libraries

    if not blas_symbols():
        return Finding("blas", "note", "none: matrix products are generated", "install torch, which brings one")
    found = loaded_libraries(LIBRARIES)
    return Finding("blas", "ok", ", ".join(found), "", {"libraries": found})


def cache() -> Finding:
    from weft.runtime.cache import DiskCache

    store = DiskCache()
    if store.root is None or not store.enabled:
        return Finding("cache", "note", "off", "unset WEFT_CACHE, or set WEFT_CACHE_DIR, to keep compiled programs")
    if (reason := store.unusable()) is not None:
        return Finding("cache", "note", f"{store.root} cannot be used: {reason}", "set WEFT_CACHE_DIR to another place")
    entries = store.entries()
    size = sum(entry.size for entry in entries)
    figures = {"root": str(store.root), "entries": len(entries), "bytes": size, "limit": store.limit_bytes}
    return Finding("cache", "ok", f"{store.root}: {counted(len(entries), 'program')}, {size / 1e6:.1f} MB", "", figures)


def extras() -> Finding:
    found = {name: module for name, module in EXTRAS.items() if _has(module)}
    versions = {name: _version(module.split(".")[0]) for name, module in found.items()}
    missing = [name for name in EXTRAS if name not in found]
    text = ", ".join(f"{name} {version}" for name, version in versions.items()) or "none"
    advice = f"`pip install weft[{','.join(missing)}]` for the others" if missing else ""
    return Finding("extras", "ok", text, advice, {"installed": versions, "missing": missing})


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the parent package
        return False


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(unknown version)"


def targets() -> Finding:
    from weft import discovery
    from weft.backends.target import targets as found_targets

    stated, found = set(discovery.entry_points()), set(found_targets())
    broken = sorted(stated - found)
    advice = f"{', '.join(broken)} cannot be loaded: repair or remove the distribution" if broken else ""
    figures = {"found": sorted(found), "broken": broken}
    return Finding("targets", "note" if broken else "ok", ", ".join(sorted(found)), advice, figures)


def self_test() -> Finding:
    """Compile a softmax from graph to machine code, run it, and compare it with NumPy in float64."""
    import numpy as np

    from weft.config import Config
    from weft.pipelines import compile_cpu
    from weft.runtime.arrays import run_arrays
    from weft.runtime.executable import Executable
    from weft.tile.text import functions_of, parse_program

    start = time.perf_counter()
    (function,) = functions_of(parse_program(SOFTMAX, "self-test"))
    compiled = compile_cpu(function, Config.from_options())
    seconds = time.perf_counter() - start
    x = np.random.default_rng().standard_normal((64, 257)).astype(np.float32)
    (found,) = run_arrays(Executable(compiled.plan, compiled.code), [x])
    exact = np.exp(x.astype(np.float64))
    exact /= exact.sum(axis=1, keepdims=True)
    error = float(np.max(np.abs(found - exact) / exact))
    figures = {"compile_seconds": seconds, "relative_error": error}
    text = f"a softmax compiled in {seconds:.2f} s, relative error {error:.1e}"
    if not error < 1e-5:
        return Finding("self-test", "failed", text, "report it with the output of `weft doctor --json`", figures)
    return Finding("self-test", "ok", text, "", figures)


SOFTMAX = """\
"graph.func"() ({
^bb0(%x: tensor<64x257xf32>):
  %m = "graph.max"(%x) {dims = [1 : i64], keep = true} : (tensor<64x257xf32>) -> tensor<64x1xf32>
  %d = "graph.sub"(%x, %m) : (tensor<64x257xf32>, tensor<64x1xf32>) -> tensor<64x257xf32>
  %e = "graph.exp"(%d) : (tensor<64x257xf32>) -> tensor<64x257xf32>
  %s = "graph.sum"(%e) {dims = [1 : i64], keep = true} : (tensor<64x257xf32>) -> tensor<64x1xf32>
  %y = "graph.div"(%e, %s) : (tensor<64x257xf32>, tensor<64x1xf32>) -> tensor<64x257xf32>
  "graph.return"(%y) : (tensor<64x257xf32>) -> ()
}) {sym_name = "softmax"} : () -> ()
"""

# torch comes first: the OpenMP pool and the BLAS library are those that it loads.
EXAMINATIONS: dict[str, Callable[[], Finding]] = {
    "python": python,
    "processor": processor,
    "llvm": llvm,
    "torch": torch,
    "gpu": gpu,
    "openmp": openmp,
    "blas": blas,
    "cache": cache,
    "extras": extras,
    "targets": targets,
    "self-test": self_test,
}
