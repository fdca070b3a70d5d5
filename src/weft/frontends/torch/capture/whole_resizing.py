"""Resizing that keeps gradients of its own while a graph is traced.

    y = resized(x)    →    the backward graph has  gx = upsample_bilinear2d_backward(g, …)

Torch takes resizing apart before it is differentiated: the gradient of each corner that a result is interpolated from
is then added up at places that are read from memory, one `index_put` a corner. What is left whole here is taken apart
behind autograd, by the table of decompositions; its gradient gathers (`weft.ops.windows.resize_gradient`).
"""

# Torch's values have no types that can be followed, and its operators' kernels are private.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import fx, nn
from torch._decomp import get_decompositions

_aten: Any = torch.ops.aten
_NAMES = (
    *(f"{name}{rank}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for rank in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
)
_WORDS = ("interpolate", "upsample")
"""What names of functions and operators that resize have in them."""
_AUTOGRAD: Any = torch._C.DispatchKey.Autograd
_COMPOSITE: Any = torch._C.DispatchKey.CompositeImplicitAutograd
_OPERATORS = [getattr(_aten, name) for name in _NAMES]
_TAKEN_APART = [(op.default, _AUTOGRAD) for op in _OPERATORS] + [
    (op.vec, key) for op in _OPERATORS for key in (_AUTOGRAD, _COMPOSITE)
]


def resizing_parts() -> dict[Any, Callable[..., Any]]:
    """How what was left whole is taken apart, once it is differentiated."""
    return get_decompositions([op.default for op in _OPERATORS])


@dataclass
class _Removed:
    """How many threads trace, and torch's own kernels."""

    count: int = 0
    kernels: dict[tuple[Any, Any], Any] = field(default_factory=dict[tuple[Any, Any], Any])


_lock = Lock()
_removed = _Removed()


@contextmanager
def whole_resizing(device: str = "cuda", module: nn.Module | None = None) -> Generator[None]:
    """Leave resizing whole while this is entered, for a graph of a GPU's that resizes and has known sizes alone.

    Torch has one kernel for all threads. Without those in Python it takes the ones in C++, which give the same for
    known sizes: another thread that traces such meanwhile gets a whole operator, for which it has parts or a kernel.
    """
    if device != "cuda" or (module is not None and not _resizes_by_known_sizes(module)):
        yield
        return
    with _lock:
        if _removed.count == 0:
            # A torch that leaves an operator whole has none.
            _removed.kernels = {(op, key): op.py_kernels.pop(key) for op, key in _TAKEN_APART if key in op.py_kernels}
            _forget()
        _removed.count += 1
    try:
        yield
    finally:
        with _lock:
            _removed.count -= 1
            if _removed.count == 0:
                for (op, key), kernel in _removed.kernels.items():
                    op.py_kernels[key] = kernel
                _forget()


def _resizes_by_known_sizes(module: nn.Module) -> bool:
    """Whether a graph has calls of resizing, and no symbolic size, which kernels in C++ do not take."""
    nodes = module.graph.nodes if isinstance(module, fx.GraphModule) else ()
    values = [node.meta.get("example_value", node.meta.get("val")) for node in nodes]
    sizes = [size for value in values if isinstance(value, torch.Tensor) for size in value.shape]
    if any(isinstance(each, torch.SymInt | torch.SymFloat) for each in (*values, *sizes)):
        return False
    calls = {getattr(node.target, "__name__", str(node.target)) for node in nodes}
    return any(word in call for call in calls for word in _WORDS)


def _forget() -> None:
    for op, _ in _removed.kernels:
        op._dispatch_cache.clear()
