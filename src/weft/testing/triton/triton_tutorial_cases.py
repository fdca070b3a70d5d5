"""What the kernels of Triton's tutorials are launched on, and what torch says they should give."""

# torch is not fully typed, and kernels are found in modules that are loaded at run time.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

T = torch.Tensor
Kernels = Any
LOG2_E = 1.4426950408889634


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def agree(actual: T, expected: T, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> T:
    """Memory in which every element that is not written is seen."""
    return torch.full(shape, float("nan"), dtype=dtype)


def taken(kernel: Any, **later: Any) -> dict[str, Any]:
    """Arguments that a tutorial's kernel has in some releases of Triton, where this one has them."""
    return {name: value for name, value in later.items() if name in kernel.arg_names}


def vector_add(kernels: Kernels) -> None:
    count = 98_432
    x, y, out = torch.rand(count), torch.rand(count), poisoned(count)
    kernels.add_kernel[lambda meta: (cdiv(count, meta["BLOCK_SIZE"]),)](x, y, out, count, BLOCK_SIZE=1024)
    agree(out, x + y)


def fused_softmax(kernels: Kernels) -> None:
    rows, columns = 1823, 781
    x, y = torch.randn(rows, columns), poisoned(rows, columns)
    kernels.softmax_kernel[(64, 1, 1)](y, x, columns, columns, rows, columns, BLOCK_SIZE=1024, num_stages=4)
    agree(y, torch.softmax(x, 1))


def matrix_multiplication(kernels: Kernels) -> None:
    m, n, k = 200, 190, 130
    blocks = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    for dtype in (torch.float32, torch.float16):
        a, b = torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype)
        c = poisoned(m, n, dtype=torch.float16)
        kernels.matmul_kernel[(cdiv(m, 64) * cdiv(n, 32),)](
            a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(), **blocks, ACTIVATION="leaky_relu"
        )
        agree(c, F.leaky_relu(a.float() @ b.float(), 0.01), 2e-2)


def low_memory_dropout(kernels: Kernels) -> None:
    count, p = 1000, 0.5
    x, keep = torch.randn(count), (torch.rand(count) > p).to(torch.int32)
    out, seeded = poisoned(count), poisoned(count)
    kernels._dropout[(1,)](x, keep, out, count, p, BLOCK_SIZE=1024)
    agree(out, torch.where(keep.bool(), x / (1 - p), 0.0))
    kernels._seeded_dropout[(1,)](x, seeded, count, p, 123, BLOCK_SIZE=1024)
    left = seeded != 0
    agree(seeded[left], x[left] / (1 - p))
    assert 0.4 < left.float().mean() < 0.6


def layer_norm(kernels: Kernels) -> None:
    rows, columns, groups, eps = 151, 700, 64, 1e-5
    x, w, b, dy = torch.randn(rows, columns), torch.rand(columns), torch.rand(columns), torch.randn(rows, columns)
    y, dx = poisoned(rows, columns), poisoned(rows, columns)
    mean, rstd, dw, db = poisoned(rows), poisoned(rows), poisoned(columns), poisoned(columns)
    kernels._layer_norm_fwd_fused[(rows,)](x, y, w, b, mean, rstd, columns, columns, eps, BLOCK_SIZE=1024)
    locks, partial = torch.zeros(2 * groups, dtype=torch.int32), torch.zeros(2, groups, columns)
    kernels._layer_norm_bwd_dx_fused[(rows,)](
        dx, dy, *partial, x, w, mean, rstd, locks, columns, columns, BLOCK_SIZE_N=1024, GROUP_SIZE_M=groups
    )
    kernels._layer_norm_bwd_dwdb[(cdiv(columns, 128),)](
        *partial, dw, db, min(groups, rows), columns, BLOCK_SIZE_M=32, BLOCK_SIZE_N=128
    )
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    expected = F.layer_norm(leaves[0], (columns,), leaves[1], leaves[2], eps)
    expected.backward(dy)
    agree(y, expected.detach())
    for actual, leaf in zip((dx, dw, db), leaves, strict=True):
        assert leaf.grad is not None
        agree(actual, leaf.grad, 1e-3)


