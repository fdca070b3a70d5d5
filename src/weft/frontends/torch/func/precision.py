"""`checkpoint`, `autocast` and `quantize` of torch functions: what gradients keep, and in what numbers is computed."""

# Torch's pytrees and modes have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportIncompatibleMethodOverride=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from weft.diagnostics import calling_line
from weft.errors import DTypeError, WeftError
from weft.frontends.torch.dtypes import from_torch
from weft.frontends.torch.func.capturing import current_capture, is_capturing, marked
from weft.frontends.torch.func.checkpoint_policies import contexts
from weft.frontends.torch.func.kept_transforms import kept
from weft.frontends.torch.func.program import Program
from weft.frontends.torch.func.transformed import Transformed
from weft.frontends.torch.transforms.apply_program import transforms_active
from weft.frontends.torch.transforms.dynamo_levels import traced_under_transforms
from weft.ops.graph import FuncOp
from weft.passes.recompute import REGION
from weft.passes.transform.autocast import autocast_function
from weft.passes.transform.checkpoint import OFFLOAD, SAVE, checkpoint_function
from weft.passes.transform.quantize import quantize_function


class OnGraph(Transformed):
    """A function whose graph another takes the place of; arguments and results stay."""

    def on_graph(self, function: FuncOp) -> FuncOp:
        """What takes a graph's place."""
        raise NotImplementedError

    def program(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        inner = self.inner.program(args, kwargs)
        return replace(inner, function=self.on_graph(inner.function))


@torch._dynamo.assume_constant_result
def _keeps_all() -> bool:
    """Whether nothing is computed again: torch.func takes no hooks for saved tensors, nor do regions of a capture."""
    return transforms_active() or traced_under_transforms() or is_capturing()


class Checkpoint(OnGraph):
    """A function whose gradients compute its values again."""

    def __init__(self, function: Callable[..., Any], save: tuple[str, ...], offload: tuple[str, ...]) -> None:
        super().__init__(function)
        self.save, self.offload, self.contexts = save, offload, contexts(save, offload)

    def on_graph(self, function: FuncOp) -> FuncOp:
        return checkpoint_function(function, self.save, self.offload)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        capture = current_capture()
        if capture is None and _keeps_all():
            return self.inner.eager(*args, **kwargs)
        if capture is None:
            if self.save or self.offload:
                kwargs = {**kwargs, "context_fn": self.contexts}
            return torch.utils.checkpoint.checkpoint(self.inner.eager, *args, use_reentrant=False, **kwargs)
        capture.regions += 1
        words = {SAVE: " ".join(self.save), OFFLOAD: " ".join(self.offload)}
        with marked(**{REGION: f"checkpoint.{capture.regions}", **words}):
            return self.inner.eager(*args, **kwargs)


def checkpoint(
    function: Callable[..., Any] | None = None, *, save: str | Sequence[str] = (), offload: str | Sequence[str] = ()
) -> Any:
    """The function, whose gradients compute its values again instead of keeping them; also as a decorator.

    `save` names what is kept: `"dots"` for products, convolutions and attention, ops by their names in the graph
    dialect, and values by those that `checkpoint_name` gave them. What is in `offload` is kept in the host's memory.
    """
    given: list[tuple[str, Any]] = [("save", save), ("offload", offload)]
    for name, each in given:
        if not isinstance(each, str | Sequence) or not all(isinstance(word, str) for word in each):
            raise WeftError(
                f"checkpoint with {name}={each!r}",
                location=calling_line(),
                hint='give names of values or of ops, as "dots", or a tuple of them',
            )
    words, moved = ((each,) if isinstance(each, str) else tuple(each) for each in (save, offload))
    if function is None:
        return lambda given: Checkpoint(given, words, moved)
    return kept(Checkpoint, function, words, moved)


def checkpoint_name(x: torch.Tensor, name: str) -> torch.Tensor:
    """The value, under a name that `checkpoint(save=...)` knows."""
    if not isinstance(name, str) or not name.isidentifier():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WeftError(f"{name!r} is no name of a value", location=calling_line(), hint="letters, digits and _")
    if current_capture() is None and (_keeps_all() or not torch.compiler.is_dynamo_compiling()):
        return x
    return torch.ops.weft.named(x, name)


class Autocast(OnGraph):
    """A function in mixed precision."""

    def __init__(self, function: Callable[..., Any], dtype: torch.dtype) -> None:
        super().__init__(function)
        self.dtype = dtype

    def on_graph(self, function: FuncOp) -> FuncOp:
        return autocast_function(function, from_torch(self.dtype))

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        device = next((each.device.type for each in tensors), "cpu")
        with torch.autocast(device, self.dtype, cache_enabled=False):
            found = self.inner.eager(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda x: x.float() if x.dtype == self.dtype else x, found)


def autocast(function: Callable[..., Any] | None = None, *, dtype: torch.dtype = torch.bfloat16) -> Any:
    """The function with products, convolutions and attention in 16 bits, and sums and exponentials in f32.

    Arguments and results keep their types, also under derivatives and `vmap`.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        raise DTypeError(f"autocast to {dtype}", location=calling_line(), hint="torch.bfloat16 or torch.float16")
    if function is None:
        return lambda given: Autocast(given, dtype)
    return kept(Autocast, function, dtype)


class Quantize(OnGraph):
    """A function whose products are of integers with few bits."""

    def __init__(self, function: Callable[..., Any], bits: int, weights: bool) -> None:
        super().__init__(function)
        self.bits, self.weights = bits, weights

    def on_graph(self, function: FuncOp) -> FuncOp:
        return quantize_function(function, self.bits, self.weights)

    def eager(self, *args: Any, **kwargs: Any) -> Any:
        with _QuantizedCalls(2 ** (self.bits - 1) - 1, self.weights):
            return self.inner.eager(*args, **kwargs)


class _QuantizedCalls(TorchFunctionMode):
    """Rounds the operands of products and convolutions, by what each sums along."""

    def __init__(self, largest: int, weights: bool) -> None:
        super().__init__()
        self.largest, self.weights = largest, weights

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dims = _CONTRACTED.get(getattr(func, "__name__", ""))
        if dims is not None and len(args) >= 2 and all(isinstance(x, torch.Tensor) for x in args[:2]):
            given = list(args)
            for place, chosen in enumerate(dims):
                if (place == 1 or not self.weights) and given[place].is_floating_point():
                    given[place] = self._rounded(given[place], chosen(given[place].dim()))
            args = tuple(given)
        return func(*args, **(kwargs or {}))

    def _rounded(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        fixed = x.detach()
        factor = fixed.abs().amax(dims, keepdim=True) / self.largest
        factor = torch.where(factor == 0, 1.0, factor)
        return torch.round(fixed / factor) * factor + (x - fixed)


_Dims = Callable[[int], list[int]]
_last: _Dims = lambda rank: [rank - 1]  # noqa: E731
_row: _Dims = lambda rank: [max(rank - 2, 0)]  # noqa: E731
_rest: _Dims = lambda rank: list(range(1, rank))  # noqa: E731
_CONTRACTED: dict[str, tuple[_Dims, _Dims]] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "mv", "__matmul__"), (_last, _row)),
    "linear": (_last, _last),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (_rest, _rest)),
}
"""Along which dimensions of both operands calls of torch's sum."""


def quantize(function: Callable[..., Any] | None = None, *, bits: int = 8, weights: bool = False) -> Any:
    """The function whose products and convolutions are of integers with `bits` bits, times factors.

    A row of one operand, or a column of the other, has one factor; with `weights` only second operands are integers.
    Gradients pass through the rounding as if it were not there.
    """
    if bits not in range(2, 9):
        raise WeftError(f"integers of {bits} bits", location=calling_line(), hint="quantize takes 2 to 8")
    if function is None:
        return lambda given: Quantize(given, bits, weights)
    return kept(Quantize, function, bits, weights)
