"""Tangents inside of a function that is traced: as gradients of gradients, which are linear in what they are given.

Where torch traces, its own tangents of views fail, are of ops that nothing else knows, and multiply the zeros that they
take for the tangents of weights.
"""

# Torch's pytrees have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.frontends.torch.transforms.differentiable_forms import CallingForms, taking_tangents


@contextmanager
def unless_torch_has_no_rule() -> Generator[None]:
    """Go on where torch says that it cannot differentiate something; other errors are the function's own."""
    try:
        yield
    except RuntimeError as error:
        lacking = "not implemented", "not differentiable", "double backwards", "has_fw_view"
        if not isinstance(error, NotImplementedError) and not any(words in str(error) for words in lacking):
            raise


def jvp_by_gradients(function: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool) -> tuple[Any, ...]:
    """What `torch.func.jvp` gives."""
    value, push, aux = _linear_map(function, primals, has_aux)
    return value, push(tuple(tangents)), *aux


def jacobian_by_gradients(
    function: Callable[..., Any], args: Sequence[Any], argnums: int | tuple[int, ...], has_aux: bool
) -> Any:
    """What `torch.func.jacfwd` gives: tangents along all directions of a basis at once."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    numbers = [number % len(args) for number in numbers]
    taken = tuple(args[number] for number in numbers)
    leaves, spec = pytree.tree_flatten(taken)

    def of_taken(*given: Any) -> Any:
        by_number = dict(zip(numbers, given, strict=True))
        return function(*(by_number.get(number, each) for number, each in enumerate(args)))

    _, push, aux = _linear_map(of_taken, taken, has_aux)
    sizes = [leaf.numel() for leaf in leaves]
    basis = [torch.eye(sum(sizes), dtype=leaf.dtype, device=leaf.device) for leaf in leaves]
    directions = [
        each.split(sizes, 1)[number].reshape(-1, *leaf.shape)
        for number, (each, leaf) in enumerate(zip(basis, leaves, strict=True))
    ]
    columns = torch.func.vmap(lambda *moved: push(pytree.tree_unflatten(list(moved), spec)))(*directions)

    def blocks(result: torch.Tensor) -> Any:
        parts = zip(result.split(sizes), leaves, strict=True)
        found = [part.movedim(0, -1).reshape(*result.shape[1:], *leaf.shape) for part, leaf in parts]
        tree = pytree.tree_unflatten(found, spec)
        return tree[0] if isinstance(argnums, int) else tree

    jacobian = pytree.tree_map(blocks, columns)
    return (jacobian, *aux) if has_aux else jacobian


def _linear_map(
    function: Callable[..., Any], primals: Any, has_aux: bool
) -> tuple[Any, Callable[[tuple[Any, ...]], Any], list[Any]]:
    """A function's value, the map of tangents, and what it returns beside."""

    def pulled(seeds: Any) -> tuple[Any, Any]:
        with taking_tangents(), CallingForms():
            found: Any = torch.func.vjp(function, *primals, has_aux=has_aux)
        return found[1](seeds), (found[0], *found[2:])

    example = function(*primals)
    results = example[0] if has_aux else example
    if not all(map(_is_float, pytree.tree_leaves(results))):
        raise NotImplementedError("gradients of integers are not implemented: torch's own tangents know them")
    # Any gradients do, as they enter linearly; of some, torch takes logarithms, so they are not zero.
    seeds = pytree.tree_map(torch.ones_like, results)
    found: Any = torch.func.vjp(pulled, seeds, has_aux=True)
    _, push, (value, *aux) = found
    return value, lambda tangents: push(tuple(tangents))[0], aux


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
