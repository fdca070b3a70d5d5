"""OpInfo samples under torch's transformations: second derivatives, tangents and batches, compiled against eager.

`opinfo_cases` calls this where a transformation is asked for. Where torch refuses tangents of an operator, the oracle
takes them from reverse mode, twice; where it forgets them without a word, from differences.
"""

# torch's testing package has no types, and some of torch's own arguments have none.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.autograd import forward_ad

TRANSFORMS = ("gradgrad", "forward", "forward-over-reverse", "vmap")
_SEED = 20
_BATCH = 3
_SURE = 1e-3
"""Second derivatives from which on differences are taken for more than their error."""

Call = Callable[..., Any]
Process = Callable[[Any], Any]
"""Takes out of results what the mathematics leaves open, such as the signs of singular vectors."""


def is_supported(op: Any, dtype: torch.dtype, transform: str, device: str) -> bool:
    """Whether torch's database asks for a transformation of an operator."""
    differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes(device)
    return {
        "gradgrad": differentiable and op.supports_gradgrad,
        "forward": differentiable,
        "forward-over-reverse": differentiable and op.supports_gradgrad,
        "vmap": True,
    }[transform]


def run_transformed(call: Call, arguments: Any, process: Process, transform: str) -> Any:
    """What a function gives for arguments (the first, the rest, those by name) under a transformation."""
    torch.manual_seed(_SEED)
    rule = {"gradgrad": _gradgrad, "forward": _forward, "forward-over-reverse": _forward_over_reverse, "vmap": _vmap}
    return rule[transform](call, arguments, process)


def run_oracle(call: Call, arguments: Any, process: Process, transform: str) -> Any:
    """What eager gives; tangents that it has not are made of gradients."""
    if transform == "forward-over-reverse":
        # Reverse mode is the better judge: where torch's two modes disagree, finite differences take its side.
        # Where it has none, at a point without second derivatives, what torch's forward mode takes for one counts.
        with suppress(NotImplementedError, RuntimeError):
            torch.manual_seed(_SEED)
            found = _symmetric_tangents(call, arguments, process)
            if any(each.isnan().any() for each in found):
                with suppress(NotImplementedError, RuntimeError):
                    return run_transformed(call, arguments, process, transform)
            return found
    if transform == "gradgrad":
        return _with_forgotten(call, arguments, process, run_transformed(call, arguments, process, transform))
    try:
        if transform == "forward" and _lacks_tangents(call, arguments, process):
            # Gradients of gradients are what the compiled side makes of it: they would judge themselves.
            return _tangents_by_differences(call, arguments, process)
        return run_transformed(call, arguments, process, transform)
    except (NotImplementedError, RuntimeError):
        if transform not in ("vmap", "forward"):
            raise
        torch.manual_seed(_SEED)
        if transform == "vmap":
            return _looped(call, arguments, process)
    try:
        return _tangents_by_gradients(call, arguments, process)
    except (NotImplementedError, RuntimeError):
        return _tangents_by_differences(call, arguments, process)


def _results(call: Call, arguments: Any, process: Process) -> list[Tensor]:
    first, rest, named = arguments
    found = pytree.tree_leaves(process(call(first, *rest, **named)))
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def _leaves(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.requires_grad]


def _random_like(tensors: Sequence[Tensor], seed: int = _SEED) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device, x.dtype) for x in tensors]


def _gradgrad(call: Call, arguments: Any, process: Process) -> Any:
    wanted = _leaves(arguments)
    results = [each for each in _results(call, arguments, process) if each.requires_grad]
    if not results or not wanted:
        return ()
    seeds = [seed.requires_grad_() for seed in _random_like(results)]
    first: Any = torch.autograd.grad(results, wanted, seeds, create_graph=True, allow_unused=True)
    again = [each for each in first if each is not None and each.requires_grad]
    second: Any = ()
    if again:
        second = torch.autograd.grad(again, [*wanted, *seeds], _random_like(again, 21), allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for g, x in zip(second, [*wanted, *seeds], strict=bool(again))]
    return [torch.zeros_like(x) if g is None else g.detach() for g, x in zip(first, wanted, strict=True)], zeros


def _with_forgotten(call: Call, arguments: Any, process: Process, found: Any) -> Any:
    """Second derivatives as torch has them, but for those that it takes for 0 without a word: by differences.

    A gradient that torch makes beside the result, and keeps as a constant, has none; differences tell, if those of two
    steps agree.
    """
    if not found or not found[1]:
        return found
    first, second = found
    wanted = _leaves(arguments)
    silent = [n for n in range(len(wanted)) if not second[n].any()]
    if not silent or not all(x.is_floating_point() and g.any() for x, g in zip(wanted, first, strict=True)):
        return found
    try:
        near, far = (_second_by_differences(call, arguments, process, step) for step in (5e-4, 1e-3))
    except (NotImplementedError, RuntimeError):  # it is not defined beside the arguments
        return found
    for n in silent:
        better = (4 * near[n] - far[n]) / 3
        if better.abs().max() > _SURE and torch.allclose(near[n], far[n], rtol=1e-3, atol=1e-6):
            second[n] = better.to(second[n].dtype)
    return first, second


