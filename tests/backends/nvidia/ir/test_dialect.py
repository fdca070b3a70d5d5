"""The nvidia dialect: kernels for a GPU are read back as they are printed, and make the same code."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.irdl import IRDLOperation

import weft.backends.nvidia as backend
from weft.backends.nvidia.ir.registry import ANNOTATIONS, Nvidia, parse_kernels
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.plan.fuse_small_kernels import fuse_small_kernels
from weft.backends.nvidia.target import target_named
from weft.errors import ParseError
from weft.pipelines import annotate
from weft.testing.gpu.suites import SUITES
from weft.testing.read_back import difference, read_back
from weft.tile.dialect import KernelOp
from weft.tile.text import print_program

from ..plan.test_fuse_small_kernels import down
from ..row_kernels import planned
from ..transforms.test_raise_pointers import kernel_for, matrices, product

TARGET, PASSES = target_named("sm_90a"), nvidia_kernel_passes()


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def linear(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w) + r


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def chained() -> Mapping[str, KernelOp]:
    found = planned(down, (40, 24))
    fuse_small_kernels(found, TARGET, PASSES)
    return found.kernels


def in_the_language() -> Mapping[str, KernelOp]:
    extra = {"ta": False, "END": "wraps", "MASKED": True, "BM": 128, "BN": 128, "BK": 64}
    return {"product": kernel_for(product, (*matrices(300, 300, 300), *[300] * 3, *[304] * 3), **extra)}


HEADS = (2, 8, 512, 128)
KERNELS: dict[str, Callable[[], Mapping[str, KernelOp]]] = {
    "rows": lambda: planned(softmax, (8192, 32767)).kernels,
    "rows that several loops walk": lambda: planned(softmax, (4096, 32768)).kernels,
    "short rows": lambda: planned(softmax, (64, 128)).kernels,
    "products": lambda: planned(linear, (4096, 4096), (4096, 4096), (4096, 4096)).kernels,
    "few rows": lambda: planned(lambda x, w: x @ w, (8, 4096), (4096, 14336)).kernels,
    "attention": lambda: planned(attention, HEADS, HEADS, HEADS).kernels,
    "a chain": chained,
    "in the language": in_the_language,
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_read_back_and_make_the_same_code(name: str, arch: str) -> None:
    for kernel in KERNELS[name]().values():
        assert difference(annotate(kernel, target_named(arch))[0], target_named(arch)) is None


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_kernels_of_the_benchmarks_are_read_back(suite: str) -> None:
    found = read_back([f"gpu/{suite}/*"])
    assert found.kernels and not found.wrong


def test_kernels_of_both_roads_are_read_back_as_they_are_made() -> None:
    found = read_back(["gpu/gemm/gemm_4096x4096x4096_bf16.ptx", "gpu/kernels/add_2e28.ptx"])
    product, add = sorted(found.kernels, key=lambda text: "nvidia.wgmma" not in text)
    assert "nvidia.tma_load" in product and "tile.gather" in add and not found.wrong


def test_a_kernel_that_comes_out_otherwise_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = planned(softmax, (64, 128)).kernels.values()
    annotated, _ = annotate(kernel, TARGET)
    parse = parse_kernels

    def other(text: str) -> ModuleOp:
        return parse(text.replace('function = "exp"', 'function = "log"'))

    monkeypatch.setattr("weft.testing.read_back.parse_kernels", other)
    assert difference(annotated, TARGET) == "is printed otherwise when it was read back"


def modules() -> Sequence[Any]:
    found = pkgutil.walk_packages(backend.__path__, f"{backend.__name__}.")
    return [importlib.import_module(each.name) for each in found]


def test_every_op_of_the_target_is_in_the_dialect() -> None:
    found = {
        each
        for module in modules()
        for each in vars(module).values()
        if inspect.isclass(each) and issubclass(each, IRDLOperation) and getattr(each, "name", "").startswith("nvidia.")
    }
    assert found == set(Nvidia.operations) and len(found) >= 34
    assert len({each.name for each in found}) == len(found)


def test_every_annotation_is_known_and_has_a_meaning() -> None:
    own = {each.name for each in (*Nvidia.operations, *Nvidia.attributes)}
    said = {
        name
        for module in modules()
        for name in re.findall(r'"(nvidia\.[a-z_]+)"', Path(module.__file__).read_text())
        if name not in own or name in ANNOTATIONS
    }
    assert said <= ANNOTATIONS.keys() and all(each.meaning for each in ANNOTATIONS.values())


WRONG = {
    "nvidia.warps = 4 : i64": ("nvidia.wraps = 4 : i64", "nvidia.wraps, which has no meaning"),
    "threads = ": ("thread = ", "a launch has threads"),
    "#nvidia.layout<": ("#nvidia.layouts<", "layouts"),
    ": registers ": (": registers x@0 ", "not"),
    "nvidia.layouts = [": ('nvidia.layouts = ["no", ', "are no layouts"),
    '"nvidia.online_softmax"(': ('"nvidia.exponential"(', "nvidia.exponential is not registered"),
    "nvidia.warps = ": ("nvidia.dynamic, nvidia.warps = ", "nvidia.dynamic stands on tile.for, not on tile.kernel"),
}


@pytest.mark.parametrize("old", WRONG)
def test_what_is_wrong_with_a_text_is_said(old: str) -> None:
    (kernel,) = planned(softmax, (8192, 4096)).kernels.values()
    text = print_program(annotate(kernel, TARGET)[0])
    new, said = WRONG[old]
    assert old in text
    with pytest.raises(ParseError, match=re.escape(said)) as caught:
        parse_kernels(text.replace(old, new, 1), "wrong.mlir")
    assert caught.value.location is not None and caught.value.location.startswith("wrong.mlir")
