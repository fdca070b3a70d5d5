"""What is computed under `no_grad` while a function is traced: it has no gradients, and shares memory as in torch."""

# Torch's values have no types that can be followed; how tracing wraps tensors has no public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.frontends.torch.capture.stop_gradients import gradients_of, stopped, without_gradients


def storage_of(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else None


def _is_cut(x: torch.Tensor) -> bool:
    """Whether no tangents pass either: under `inference_mode`, and inside of torch's own transformations, where these
    are gradients of gradients."""
    return torch.is_inference_mode_enabled() or torch._C._functorch.is_functorch_wrapped_tensor(x)


class NoGradResults:
    """Results of calls under `no_grad`. A view has a copy that is handed out, through which no gradient flows; calls
    under `no_grad` get the view itself, so that what they write is seen by all that share its memory."""

    def __init__(self) -> None:
        self._views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def shared(self, args: Any) -> Any:
        """Arguments with views in place of their copies."""
        if not self._views:
            return args
        return pytree.tree_map_only(torch.Tensor, lambda x: self._views.get(id(x), (x, x))[1], args)

    def before_write(self, args: Any) -> torch.Tensor | None:
        """What a call is going to write over, as it is: of it the gradients are, that of the write are not noted."""
        target = args[0] if args else None
        if not isinstance(target, torch.Tensor) or _is_cut(target):
            return None
        return target.clone() if target.is_floating_point() or target.is_complex() else None

    def after_write(self, args: Any, before: torch.Tensor | None) -> None:
        """Give a tensor that was written to under `no_grad` the gradients that it had."""
        if before is None:
            return
        target: torch.Tensor = args[0]
        if target.shape == before.shape and target.dtype == before.dtype:
            target.copy_(gradients_of(target, before))

    def refresh(self, args: Any) -> None:
        """Copy the views of what was written to anew."""
        target = args[0] if args else None
        memory = storage_of(target) if self._views and isinstance(target, torch.Tensor) else None
        for copy, view in self._views.values():
            if memory is not None and storage_of(view) == memory:
                copy.copy_(without_gradients(view))

    def results(self, found: Any, args: Any) -> Any:
        """Results of a call under `no_grad`, without gradients."""
        given = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        memory = {storage_of(each) for each in given} - {None}

        def result(x: torch.Tensor) -> torch.Tensor:
            if _is_cut(x):
                return stopped(x)
            if any(x is each for each in given):
                return x
            copy = without_gradients(x)
            if copy is not x and storage_of(x) in memory:
                self._views[id(copy)] = copy, x
            return copy

        return pytree.tree_map_only(torch.Tensor, result, found)