def _second_by_differences(call: Call, arguments: Any, process: Process, step: float) -> list[Tensor]:
    """What `_gradgrad` gives for arguments, by differences of gradients: second derivatives are symmetric."""
    wanted = _leaves(arguments)
    return _differences_of_gradients(call, arguments, process, _random_like(wanted, 21), step, seed=_SEED)


def _differences_of_gradients(
    call: Call, arguments: Any, process: Process, moves: Sequence[Tensor], step: float, seed: int
) -> list[Tensor]:
    """How gradients change as arguments move, by central differences; results are weighted at random by a seed."""

    def gradients(sign: float) -> list[Tensor]:
        torch.manual_seed(_SEED)
        along = iter(moves)

        def moved(leaf: Tensor) -> Tensor:
            made = leaf.detach() + sign * step * next(along) if leaf.requires_grad else leaf
            return made.requires_grad_(leaf.requires_grad)

        given = pytree.tree_map_only(Tensor, moved, arguments)
        wanted = _leaves(given)
        results = [each for each in _results(call, given, process) if each.requires_grad]
        found: Any = torch.autograd.grad(results, wanted, _random_like(results, seed), allow_unused=True)
        return [torch.zeros_like(x).detach() if g is None else g.detach() for g, x in zip(found, wanted, strict=True)]

    return [(a - b) / (2 * step) for a, b in zip(gradients(1), gradients(-1), strict=True)]


def _dual(arguments: Any) -> Any:
    """The arguments with random tangents."""
    tangents = iter(_random_like(_leaves(arguments)))

    def dual(leaf: Tensor) -> Tensor:
        return forward_ad.make_dual(leaf, next(tangents)) if leaf.requires_grad else leaf

    return pytree.tree_map_only(Tensor, dual, arguments)


def _forward(call: Call, arguments: Any, process: Process) -> Any:
    with forward_ad.dual_level(), torch.no_grad():
        found = [forward_ad.unpack_dual(each) for each in _results(call, _dual(arguments), process)]
        return [_tangent(primal, tangent) for primal, tangent in found]


def _lacks_tangents(call: Call, arguments: Any, process: Process) -> bool:
    """Whether torch forgets tangents without a word, of results that have gradients: what is not there is not 0."""
    torch.manual_seed(_SEED)
    moved = [each.requires_grad for each in _results(call, arguments, process)]
    torch.manual_seed(_SEED)
    with forward_ad.dual_level(), torch.no_grad():
        found = [forward_ad.unpack_dual(each).tangent for each in _results(call, _dual(arguments), process)]
    return any(each is None and wanted for each, wanted in zip(found, moved, strict=True))


def _tangent(primal: Tensor, tangent: Tensor | None) -> Tensor:
    """A tangent that is not there is 0."""
    return torch.zeros_like(primal).detach() if tangent is None else tangent.detach().clone()


def _forward_over_reverse(call: Call, arguments: Any, process: Process) -> Any:
    with forward_ad.dual_level():
        given = _dual(arguments)
        wanted = _leaves(given)
        results = [each for each in _results(call, given, process) if each.requires_grad]
        if not results or not wanted:
            return ()
        found: Any = torch.autograd.grad(results, wanted, _random_like(results, 21), allow_unused=True)
        pairs = [
            forward_ad.unpack_dual(torch.zeros_like(x) if each is None else each)
            for each, x in zip(found, wanted, strict=True)
        ]
        return [_tangent(primal, tangent) for primal, tangent in pairs]


def _tangents_by_gradients(call: Call, arguments: Any, process: Process) -> Any:
    wanted = _leaves(arguments)
    results = _results(call, arguments, process)
    kept = [each for each in results if each.requires_grad]
    seeds = [torch.zeros_like(each, requires_grad=True) for each in kept]
    grads: Any = torch.autograd.grad(kept, wanted, seeds, create_graph=True, allow_unused=True)
    pairs = [(g, t) for g, t in zip(grads, _random_like(wanted), strict=True) if g is not None and g.requires_grad]
    found = torch.autograd.grad([g for g, _ in pairs], seeds, [t for _, t in pairs], allow_unused=True)
    tangents = dict(zip(map(id, kept), found, strict=True))
    return [_tangent(each, tangents.get(id(each))) for each in results]


