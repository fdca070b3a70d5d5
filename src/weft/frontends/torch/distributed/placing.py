"""Where a model's tensors are put: its parameters on ranks, and a model without data to be traced."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from weft.errors import UnsupportedError
from weft.frontends.torch.distributed.hints import placements_of
from weft.frontends.torch.distributed.packed_checkpoints import save_packed_parts
from weft.ir.sharding import Mesh, Sharding


def placed_parameter(
    parameter: nn.Parameter, sharding: Sharding, mesh: Mesh, devices: DeviceMesh | None, rank: int
) -> nn.Parameter:
    """A rank's part of a parameter: a DTensor on a mesh of devices, where a placement says how it lies."""
    part = part_of(parameter.detach(), sharding, mesh, rank).clone()
    if devices is None:
        return nn.Parameter(part, requires_grad=parameter.requires_grad)
    if any(split.blocks != 1 for splits in sharding.dims for split in splits):
        save_packed_parts()
    whole = DTensor.from_local(
        part,
        devices,
        placements_of(sharding, mesh),
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return nn.Parameter(whole, requires_grad=parameter.requires_grad)


def part_of(tensor: torch.Tensor, sharding: Sharding, mesh: Mesh, rank: int) -> torch.Tensor:
    """What a rank holds of a tensor."""
    here = mesh.coordinates(rank)
    for dim, splits in enumerate(sharding.dims):
        for split in splits:
            shape = list(tensor.shape)
            blocks = tensor.reshape(*shape[:dim], split.blocks, shape[dim] // split.blocks, *shape[dim + 1 :])
            own = blocks.chunk(mesh.size([split.axis]), dim + 1)[here[split.axis]]
            tensor = own.reshape(*shape[:dim], shape[dim] // mesh.size([split.axis]), *shape[dim + 1 :])
    return tensor


def skeleton_of(model: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """The model without its data, to be traced. Tensors that are neither parameters nor buffers stay: they are
    constants of the program."""
    memo: dict[int, Any] = {}
    with mode:
        for tensor in (*model.parameters(), *model.buffers()):
            empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    memo |= constant_attributes(model, memo)
    return copy.deepcopy(model, memo)


def constant_attributes(model: nn.Module, known: Mapping[int, Any]) -> dict[int, torch.Tensor]:
    """The tensors that modules hold in plain attributes, but for those that are known, each by its id."""
    found: dict[int, torch.Tensor] = {}
    for owner, module in model.named_modules():
        for attribute, leaf in _attributes(module):
            if not isinstance(leaf, torch.Tensor) or id(leaf) in known:
                continue
            if leaf.requires_grad:
                name = f"{owner}.{attribute}".removeprefix(".")
                raise UnsupportedError(
                    f"{name} requires a gradient and is neither a parameter nor a buffer",
                    hint="make it an nn.Parameter, or detach it",
                )
            found[id(leaf)] = leaf
    return found


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a module holds beside its parameters, buffers and modules, lists and dictionaries leaf by leaf."""
    for name, value in vars(module).items():
        if name not in ("_parameters", "_buffers", "_modules"):
            yield from ((name, leaf) for leaf in pytree.tree_leaves(value))


def input_name(path: str) -> str:
    """`[1]['input_ids']` as input_ids, and `[0][0]` as 0."""
    return path.partition("]")[2].strip("[]").replace("'", "").replace("][", ".")


def described_call(
    leaves: Sequence[Any], spec: Any, wanted: Sequence[bool], modes: Sequence[bool], attributes: int = 0
) -> str:
    """A call in words: what programs are made for, and what ranks have to agree on.

    `wanted` is whether each parameter gets a gradient, `modes` whether each module is in training mode, `attributes`
    the number of the state that modules' attributes are in: values may differ by rank, but all ranks change them.
    """
    named = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(leaves), spec))[0]
    given = [f"{input_name(pytree.keystr(path))}: {_described(leaf)}" for path, leaf in named]
    gradients = f"with gradients{_which(wanted, 'of', 'parameters')}" if any(wanted) else "without gradients"
    training = f"{sum(modes)} of {len(modes)} modules in training mode{_which(modes)}"
    changed = f", attributes in state {attributes}" if attributes else ""
    return f"({', '.join(given)}) {gradients}, {training}{changed}"


def _which(flags: Sequence[bool], word: str = "", what: str = "") -> str:
    """Which of them, where it is not all or none: as many may be others."""
    if all(flags) or not any(flags):
        return ""
    digest = hashlib.sha256(bytes(flags)).hexdigest()[:6]
    return f" {word} {sum(flags)} of {len(flags)} {what} ({digest})" if word else f" ({digest})"


def _described(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)
    lies = f" as {list(leaf.placements)}" if isinstance(leaf, DTensor) else ""
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{lies}"
