"""Kernels are compiled in threads, a module each, and loaded as soon as they are there."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from weft.backends.nvidia.code import DeviceCode, Launch
from weft.backends.nvidia.compile import KernelCompiler, annotate, annotate_in_place
from weft.backends.nvidia.driver.libcuda import DeviceFacts, Driver
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.target import target_named
from weft.errors import CompilationError, LoweringError, UnsupportedDeviceError
from weft.forks import BACKGROUND, COMPILING
from weft.ops.base import OpSpec
from weft.pipelines import compile_kernels
from weft.runtime.cuda import cubins
from weft.testing.gpu.corpus import generated_ops, op_kernels
from weft.tile.dialect import KernelOp

from .fakes import FakeLibrary
from .ptxas import assemble, needs_ptxas

TARGET = target_named("sm_90a")
PASSES = nvidia_kernel_passes()
FEW = ("add", "exp", "sum", "cumsum", "transpose")


@pytest.fixture(scope="module")
def kernels() -> dict[str, KernelOp]:
    specs: list[OpSpec] = [spec for spec in generated_ops() if spec.name in FEW]
    return {name: kernel for spec in specs for name, kernel in op_kernels(spec).items()}


@needs_ptxas
def test_modules_are_what_each_kernel_gives_alone_and_join_to_one(kernels: dict[str, KernelOp]) -> None:
    code = compile_kernels(kernels, TARGET)
    assert list(code.modules) == list(code.launches) == list(kernels)
    for name in list(kernels)[::7]:
        assert compile_kernels({name: kernels[name]}, TARGET).modules[name] == code.modules[name]
    found = assemble(code.ptx, TARGET.arch)
    assert not found.error and found.kernels.keys() == kernels.keys()


def test_no_kernels_are_no_module() -> None:
    code = compile_kernels({}, TARGET)
    assert code.ptx == "" and not code.modules


def test_a_kernel_that_nobody_needs_is_annotated_in_place(kernels: dict[str, KernelOp]) -> None:
    for kernel in kernels.values():
        annotated, launch = annotate(kernel, TARGET, PASSES)
        own = kernel.clone()
        assert annotate_in_place(own, TARGET, PASSES) == launch
        assert str(own) == str(annotated)


def test_each_kernel_is_handed_on_by_the_thread_that_made_it(kernels: dict[str, KernelOp]) -> None:
    loaded: dict[str, tuple[str, Launch]] = {}
    threads: set[str] = set()

    def load(name: str, ptx: str, launch: Launch) -> None:
        loaded[name] = ptx, launch
        threads.add(threading.current_thread().name)

    with KernelCompiler(TARGET, PASSES, load) as compiler:
        compiler.add(kernels)
        code = compiler.code()
    compiler.wait()
    assert loaded == {name: (code.modules[name], code.launches[name]) for name in kernels}
    assert threading.current_thread().name not in threads


@pytest.mark.parametrize("slow", [False, True])
def test_only_kernels_with_products_are_left_to_whoever_needs_them(
    kernels: dict[str, KernelOp], slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft.backends.nvidia.compile.compiles_slowly", lambda kernel: slow)
    name = next(iter(kernels))
    goes_on, loaded = threading.Event(), threading.Event()

    def load(*kernel: object) -> None:
        goes_on.wait()
        loaded.set()

    with KernelCompiler(TARGET, PASSES, load) as compiler:
        compiler.add({name: kernels[name]})
        code = compiler.code()
    assert code.is_awaited is slow and compiler in BACKGROUND and not loaded.is_set()
    assert f".entry {name}" in code.modules[name] and list(code.modules) == [name] and len(code.modules) == 1
    goes_on.set()
    compiler.wait()
    assert loaded.is_set()


def test_what_llvm_refuses_is_told_to_whoever_needs_it(
    kernels: dict[str, KernelOp], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KernelCompiler, "_emitted", lambda *given: ("nonsense", Launch(32, 0)))
    with KernelCompiler(TARGET, PASSES) as compiler:
        compiler.add(kernels)
        with pytest.raises(CompilationError, match="LLVM refused"):
            compiler.code()


def test_a_kernel_without_code_is_named_and_no_thread_is_left(
    kernels: dict[str, KernelOp], monkeypatch: pytest.MonkeyPatch
) -> None:
    last = list(kernels)[-1]

    def refuse(_: KernelCompiler, name: str, kernel: KernelOp) -> tuple[str, Launch]:
        if kernel is kernels[last]:
            raise LoweringError("no such thing")
        return 'target triple = "nvptx64-nvidia-cuda"\n', Launch(32, 0)

    monkeypatch.setattr(KernelCompiler, "_emitted", refuse)
    before = threading.active_count()
    compiler = KernelCompiler(TARGET, PASSES)
    with pytest.raises(LoweringError, match=f"{last}: no such thing") as caught, compiler:
        compiler.add(kernels, {last: {"source"}})
    assert caught.value.sources == {"source"} and threading.active_count() <= before


def test_nobody_waits_for_what_an_error_has_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.backends.nvidia.compile.llvm_to_ptx", lambda *given: time.sleep(0.05) or "")
    monkeypatch.setattr(KernelCompiler, "_emitted", lambda *given: ("", Launch(32, 0)))
    monkeypatch.setattr("weft.backends.nvidia.compile.compiles_slowly", lambda kernel: False)
    many: dict[str, Any] = dict.fromkeys(map(str, range(4 * (os.cpu_count() or 1))))
    with pytest.raises(LoweringError), KernelCompiler(TARGET, PASSES) as compiler:
        compiler.add(many)
        raise LoweringError("no such thing")
    waiting = threading.Thread(target=compiler.wait, daemon=True)
    waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeLibrary, Driver, DeviceFacts]]:
    library = FakeLibrary()
    driver = Driver(library)
    monkeypatch.setattr(cubins, "driver", lambda: driver)
    monkeypatch.setattr(cubins, "device_facts", driver.facts)
    yield library, driver, driver.facts(0)


def test_whoever_is_interrupted_lets_others_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, interval = KernelCompiler(target_named("sm_80"), nvidia_kernel_passes()), sys.getswitchinterval()

    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiler._pool, "shutdown", interrupted)
    with pytest.raises(KeyboardInterrupt), compiler:
        pass
    taken: list[bool] = []

    def take() -> None:
        taken.append(COMPILING.acquire(timeout=60))
        COMPILING.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    assert taken == [True] and sys.getswitchinterval() == interval


def test_what_was_loaded_early_is_not_loaded_again(
    fake: tuple[FakeLibrary, Driver, DeviceFacts], kernels: dict[str, KernelOp]
) -> None:
    library, driver, facts = fake
    loader = cubins.EarlyLoader(0, None)
    with KernelCompiler(TARGET, PASSES, loader) as compiler:
        compiler.add(kernels)
        code = compiler.code()
    loaded = cubins.load_code(driver, facts, code, None)
    again = cubins.load_code(driver, facts, code, None)
    assert library.calls.count("cuLibraryLoadData") == len(kernels)
    assert loaded.functions.keys() == kernels.keys() and loaded.modules == again.modules


def test_modules_go_with_the_last_program_that_has_them(
    fake: tuple[FakeLibrary, Driver, DeviceFacts], kernels: dict[str, KernelOp]
) -> None:
    library, driver, facts = fake
    code = compile_kernels(dict(list(kernels.items())[:4]), TARGET)
    loaded = cubins.load_code(driver, facts, code, None)
    kept = cubins.load_code(driver, facts, code, None)
    del loaded
    assert "cuLibraryUnload" not in library.calls
    del kept
    assert library.calls.count("cuLibraryUnload") == 4


def test_an_error_of_early_loading_is_left_to_loading(
    fake: tuple[FakeLibrary, Driver, DeviceFacts], kernels: dict[str, KernelOp]
) -> None:
    library, driver, facts = fake
    name = next(iter(kernels))
    code = compile_kernels({name: kernels[name]}, TARGET)
    launch = Launch(128, 300_000)
    cubins.EarlyLoader(0, None)(name, code.ptx, launch)
    with pytest.raises(UnsupportedDeviceError, match=name):
        cubins.load_code(driver, facts, DeviceCode(code.arch, code.modules, {name: launch}), None)
    assert library.calls.count("cuLibraryUnload") == 2
