"""FSDP2 and DDP with their collectives inside the graphs that torch.compile captures.

Both start collectives from hooks that Dynamo does not trace: around compiled graphs, where no pass sees them.
`trace_collectives` takes the hooks away, and lets parameters be read through functional collectives instead:

    FSDP2   a read gathers the parameter, its gradient is reduced and scattered; the backward gathers again
    DDP     a read is the parameter, its gradient is reduced
"""

# FSDP's state and DDP's options have no public names.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from weft.errors import UnsupportedError
from weft.frontends.torch.collectives.gathers import GATHERS_AGAIN

Read = Callable[[nn.Parameter], torch.Tensor]


def trace_collectives(model: nn.Module) -> nn.Module:
    """A model under `fully_shard` or `DistributedDataParallel` whose collectives torch.compile can trace.

    An FSDP2 model is changed in place; of a DDP model it is the module inside. Gradients are reduced in every backward:
    `no_sync` and `set_requires_gradient_sync` have no effect any more.
    """
    if isinstance(model, DistributedDataParallel):
        return _traced_ddp(model)
    states = list(_states(model))
    if not states:
        raise UnsupportedError(
            "the model is under neither FSDP2 nor DDP", hint="give it to fully_shard or DistributedDataParallel first"
        )
    for module, state in states:
        _trace_fsdp(module, state, root=module is model)
    return model


def _states(model: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield cast(nn.Module, module), cast(Any, module)._get_fsdp_state()


def _trace_fsdp(module: nn.Module, state: Any, *, root: bool) -> None:
    for group in _groups(state):
        for parameter in group.fsdp_params:
            _check_fsdp(parameter, group)
    state._pre_forward_hook_handle.remove()
    state._post_forward_hook_handle.remove()
    _cast_around(module, state._mp_policy)
    kept = root and state._auto_reshard_after_forward  # what a forward ends with, the backward begins with
    for group in _groups(state):
        for parameter in group.fsdp_params:
            parameter.init_dtype_attrs(group.mp_policy)
            read = _gathered(parameter, again=group.post_forward_mesh_info is not None and not kept)
            info = parameter._module_info
            owners = [(info.module, info.param_name)]
            owners += zip(info.shared_modules, info.shared_param_names, strict=True)
            for owner, name in owners:
                _read_through(owner, name, read)


def _groups(state: Any) -> list[Any]:
    """Parameters that FSDP gathers together: torch 2.11 has at most one such group in a module."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []


def _check_fsdp(parameter: Any, group: Any) -> None:
    name = parameter._module_info.param_name
    reasons = {
        "is a DTensor before FSDP shards it": parameter.is_dtensor,
        "is kept in the host's memory": parameter.offload_to_cpu,
        "has a gather of its own": hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather"),
        "has a divisor of gradients of its own": group.gradient_divide_factor is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedError(
                f"the parameter {name} {reason}, which is not traced",
                hint="compile the model as it is: FSDP then starts its collectives itself, around compiled graphs",
            )


def _gathered(parameter: Any, *, again: bool) -> Read:
    mesh, kept, reduced = parameter.sharded_param.device_mesh, parameter.param_dtype, parameter.reduce_dtype
    whole, means = [Replicate()] * mesh.ndim, [Partial("avg")] * mesh.ndim
    marks = {GATHERS_AGAIN: True} if again else {}

    def read(value: nn.Parameter) -> torch.Tensor:
        with fx.traceback.annotate(marks):
            gathered = cast(DTensor, value).redistribute(
                placements=whole, forward_dtype=kept, backward_dtype=reduced or kept
            )
            return gathered.to_local(grad_placements=means)

    return read


def _cast_around(module: nn.Module, policy: Any) -> None:
    """What FSDP's hooks do to a module's inputs and outputs under a policy of mixed precision."""

    def casts(dtype: torch.dtype, tree: Any) -> Any:
        return pytree.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, tree
        )

    if policy.cast_forward_inputs and policy.param_dtype is not None:
        kept = policy.param_dtype
        module.register_forward_pre_hook(lambda _, args, kwargs: casts(kept, (args, kwargs)), with_kwargs=True)
    if policy.output_dtype is not None:
        given = policy.output_dtype
        module.register_forward_hook(lambda _, args, output: casts(given, output))


def _traced_ddp(model: DistributedDataParallel) -> nn.Module:
    inside = cast(nn.Module, model.module)
    if model.broadcast_buffers and any(isinstance(module, _BatchNorm) for module in inside.modules()):
        raise UnsupportedError(
            "DDP sends the statistics of batch normalization from rank 0 to all others, which is not traced",
            hint="use SyncBatchNorm or broadcast_buffers=False, or compile the DDP model as it is",
        )
    group: str = cast(Any, model.process_group).group_name

    def read(value: nn.Parameter) -> torch.Tensor:
        return cast(torch.Tensor, _MeanGradient.apply(value, group))

    for module in inside.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.requires_grad:
                _read_through(module, name, read)
    return inside


class _MeanGradient(torch.autograd.Function):
    """A parameter whose gradient is the mean over the ranks of a group."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, group: str) -> torch.Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return functional.all_reduce(grads[0], "avg", ctx.group), None


def _read_through(module: nn.Module, name: str, read: Read) -> None:
    """Let a module's parameter be read through a function, where it stays as it is for all that ask for parameters."""
    kind = type(module)
    if name in vars(kind) and hasattr(vars(kind)[name], "fget"):
        raise UnsupportedError(f"the collectives of {kind.__name__}.{name} are traced already")
    reads = property(lambda self: read(self._parameters[name]))
    module.__class__ = type(kind.__name__, (kind,), {name: reads, "__module__": kind.__module__})
