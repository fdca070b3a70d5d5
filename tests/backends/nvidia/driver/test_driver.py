"""The driver's results become errors that say what is wrong; code is loaded as its launches ask."""

from __future__ import annotations

import pytest

from weft.backends.nvidia.code import Launch
from weft.backends.nvidia.driver.libcuda import Driver, load_driver
from weft.backends.nvidia.driver.modules import load_module, ptx_to_cubin
from weft.errors import (
    CompilationError,
    DeviceError,
    DeviceMemoryError,
    KernelFaultError,
    NoDeviceError,
    OldDriverError,
    UnsupportedDeviceError,
)

from ..fakes import FakeLibrary


def test_without_a_driver_the_error_says_so() -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    with pytest.raises(NoDeviceError, match=r"no driver.*libcuda") as caught:
        load_driver(missing)
    assert caught.value.hint


def test_without_a_gpu_the_error_says_so() -> None:
    with pytest.raises(NoDeviceError, match="no CUDA-capable device") as caught:
        Driver(FakeLibrary(cuInit=100))
    assert (caught.value.result, caught.value.number) == ("CUDA_ERROR_NO_DEVICE", 100)
    assert "CUDA_VISIBLE_DEVICES" in str(caught.value)


def test_an_old_driver_is_named_with_its_version() -> None:
    with pytest.raises(OldDriverError, match=r"CUDA 11\.4.*needs 12\.0"):
        Driver(FakeLibrary(version=11040))


@pytest.mark.parametrize(
    ("number", "kind"), [(2, DeviceMemoryError), (222, OldDriverError), (700, KernelFaultError), (999, DeviceError)]
)
def test_results_have_their_own_errors(number: int, kind: type[DeviceError]) -> None:
    error = Driver(FakeLibrary()).error(number, "something failed")
    assert type(error) is kind and error.number == number
    assert "something failed" in str(error)


def test_facts_name_the_architecture() -> None:
    facts = Driver(FakeLibrary()).facts(0)
    assert (facts.name, facts.arch, facts.multiprocessors) == ("NVIDIA H200", "sm_90a", 132)
    assert facts.is_supported and facts.memory_bytes == 140 << 30
    old = Driver(FakeLibrary(capability=(7, 5))).facts(0)
    assert old.arch == "sm_75" and not old.is_supported


@pytest.mark.parametrize(
    ("arch", "runs"), [("sm_90a", True), ("sm_80", True), ("sm_90", True), ("sm_100a", False), ("sm_89", True)]
)
def test_which_code_runs_on_a_hopper(arch: str, runs: bool) -> None:
    assert Driver(FakeLibrary()).facts(0).runs(arch) is runs


def test_code_of_one_generation_runs_nowhere_else() -> None:
    blackwell = Driver(FakeLibrary(capability=(12, 0))).facts(0)
    assert blackwell.runs("sm_120a") and blackwell.runs("sm_80")
    assert not blackwell.runs("sm_90a") and not blackwell.runs("sm_100f")


def test_what_the_drivers_compiler_says_is_in_the_error() -> None:
    library = FakeLibrary()
    library.said = b"ptxas application ptx input, line 3; error : unknown opcode"
    with pytest.raises(CompilationError, match="line 3; error : unknown opcode"):
        ptx_to_cubin(Driver(library), "nonsense")
    assert library.calls[-1] == "cuLinkDestroy"


def test_ptx_that_is_too_new_means_an_old_driver() -> None:
    with pytest.raises(OldDriverError, match="unsupported toolchain"):
        ptx_to_cubin(Driver(FakeLibrary(cuLinkAddData_v2=222)), ".version 99.0")


def test_memory_that_runs_out_while_loading_leaves_nothing() -> None:
    library = FakeLibrary(cuFuncGetAttribute=2)
    driver = Driver(library)
    with pytest.raises(DeviceMemoryError):
        load_module(driver, driver.facts(0), b"cubin", {"k": Launch(128, 0)})
    assert library.calls[-1] == "cuLibraryUnload"


def test_a_module_is_unloaded_in_its_own_context() -> None:
    library = FakeLibrary()
    driver = Driver(library)
    loaded = load_module(driver, driver.facts(0), b"cubin", {"k": Launch(128, 0)})
    del loaded
    exchange = "cuThreadExchangeStreamCaptureMode"
    unloading = ["cuCtxPushCurrent_v2", exchange, "cuLibraryUnload", exchange, "cuCtxPopCurrent_v2"]
    assert library.calls[-5:] == unloading
    library.results["cuCtxPushCurrent_v2"] = 709
    load_module(driver, driver.facts(0), b"cubin", {"k": Launch(128, 0)})
    assert library.calls[-1] == "cuCtxPushCurrent_v2"


def test_large_shared_memory_and_clusters_are_asked_for() -> None:
    library = FakeLibrary()
    driver = Driver(library)
    launches = {"small": Launch(128, 1024), "large": Launch(256, 100_000), "wide": Launch(128, 0, cluster=16)}
    loaded = load_module(driver, driver.facts(0), b"cubin", launches)
    assert library.attributes == [(8, 100_000), (14, 1)]
    assert loaded.functions["small"].registers == 42 and loaded.functions["small"].local_bytes == 16


@pytest.mark.parametrize(("shared", "attributes"), [(40_000, [(9, 50)]), (100_000, [(8, 100_000)])])
def test_half_of_the_memory_is_a_cache_for_threads_that_read_ahead(
    shared: int, attributes: list[tuple[int, int]]
) -> None:
    """Two blocks of the first fit the other half."""
    library = FakeLibrary()
    driver = Driver(library)
    launches = {"k": Launch(256, shared, programmatic=True, ahead=True), "other": Launch(32, 0, programmatic=True)}
    load_module(driver, driver.facts(0), b"cubin", launches)
    assert library.attributes == attributes


def test_a_kernel_that_cannot_fit_is_refused_before_it_is_launched() -> None:
    driver = Driver(FakeLibrary())
    with pytest.raises(UnsupportedDeviceError, match="k takes 128 threads and 300000 bytes"):
        load_module(driver, driver.facts(0), b"cubin", {"k": Launch(128, 300_000)})


def test_kernels_that_loop_fill_the_device() -> None:
    driver = Driver(FakeLibrary())
    launches = {
        "plain": Launch(128, 0),
        "loops": Launch(128, 0, persistent=True),
        "clusters": Launch(128, 0, cluster=4, blocks_per_program=4, persistent=True),
    }
    functions = load_module(driver, driver.facts(0), b"cubin", launches).functions
    assert functions["plain"].programs_launched(10**6) == 10**6
    assert functions["loops"].programs_launched(10**6) == 264 and functions["loops"].programs_launched(7) == 7
    assert functions["clusters"].programs_launched(10**6) == 30
