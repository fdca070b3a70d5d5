"""Which outputs of a captured graph lie in the same memory: eager's views of an argument or of one result stay that."""

# Torch's values have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.importer.imported_graph import Output, Passed, Returned, Viewed
from weft.frontends.torch.importer.sizes import size_of, sizes_of

# Views of a whole tensor: a result that is one of them may share the memory of what it views.
_ALIASES = {torch.ops.aten.alias.default, torch.ops.aten.detach.default}


def aliased(node: Any) -> Any:
    """The node that a chain of aliases is of, if it has the same strides."""
    while isinstance(node, fx.Node) and node.target in _ALIASES and node.op == "call_function":
        node = node.args[0]
    return node


def memory_owners(
    nodes: Iterable[fx.Node], items: Sequence[Any], written: Mapping[fx.Node, fx.Node]
) -> dict[fx.Node, fx.Node]:
    """For each output that lies in the memory of an argument, or of a result beside others: the node that owns it.

    `written` are the arguments that take new values, and the nodes of these. AOTAutograd may make a view of such an
    argument out of where the output lies in the memory of the new value.
    """
    storages = {item: _storage(item) for item in items if isinstance(item, fx.Node)}
    counts = Counter(storages.values())
    updated = {_storage(value) for value in written.values()}
    shared = {
        storage
        for item, storage in storages.items()
        if storage is not None and (counts[storage] > 1 or (storage in updated and _is_symbolic(item)))
    }
    arguments: dict[int | None, list[fx.Node]] = {}
    makers: dict[int | None, fx.Node] = {}
    for node in nodes:
        if node.op != "placeholder" and not shared:
            break  # arguments come first
        if (storage := _storage(node)) in counts:
            if node.op == "placeholder":
                arguments.setdefault(storage, []).append(node)
            else:
                makers.setdefault(storage, node)
    owned: dict[fx.Node, fx.Node] = {}
    for item, storage in storages.items():
        given = arguments.get(storage, [])
        # Arguments that shared memory while tracing may lie apart in a call, so the output is only its own one's.
        owner = viewed_node(item) if len(given) > 1 else given[0] if given else makers.get(storage)
        if storage is not None and owner is not None and (owner in given or not given):
            owned[item] = owner
    return {
        item: owner
        for item, owner in owned.items()
        if (owner not in written if owner.op == "placeholder" else storages[item] in shared and _is_made(owner))
    }


def shared_arguments(graph: fx.Graph) -> tuple[str, ...]:
    """Which arguments of a captured graph lie in one memory, as text; those that have theirs for themselves do not."""
    found: dict[int, list[str]] = {}
    for node in graph.find_nodes(op="placeholder"):
        if (storage := _storage(node)) is not None:
            found.setdefault(storage, []).append(node.name)
    return tuple(f"in one memory {names}" for names in found.values() if len(names) > 1)


def viewed_node(node: fx.Node) -> fx.Node:
    """What a chain of views begins with."""
    storage = _storage(node)
    while node.op == "call_function":
        if node.target is operator.getitem:
            source = node.args[0]
        else:
            arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
            places = [place for place, argument in enumerate(arguments) if argument.alias_info is not None]
            source = node.args[places[0]] if places and places[0] < len(node.args) else None
        if not isinstance(source, fx.Node) or _storage(source) not in (storage, None):
            break
        node = source
    return node


def _is_symbolic(node: fx.Node) -> bool:
    """Whether it takes a call to tell where the elements of a tensor lie."""
    meta: torch.Tensor = node.meta["val"]
    return any(isinstance(size, torch.SymInt) for size in (*meta.shape, *meta.stride(), meta.storage_offset()))


def _is_made(node: fx.Node) -> bool:
    """Whether a node's result is new memory, all of which it covers, and which is read as it is."""
    meta: torch.Tensor = node.meta["val"]
    is_view = getattr(node.target, "is_view", False) or meta.is_conj() or meta.is_neg()
    return node.op == "call_function" and not is_view


def view_of(base: Returned | Passed, owner: torch.Tensor, meta: torch.Tensor) -> Viewed:
    """The output that looks at the memory of a result or an argument as the captured tensor does at its owner's."""
    start: Any = owner.storage_offset()
    if meta.itemsize != owner.itemsize:
        start = start * owner.itemsize // meta.itemsize
    dtype = str(meta.dtype).removeprefix("torch.")
    shape, strides, offset = sizes_of(meta.shape), sizes_of(meta.stride()), size_of(meta.storage_offset() - start)
    return Viewed(base, shape, strides, offset, dtype, meta.is_conj(), meta.is_neg())


def replaced(mutated: Sequence[tuple[int, int]], outputs: Sequence[Output]) -> tuple[tuple[int, int], ...]:
    """Of the arguments that take new values, those whose value is given to nobody else: it may be written over them."""
    shown = {output.result for output in outputs if isinstance(output, Returned)}
    bases = [output.base for output in outputs if isinstance(output, Viewed)]
    shown |= {base.result for base in bases if isinstance(base, Returned)}
    takers = Counter(result for _, result in mutated)
    return tuple(pair for pair in mutated if pair[1] not in shown and takers[pair[1]] == 1)


def _storage(node: fx.Node) -> int | None:
    """What tells the memory of captured tensors apart; None for what has none."""
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or meta.layout != torch.strided:
        return None
    return meta.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]
