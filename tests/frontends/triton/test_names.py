"""What users import of Triton beside its language: compiling ahead, the cache of files, the device, libraries."""

from __future__ import annotations

import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import weft.triton as triton
import weft.triton.language as tl
from weft.errors import WeftError


@triton.jit
def scale(x, out, factor, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + offsets, tl.load(x + offsets, mask=offsets < n) * factor, mask=offsets < n)


SIGNATURE = {"x": "*fp32", "out": "*fp32", "factor": "fp32", "n": "i32", "BLOCK": "constexpr"}


def test_a_kernel_is_compiled_for_types_that_are_written_down() -> None:
    kernel = triton.compile(triton.compiler.ASTSource(scale, SIGNATURE, {"BLOCK": 64}))
    x, out = torch.randn(100), torch.zeros(100)
    kernel.launch((2, 1, 1), [x.data_ptr(), out.data_ptr(), 2.0, 100])
    assert torch.equal(out, x * 2)
    assert "tile.kernel" in kernel.asm["tile"] and kernel.metadata.name == "scale"
    assert kernel.hash == triton.compiler.ASTSource(scale, SIGNATURE, {(4,): 64}).hash()


@pytest.mark.parametrize(
    ("signature", "constants"),
    [
        ({"x": "*fp32"}, {}),
        ({"wrong": "*fp32"}, {}),
        ({**SIGNATURE, "x": "*fp33"}, {"BLOCK": 64}),
        ({**SIGNATURE, "x": "i32"}, {"BLOCK": 64}),
    ],
)
def test_what_does_not_fit_the_kernel_is_refused(signature: dict[str, str], constants: dict[str, int]) -> None:
    with pytest.raises(WeftError):
        triton.compile(triton.compiler.ASTSource(scale, signature, constants))


def test_there_is_no_target_but_the_processor() -> None:
    from weft.triton.backends.compiler import GPUTarget

    source = triton.compiler.ASTSource(scale, SIGNATURE, {"BLOCK": 64})
    assert triton.compile(source, target=triton.runtime.driver.active.get_current_target()).name == "scale"
    with pytest.raises(WeftError, match="no backend"):
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
    with pytest.raises(WeftError, match="cannot be compiled"):
        triton.compile("kernel.ttir")


@pytest.mark.parametrize("vendor", ["", ".cuda", ".hip"])
def test_libraries_of_vendors_are_one(vendor: str) -> None:
    from weft.frontends.triton.libdevice import functions

    with triton.enable():
        module = importlib.import_module(f"triton.language.extra{vendor}.libdevice")
    assert module.erf is functions.erf


def test_files_are_kept_by_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.triton.runtime.cache import default_cache_dir, get_cache_manager

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    files = get_cache_manager("abc")
    assert files.get_file("a.txt") is None and files.get_group("all") is None
    path = files.put("text", "a.txt", binary=False)
    files.put(b"bytes", "b.bin")
    files.put_group("all", {"a.txt": path, "gone": ""})
    assert path.startswith(default_cache_dir()) and Path(path).read_text() == "text"
    again = get_cache_manager("abc")
    assert again.has_file("b.bin") and again.get_group("all") == {"a.txt": path}
    with pytest.raises(WeftError):
        get_cache_manager(f"..{os.sep}abc")


def test_the_device_has_properties() -> None:
    device = triton.runtime.driver.active.get_current_device()
    properties = triton.runtime.driver.active.utils.get_device_properties(device)
    assert properties["multiprocessor_count"] >= 1 and properties["max_shared_mem"] > 0


def test_files_that_threads_put_at_once_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.triton.runtime.cache import get_cache_manager

    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path))
    texts = [str(number) * 5000 for number in range(8)]

    def put_and_read(number: int) -> set[str]:
        files, seen = get_cache_manager("shared"), set[str]()
        for _ in range(40):
            seen.add(Path(files.put(texts[number], "one.txt", binary=False)).read_text())
        return seen

    with ThreadPoolExecutor(8) as pool:
        seen = set[str]().union(*pool.map(put_and_read, range(8)))
    assert seen <= set(texts), "a file was torn"
    folder = Path(get_cache_manager("shared").cache_dir)
    assert [path.name for path in folder.iterdir()] == ["one.txt"] and folder.stat().st_mode & 0o777 == 0o700