def fused_attention(kernels: Kernels) -> None:
    kernels.is_blackwell = lambda: False
    heads, length, depth = 2, 256, 64
    scale = depth**-0.5
    q, k, v, do = (torch.randn(1, heads, length, depth, dtype=torch.float16) for _ in range(4))
    out, m = torch.full_like(q, float("nan")), poisoned(1, heads, length)
    for causal in (False, True):
        kernels._attn_fwd[(cdiv(length, 64), heads, 1)](
            *(scale, m, 1, heads, q, k, v, out),
            N_CTX=length,
            HEAD_DIM=depth,
            FP8_OUTPUT=False,
            STAGE=3 if causal else 1,
            warp_specialize=False,
            IS_HOPPER=False,
            BLOCK_M=64,
            BLOCK_N=32,
        )
        agree(out, F.scaled_dot_product_attention(q, k, v, is_causal=causal), 1e-2)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], is_causal=True).backward(do)
    delta = poisoned(1, heads, length)
    kernels._attn_bwd_preprocess[(length // 128, heads)](out, do, delta, 1, heads, length, BLOCK_M=128, HEAD_DIM=depth)
    gradients = [torch.full_like(q, float("nan")) for _ in range(3)]
    kernels._attn_bwd[(length // 128, 1, heads)](
        *(q, k * (scale * LOG2_E), v, scale, do, *gradients, m, delta, *q.stride(), heads, length),
        BLOCK_M1=32,
        BLOCK_N1=128,
        BLOCK_M2=128,
        BLOCK_N2=32,
        BLK_SLICE_FACTOR=2,
        HEAD_DIM=depth,
        **taken(kernels._attn_bwd, CAUSAL=True),
    )
    for actual, leaf in zip(gradients, leaves, strict=True):
        assert leaf.grad is not None
        agree(actual, leaf.grad, 5e-2)


def extern_functions(kernels: Kernels) -> None:
    count = 98_432
    x, out = torch.rand(count), poisoned(count)
    kernels.asin_kernel[(cdiv(count, 1024),)](x, out, count, BLOCK_SIZE=1024)
    agree(out, torch.asin(x))


def grouped_gemm(kernels: Kernels) -> None:
    depth = 64
    left = [torch.randn(rows, depth, dtype=torch.float16) for rows in (128, 64, 192)]
    right = [torch.randn(depth, columns, dtype=torch.float16) for columns in (64, 192, 128)]
    results = [poisoned(a.shape[0], b.shape[1], dtype=torch.float16) for a, b in zip(left, right, strict=True)]
    triples = list(zip(left, right, results, strict=True))
    addresses = [torch.tensor([t.data_ptr() for t in each]) for each in (left, right, results)]
    sizes = torch.tensor([n for a, b, _ in triples for n in (a.shape[0], b.shape[1], depth)], dtype=torch.int32)
    strides = torch.tensor([t.stride(0) for each in triples for t in each], dtype=torch.int32)
    kernels.grouped_matmul_kernel[(4,)](
        *addresses, sizes, strides, 3, NUM_SM=4, BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32
    )
    for a, b, c in triples:
        agree(c, a.float() @ b.float(), 2e-2)


def persistent_matmul(kernels: Kernels) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found]

    m, n, k = 200, 192, 128
    a, b = torch.randn(m, k, dtype=torch.float16), torch.randn(k, n, dtype=torch.float16)
    c, turned = poisoned(m, n, dtype=torch.float16), b.t().contiguous()
    grid = (cdiv(m, 64) * cdiv(n, 64),)
    blocks = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}
    strides = (*a.stride(), *b.stride(), *c.stride())

    def described() -> list[Any]:
        shapes = ([64, 32], [64, 32], [64, 64])
        return [TensorDescriptor.from_tensor(t, shape) for t, shape in zip((a, turned, c), shapes, strict=True)]

    few = {**blocks, "NUM_SMS": 3}
    plain = {"FP8_OUTPUT": False, "WARP_SPECIALIZE": False}
    launches: list[Callable[[], Any]] = [
        lambda: kernels.matmul_kernel[grid](a, b, c, m, n, k, *strides, **blocks),
        lambda: kernels.matmul_kernel_persistent[(3,)](a, b, c, m, n, k, *strides, **few),
        lambda: kernels.matmul_kernel_tma[grid](*described(), m, n, k, **blocks, **plain),
        lambda: kernels.matmul_kernel_tma_persistent[(3,)](
            *described(), m, n, k, **few, **plain, EPILOGUE_SUBTILE=False
        ),
        lambda: kernels.matmul_kernel_descriptor_persistent[(3,)](
            a, turned, c, m, n, k, **few, EPILOGUE_SUBTILE=True, WARP_SPECIALIZE=False, FLATTEN=False
        ),
    ]
    for launch in launches:
        c.fill_(float("nan"))
        launch()
        agree(c, a.float() @ b.float(), 2e-2)


def block_scaled_matmul(kernels: Kernels) -> None:
    for form in ("mxfp8", "mxfp4", "nvfp4", "mixed"):
        _block_scaled(kernels, form)


_FOUR_BITS = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def _block_scaled(kernels: Kernels, form: str) -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-not-found]

    m, n, k, bm, bn, bk = 256, 128, 512, 128, 128, 256
    shared = 16 if form == "nvfp4" else 32
    per_byte = (2 if form in ("mxfp4", "nvfp4") else 1, 1 if form == "mxfp8" else 2)
    rows_of_scales = bk // shared // 4

    def operand(rows: int, packed: bool) -> tuple[T, T]:
        if not packed:
            x = torch.randn(rows, k).to(torch.float8_e4m3fn)
            return x, x.float()
        x = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8)
        values = torch.tensor(_FOUR_BITS)
        halves = values[(x & 15).long()], values[(x >> 4).long()]
        return x, torch.stack(halves, -1).reshape(rows, k)

    def scales(rows: int) -> tuple[T, T]:
        shape = (1, rows // 128, k // shared // 4, 2, 256)
        if form == "nvfp4":
            s = torch.rand(shape).add(0.5).to(torch.float8_e4m3fn)
            values = s.float()
        else:
            s = torch.randint(124, 130, shape, dtype=torch.uint8)
            values = 2.0 ** (s.float() - 127)
        turned = values.reshape(rows // 128, k // shared // 4, 32, 4, 4).permute(0, 3, 2, 1, 4)
        return s, turned.reshape(rows, k // shared).repeat_interleave(shared, 1)

    (a, a_value), (b, b_value) = (operand(r, e == 2) for r, e in zip((m, n), per_byte, strict=True))
    (sa, sa_value), (sb, sb_value) = scales(m), scales(n)
    c = poisoned(m, n)
    tensors = [(a, [bm, bk // per_byte[0]]), (sa, [1, bm // 128, rows_of_scales, 2, 256])]
    tensors += [(b, [bn, bk // per_byte[1]]), (sb, [1, bn // 128, rows_of_scales, 2, 256]), (c, [bm, bn])]
    kernels.block_scaled_matmul_kernel[(cdiv(m, bm) * cdiv(n, bn),)](
        *(TensorDescriptor.from_tensor(tensor, shape) for tensor, shape in tensors),
        *(m, n, k, 0, *per_byte, shared, bm, bn, bk, bm // 128, bn // 128, rows_of_scales, 2),
        **taken(kernels.block_scaled_matmul_kernel, disallow_acc_multi_buffer=True),
    )
    agree(c, (a_value * sa_value) @ (b_value * sb_value).T, 1e-3)


CASES: dict[str, Callable[[Kernels], None]] = {
    "01-vector-add.py": vector_add,
    "02-fused-softmax.py": fused_softmax,
    "03-matrix-multiplication.py": matrix_multiplication,
    "04-low-memory-dropout.py": low_memory_dropout,
    "05-layer-norm.py": layer_norm,
    "06-fused-attention.py": fused_attention,
    "07-extern-functions.py": extern_functions,
    "08-grouped-gemm.py": grouped_gemm,
    "09-persistent-matmul.py": persistent_matmul,
    "10-block-scaled-matmul.py": block_scaled_matmul,
}
"""The tutorials by file name, and the case of each."""
