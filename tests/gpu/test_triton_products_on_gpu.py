"""Products in kernels of Triton's language on a GPU, in every way that they are brought to the tensor cores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "backends" / "nvidia"))
from product_kernels import attention, by_blocks, of_many, persistent, product

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]
BLOCKS = [
    (128, 256, 64, 16),
    (128, 128, 64, 16),
    (64, 256, 64, 16),
    (256, 128, 64, 16),
    (64, 64, 32, 16),
    (64, 64, 32, 1),
]
"""The last number is what distances of rows are multiples of: where it is 1 TMA cannot step over them."""


def matrices(m: int, n: int, k: int, turned: bool = False, pad: int = 16) -> list[torch.Tensor]:
    """Rows are some elements longer than they are read, and poisoned there."""
    found: list[torch.Tensor] = []
    for rows, columns in ((m, k), (n, k) if turned else (k, n), (m, n)):
        whole = torch.full((rows, -(-columns // pad) * pad + pad), float("nan"), device="cuda", dtype=torch.float16)
        if len(found) < 2:
            whole[:, :columns] = torch.randn(rows, columns, device="cuda") / 8
        found.append(whole)
    return found


def agree(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=3e-3, atol=3e-3)


def launch(kernel: Any, tensors: list[torch.Tensor], sizes: tuple[int, ...], grid: int, **options: Any) -> None:
    kernel[(grid,)](*tensors, *sizes, *(tensor.stride(0) for tensor in tensors), **options)


@pytest.mark.parametrize("blocks", BLOCKS)
@pytest.mark.parametrize("end", ["wraps", "zero", "mask"])
def test_a_product_written_with_pointers(blocks: tuple[int, int, int, int], end: str) -> None:
    for turned, (m, n, k) in ((False, (1000, 528, 1040)), (True, (257, 300, 130)), (False, (64, 64, 1000))):
        a, b, c = tensors = matrices(m, n, k, turned, blocks[3])
        sides = dict(zip(("BM", "BN", "BK"), blocks[:3], strict=True))
        grid = -(-m // blocks[0]) * -(-n // blocks[1])
        launch(product, tensors, (m, n, k), grid, ta=turned, END=end, MASKED=True, **sides)
        agree(c[:, :n], a[:, :k], b[:, :k].T if turned else b[:, :n])
        assert c[:, n:].isnan().all()


@pytest.mark.parametrize("shape", [(1024, 1024, 512), (300, 520, 200)])
def test_block_pointers_and_descriptors(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    a, b, c = tensors = matrices(m, n, k)
    launch(by_blocks, tensors, shape, -(-m // 128) * -(-n // 128), BM=128, BN=128, BK=64)
    agree(c[:, :n], a[:, :k], b[:, :n])


def test_a_loop_over_tiles() -> None:
    m, n, k = 1000, 1500, 700
    a, b, c = tensors = matrices(m, n, k)
    launch(persistent, tensors, (m, n, k), 20, COUNT=20, BM=128, BN=256, BK=64)
    agree(c[:, :n], a[:, :k], b[:, :n])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("width", "blocks"), [(64, (128, 64)), (64, (128, 32)), (128, (128, 64)), (128, (128, 128))])
def test_attention(causal: bool, width: int, blocks: tuple[int, int]) -> None:
    q, k, v = (torch.randn(6, 1024, width, device="cuda").half() for _ in range(3))
    out = torch.full_like(q, float("nan"))
    scale = width**-0.5 * 1.4426950408889634
    options = {"D": width, "BM": blocks[0], "BN": blocks[1], "CAUSAL": causal}
    attention[(6 * 1024 // blocks[0],)](q, k, v, out, scale, 1024, **options)
    scores = q.double() @ k.double().transpose(1, 2) * width**-0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(1024, 1024, device="cuda", dtype=torch.bool).tril(), float("-inf"))
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ v.double(), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("blocks", "warps"), [((128, 128, 64), 4), ((128, 128, 64), 8), ((64, 64, 64), 4)])
def test_matrices_whose_addresses_are_in_memory(blocks: tuple[int, int, int], warps: int) -> None:
    n = 1024
    groups = [torch.randn(n, n, device="cuda").half() / 8 for _ in range(9)]
    addresses = torch.tensor([matrix.data_ptr() for matrix in groups], device="cuda")
    sizes = torch.full((3,), n, dtype=torch.int32, device="cuda")
    sides = dict(zip(("BM", "BN", "BK"), blocks, strict=True))
    of_many[(50,)](addresses, sizes, 3, TILES=50, **sides, num_warps=warps)
    for a, b, c in (groups[i : i + 3] for i in (0, 3, 6)):
        agree(c, a, b)
