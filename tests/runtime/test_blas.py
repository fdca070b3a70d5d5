"""The BLAS library that a process has: by the names of CBLAS or of Fortran, or none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from weft.backends.cpu.fortran_blas import adapter_module
from weft.backends.cpu.target import compile_object, host_target
from weft.runtime.linking import link

_INT, _DOUBLE, _BYTE, _WORD = (
    ctypes.POINTER(t) for t in (ctypes.c_int32, ctypes.c_double, ctypes.c_char, ctypes.c_int64)
)
_FORTRAN = ctypes.CFUNCTYPE(
    *(None, _BYTE, _BYTE, _INT, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT, _DOUBLE, _DOUBLE, _INT)
)


def _columns(pointer: object, rows: int, columns: int, leading: int) -> np.ndarray:
    """A matrix of Fortran's, column by column."""
    return np.ctypeslib.as_array(pointer, (columns * leading,)).reshape(columns, leading)[:, :rows].T  # type: ignore[call-overload]


@_FORTRAN
def _dgemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):  # type: ignore[no-untyped-def]
    first = _columns(a, *((m[0], k[0]) if ta[0] == b"N" else (k[0], m[0])), lda[0])
    second = _columns(b, *((k[0], n[0]) if tb[0] == b"N" else (n[0], k[0])), ldb[0])
    first, second = first if ta[0] == b"N" else first.T, second if tb[0] == b"N" else second.T
    out = _columns(c, m[0], n[0], ldc[0])
    out[:] = alpha[0] * (first @ second) + (beta[0] * out if beta[0] else 0)


@pytest.mark.parametrize(("sizes", "limits"), [((64, 64, 64), [1, 7]), ((64, 64, 65), []), ((0, 5, 3), [1, 7])])
def test_small_products_are_left_to_one_thread(sizes: tuple[int, int, int], limits: list[int]) -> None:
    seen: list[object] = []

    @ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)
    def limit(threads: int) -> int:
        seen.append(threads)
        return 7

    @_FORTRAN
    def multiply(*_: object) -> None:
        seen.append("product")

    addresses = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in (multiply, limit)]
    target = host_target()
    module = adapter_module(target.triple, {"gemm": ("double", addresses[0])}, addresses[1])
    library = link(compile_object(module, target), ["gemm"])
    i32, f64, ptr = ctypes.c_int32, ctypes.c_double, ctypes.c_void_p
    gemm = ctypes.CFUNCTYPE(None, *[i32] * 6, f64, ptr, i32, ptr, i32, f64, ptr, i32)(library["gemm"])
    gemm(101, 111, 111, *sizes, 1.0, 0, 1, 0, 1, 0.0, 0, 1)
    assert seen == ([limits[0], "product", limits[1]] if limits else ["product"])


@pytest.mark.parametrize("beta", [0.0, 1.0])
@pytest.mark.parametrize(("ta", "tb"), [(111, 111), (111, 112), (112, 111), (112, 112)])
def test_a_library_with_fortran_names_alone_multiplies_rows(ta: int, tb: int, beta: float) -> None:
    address = ctypes.cast(_dgemm, ctypes.c_void_p).value
    assert address is not None
    target = host_target()
    library = link(compile_object(adapter_module(target.triple, {"gemm": ("double", address)}), target), ["gemm"])
    i32, f64, ptr = ctypes.c_int32, ctypes.c_double, ctypes.c_void_p
    gemm = ctypes.CFUNCTYPE(None, *[i32] * 6, f64, ptr, i32, ptr, i32, f64, ptr, i32)(library["gemm"])
    rng = np.random.default_rng(ta + tb)
    m, n, k = 5, 7, 3
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    stored = [np.ascontiguousarray(x if t == 111 else x.T) for x, t in ((a, ta), (b, tb))]
    out = rng.standard_normal((m, n + 2))
    expected = out.copy()
    expected[:, :n] = a @ b + beta * out[:, :n]
    pointers = [x.ctypes.data for x in (*stored, out)]
    leading = [x.shape[1] for x in stored]
    gemm(101, ta, tb, m, n, k, 1.0, pointers[0], leading[0], pointers[1], leading[1], beta, pointers[2], n + 2)
    np.testing.assert_allclose(out, expected, rtol=1e-12)


def test_products_are_generated_where_a_process_has_no_blas(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import sys
        import torch
        import weft.runtime.blas as blas

        if sys.argv[1] == "none":
            blas.LIBRARIES = "no library is called so"
        model = torch.nn.Linear(320, 200)
        x = torch.randn(300, 320)
        with torch.no_grad():
            y = torch.compile(model, backend="weft")(x)
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)
        print(sorted(blas.blas_symbols()))
        """
    )
    for library, said in (("torch's", "cblas_sgemm"), ("none", "[]"), ("none", "[]")):
        command = [sys.executable, "-c", script, library]
        environment = {**os.environ, "WEFT_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout
        assert "uncompiled" not in done.stderr
