"""`multilabel_margin_loss` in parts, as eager computes it, while a graph is traced.

Torch's own parts, which it takes before any table of decompositions is asked, add the margins of labels that follow the
end of a row's, -1, as though they were the label 0, and do not look at whether those that are left out are labels.
"""

# Torch's values have no types that can be followed, and its operators' kernels are private.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

_KEY: Any = torch._C.DispatchKey.Autograd
_MEAN, _SUM = 1, 2


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss, and which classes are labels."""
    shape = input.shape
    if target.dtype != torch.int64:
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}")
    if input.device.type == "cpu" and input.dtype not in (torch.float32, torch.float64):
        raise NotImplementedError(f"multilabel_margin_loss is not implemented for {input.dtype} on CPUs")
    torch._check(
        len(shape) <= 2 and (not shape or shape[-1] != 0),
        lambda: f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(shape)}",
    )
    torch._check(
        target.shape == shape,
        lambda: f"inconsistent target size: {list(target.shape)} for input of size: {list(shape)}",
    )
    rows, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    classes = rows.shape[1]
    places = torch.arange(-1, classes, device=target.device)
    # Themselves: all of them have to be classes or -1.
    labels = places.index_select(0, (labels + 1).reshape(-1)).reshape(labels.shape)
    places = places[1:]
    end = torch.where(labels == -1, places, classes).amin(-1, keepdim=True)
    counts = places < end
    given = rows.gather(-1, torch.where(counts, labels, 0))
    is_label = (places == torch.where(counts, labels, -1).unsqueeze(-1)).any(1)
    margins = 1.0 - given.unsqueeze(-1) + rows.unsqueeze(1)
    kept = counts.unsqueeze(-1) & ~is_label.unsqueeze(1) & (margins > 0)  # a margin of 0 has no gradient
    loss = torch.where(kept, margins / classes, 0).sum((1, 2))
    loss = loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss.reshape(shape[:-1])
    return loss, is_label.to(input.dtype).reshape(shape)


@contextmanager
def margins_of_labels() -> Generator[None]:
    """Let what this thread traces take the loss apart in this way; what others do keeps torch's own parts.

    Torch has one kernel for all threads: while any of them is in here, it is one that asks who calls.
    """
    op: Any = torch.ops.aten.multilabel_margin_loss_forward.default
    with _lock:
        if _taken.count == 0:
            _taken.before = op.py_kernels.get(_KEY)
            if _taken.before is not None:  # else a torch that leaves the operator whole
                _take(op, partial(_by_thread, _taken.before))
        _taken.count += 1
    outer = _here.set(True)
    try:
        yield
    finally:
        _here.reset(outer)
        with _lock:
            _taken.count -= 1
            if _taken.count == 0 and _taken.before is not None:
                _take(op, _taken.before)


@dataclass
class _Taken:
    """How many threads trace, and torch's own kernel."""

    count: int = 0
    before: Any = None


_lock = Lock()
_taken = _Taken()
_here = ContextVar("tracing margins of labels", default=False)


def _by_thread(before: Any, *args: Any, **kwargs: Any) -> Any:
    return multilabel_margin_loss(*args, **kwargs) if _here.get() else before(*args, **kwargs)


def _take(op: Any, kernel: Any) -> None:
    op.py_kernels[_KEY] = kernel
    op._dispatch_cache.clear()
