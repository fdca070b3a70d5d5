"""Which arguments of a captured graph are parameters and buffers, to be treated as constants where that is asked for.

With `freeze`, inference graphs are compiled as if weights never changed: they are folded into each other and packed
ahead of time. What a program holds are snapshots: see `runtime.constant_sets` for what is noticed if they change after
all.
"""

# torch leaves some of its functions without types, and tracing has no public interface to what it lifted.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import fx, nn
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from weft.capabilities import Capabilities
from weft.config import CODES, QUANTIZATIONS, Config
from weft.diagnostics import warn
from weft.frontends.torch.locations import first_line
from weft.runtime.plan_executor import PlanExecutor


def frozen_arguments(
    module: fx.GraphModule, name: str, config: Config, inputs: Sequence[Any]
) -> Mapping[int, torch.Tensor]:
    """The weights among the arguments of a captured graph, by position; `inputs` are what Dynamo traced it with.

    None are frozen in graphs that are trained: gradients would be those of other weights after the first step.
    """
    if not config.freeze:
        return {}
    if name != "inference":
        if name == "forward":
            what, why = "weights are not frozen", "gradients are wanted of this graph"
            warn("freeze", what, why, "run inference under torch.no_grad()", location=first_line(module.graph.nodes))
        return {}
    context = TracingContext.try_get()
    lifted = list(context.params_flat or ()) if context is not None else []
    placeholders = module.graph.find_nodes(op="placeholder")
    if len(placeholders) != len(lifted) + len(inputs):
        why, line = "tracing has changed the arguments of the graph", first_line(module.graph.nodes)
        warn("freeze", "weights are not frozen", why, "leave freeze out, or subclasses of tensors", location=line)
        return {}
    given = enumerate(zip(placeholders, [*lifted, *inputs], strict=True))
    return {
        position: tensor
        for position, (node, tensor) in given
        if (position < len(lifted) or _is_weight(tensor)) and _is_plain(tensor, node.meta.get("val"))
    }


def warn_of_quantization(quantize: str, device: str, capabilities: Capabilities) -> None:
    """Say once that weights stay as they are, if no kernel of their device reads what `quantize` would make of them."""
    if quantize and (quantize in CODES) is not capabilities.streamed_weights:
        others = ", ".join(each for each in QUANTIZATIONS if each and (each in CODES) is not (quantize in CODES))
        why = f"no kernel of the device {device} reads such weights, which stay as they are"
        warn("freeze", f"quantize={quantize!r} has no effect", why, f"there it takes {others}")


def _is_weight(value: Any) -> bool:
    """Whether Dynamo took a tensor from a module: as a parameter, a buffer or another attribute."""
    return isinstance(value, nn.Parameter) or getattr(value, "_dynamo_static_input_type", None) is not None


def _is_plain(tensor: Any, meta: Any) -> bool:
    """Whether a tensor is what tracing saw of it, in the memory of this machine or of its GPU."""
    if not isinstance(tensor, torch.Tensor) or isinstance(tensor, FakeTensor) or not isinstance(meta, torch.Tensor):
        return False
    if (
        is_traceable_wrapper_subclass(tensor)
        or tensor.layout != torch.strided
        or tensor.device.type not in ("cpu", "cuda")
    ):
        return False
    if tensor.is_complex() or tensor.is_neg() or tensor.is_quantized:
        return False
    if tensor.is_inference():  # changes of these are not counted
        return False
    sizes = (*meta.shape, *meta.stride())
    if any(isinstance(size, torch.SymInt) for size in sizes):
        return False
    return (tensor.dtype, tensor.shape, tensor.stride()) == (meta.dtype, meta.shape, meta.stride())


@lru_cache(maxsize=1)
def count_fused_steps() -> None:
    """Let the steps of fused optimizers count as changes: their kernels write parameters without telling autograd."""

    def count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("fused"):
                torch.autograd.graph.increment_version([p for p in group["params"] if not p.is_inference()])

    register_optimizer_step_post_hook(count)


def make_constants(executor: PlanExecutor[Any, torch.Tensor], arguments: Sequence[torch.Tensor | None]) -> None:
    """Prepare and pack the constants of a program now, so that its first call does not have to."""
    given = [arguments[place] for place in executor.fixed]
    known = [tensor for tensor in given if tensor is not None]
    if executor.has_constants and len(known) == len(given):
        # Tracing is still under way, which would make a fake tensor of whatever is computed here.
        with unset_fake_temporarily(), torch.no_grad():
            executor.constants(known)