def _symmetric_tangents(call: Call, arguments: Any, process: Process) -> Any:
    """Tangents of gradients as gradients of gradients: second derivatives are symmetric."""
    wanted = _leaves(arguments)
    results = [each for each in _results(call, arguments, process) if each.requires_grad]
    if not results or not wanted:
        return ()
    seeds = _random_like(results, 21)
    first: Any = torch.autograd.grad(results, wanted, seeds, create_graph=True, allow_unused=True)
    pairs = [(g, t) for g, t in zip(first, _random_like(wanted), strict=True) if g is not None and g.requires_grad]
    if not pairs:  # linear, or of gradients that are not differentiated on
        return _tangents_of_gradients_by_differences(call, arguments, process)
    found: Any = torch.autograd.grad([g for g, _ in pairs], wanted, [t for _, t in pairs], allow_unused=True)
    return [torch.zeros_like(x).detach() if g is None else g for g, x in zip(found, wanted, strict=True)]


def _tangents_of_gradients_by_differences(call: Call, arguments: Any, process: Process) -> Any:
    """Tangents of gradients by differences, with steps so short that few kinks are between them."""
    return _differences_of_gradients(call, arguments, process, _random_like(_leaves(arguments)), 1e-5, seed=21)


def _tangents_by_differences(call: Call, arguments: Any, process: Process) -> Any:
    """Tangents by Richardson's central differences, for operators whose gradients have no gradients either."""

    wide = pytree.tree_map_only(Tensor, _widened, arguments)
    with torch.no_grad():
        torch.manual_seed(_SEED)
        results = _results(call, arguments, process)

    def moved(step: float) -> list[Tensor]:
        torch.manual_seed(_SEED)
        tangents = iter(_random_like(_leaves(arguments)))

        def along(leaf: Tensor) -> Tensor:
            return leaf.detach() + step * next(tangents).to(leaf.dtype) if leaf.requires_grad else leaf

        with torch.no_grad():
            return _results(call, pytree.tree_map_only(Tensor, along, wide), process)

    def slope(step: float) -> list[Tensor]:
        return [(a - b) / (2 * step) if _is_inexact(a) else a for a, b in zip(moved(step), moved(-step), strict=True)]

    pairs = zip(results, slope(5e-4), slope(1e-3), strict=True)
    return [
        ((4 * near - far) / 3).to(like.dtype) if _is_inexact(like) else _tangent(like, None)
        for like, near, far in pairs
    ]


def _widened(leaf: Tensor) -> Tensor:
    """In float64: differences of narrower floats are mostly their rounding."""
    wide = leaf.detach().double() if leaf.is_floating_point() else leaf.detach()
    return wide.requires_grad_(leaf.requires_grad)


def _is_inexact(leaf: Tensor) -> bool:
    return leaf.is_floating_point() or leaf.is_complex()


def _batched(arguments: Any) -> tuple[Any, Any]:
    """The arguments, with samples of different scale along a new dimension of floats; and which those are."""

    def stack(leaf: Tensor) -> Tensor:
        scales = [1.0 - 0.125 * n for n in range(_BATCH)]
        return torch.stack([leaf.detach() * scale for scale in scales]) if _is_batched(leaf) else leaf.detach()

    def dim(leaf: Any) -> int | None:
        return 0 if isinstance(leaf, Tensor) and _is_batched(leaf) else None

    dims = pytree.tree_map(dim, arguments)
    return pytree.tree_map_only(Tensor, stack, arguments), dims


def _is_batched(leaf: Tensor) -> bool:
    return leaf.is_floating_point() and leaf.layout == torch.strided


def _vmap(call: Call, arguments: Any, process: Process) -> Any:
    given, dims = _batched(arguments)
    flat, spec = pytree.tree_flatten(given)
    places, _ = pytree.tree_flatten(dims, is_leaf=lambda leaf: leaf is None)
    taken = [n for n, dim in enumerate(places) if dim is not None]

    def function(*tensors: Tensor) -> Any:
        leaves = list(flat)
        for place, tensor in zip(taken, tensors, strict=True):
            leaves[place] = tensor
        return tuple(_results(call, pytree.tree_unflatten(leaves, spec), lambda found: found))

    if not taken:
        return ()
    return torch.func.vmap(function, randomness="different")(*(flat[place] for place in taken))


def _looped(call: Call, arguments: Any, process: Process) -> Any:
    given, dims = _batched(arguments)
    flat, spec = pytree.tree_flatten(given)
    places, _ = pytree.tree_flatten(dims, is_leaf=lambda leaf: leaf is None)
    rows: list[list[Tensor]] = []
    for number in range(_BATCH):
        leaves = [leaf if dim is None else leaf[number] for leaf, dim in zip(flat, places, strict=True)]
        rows.append(_results(call, pytree.tree_unflatten(leaves, spec), lambda found: found))
    return tuple(torch.stack(list(column)) for column in zip(*rows, strict=True))
