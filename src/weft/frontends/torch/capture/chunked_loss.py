"""Cross-entropy of a projection in chunks of rows: no more logits exist at a time than a chunk has.

    %logits = linear %hidden, %weight, %bias
    %loss = cross_entropy %logits.float(), %labels     →     %loss = chunked_cross_entropy %hidden, %weight, %bias, …

How many rows a chunk has is told (`options={"chunked_loss": 1024}`), or found (`"auto"`, and where there is a memory
budget): as few as keep products busy. Logits that something else reads, too, are left whole, and a warning says so.
"""

# Torch's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnnecessaryIsInstance=false

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from weft.config import Config
from weft.diagnostics import warn
from weft.frontends.torch.capture.chunked_cross_entropy import chunked_cross_entropy

_LINEAR, _MATMULS = functional.linear, (operator.matmul, torch.matmul, torch.mm)
_SAME_PLACES = ("float", "double", "to", "contiguous", "view", "reshape", "flatten", torch.reshape, torch.flatten)
_PARAMETERS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_WHOLE = slice(None, None, None)

_LEAST_ROWS = {"cpu": 256, "cuda": 2048}
"""Rows of a chunk that is found. The gradient of the weights is read and written once for each: 2 V H elements, beside
6 V H operations a row. With ten of these for each byte that memory moves meanwhile, that is a twentieth of the time:
200 rows on a processor core (150 GFLOP/s and 15 GB/s), 1,400 on an H200 with bf16 (800 TFLOP/s and 4.5 TB/s)."""
_WORTH = 2
"""Chunks that are at least found: fewer save no memory."""


def chunk_rows(config: Config, rows: int, classes: int, width: int, device: str) -> int:
    """How many rows of logits are computed at a time; 0 where all are, as they are no larger than their operands."""
    told = config.chunked_loss or ("auto" if config.memory_budget else "0")
    if told != "auto":
        return int(told)
    found = _LEAST_ROWS.get(device, _LEAST_ROWS["cpu"])
    if rows < _WORTH * found or rows * classes <= rows * width + classes * width:
        return 0
    return found


@dataclass(frozen=True)
class _Loss:
    """A loss of a projection: its node, what is projected, and the type that logits are cast to, if they are."""

    loss: fx.Node
    hidden: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    wide: torch.dtype | None


def with_chunked_losses(module: fx.GraphModule, config: Config) -> fx.GraphModule:
    """A graph that Dynamo captured, with its losses in chunks of rows as the options say."""
    if (config.chunked_loss or "0") == "0" and not config.memory_budget:
        return module
    changed = False
    for node in list(module.graph.nodes):
        if node.target is not functional.cross_entropy:
            continue
        found = _projection_of(node)
        if isinstance(found, str):
            if config.chunked_loss:
                advice = "return the loss alone, of rows of logits and class indices"
                warn("options", "chunked_loss has no effect on a loss", found, advice)
            continue
        changed |= _replace(module, found, config)
    if changed:
        module.graph.eliminate_dead_code()
        module.recompile()
    return module


def _given(loss: fx.Node) -> dict[str, Any]:
    return dict(zip(_PARAMETERS, loss.args, strict=False)) | loss.kwargs


def _projection_of(loss: fx.Node) -> _Loss | str:
    """The projection that a loss is of, after which rows are only cut and put in line; or why it has none."""
    given = _given(loss)
    if given.get("size_average") is not None or given.get("reduce") is not None:
        return "it is reduced as torch used to"
    logits, labels = given["input"], given["target"]
    if _rank(logits) != 2 or _rank(labels) != 1:
        return "its logits are not rows, or its labels no indices"
    if any(isinstance(size, torch.SymInt) for size in (*_tensor(logits).shape, *_tensor(labels).shape)):
        return "the number of its rows is not known"
    node, views, wide = logits, list[fx.Node](), None
    while node.op in ("call_method", "call_function") and len(node.users) == 1:
        if node.target is _LINEAR or node.target in _MATMULS:
            return _of_rows(loss, node, views, wide)
        if node.target is operator.getitem:
            if not _keeps_columns(node.args[1], _rank(node.args[0])):
                break
        elif node.target not in _SAME_PLACES:
            break
        before, after = _value(node.args[0]), _value(node)
        if before is None or after is None or before.shape[-1] != after.shape[-1]:
            break
        wide = after.dtype if wide is None and before.dtype != after.dtype else wide
        views.append(node)
        node = node.args[0]  # type: ignore[assignment]
    return "something else reads its logits, or they come of no projection"


def _of_rows(loss: fx.Node, node: fx.Node, views: list[fx.Node], wide: torch.dtype | None) -> _Loss | str:
    """The same rows of what is projected, made in place of those of the logits."""
    graph = loss.graph
    hidden, weight, *rest = (*node.args, *node.kwargs.values())
    bias = rest[0] if rest else None
    if not isinstance(hidden, fx.Node) or not isinstance(weight, fx.Node) or _rank(weight) != 2:
        return "its projection is not by one matrix"
    with graph.inserting_before(loss):
        if node.target is not _LINEAR:
            weight = graph.call_method("t", (weight,))
        for view in reversed(views):
            if view.target is operator.getitem:
                hidden = graph.call_function(operator.getitem, (hidden, view.args[1]))
        hidden = graph.call_method("reshape", (hidden, -1, _tensor(node.args[0]).shape[-1]))
    return _Loss(loss, hidden, weight, bias if isinstance(bias, fx.Node) else None, wide)


def _replace(module: fx.GraphModule, found: _Loss, config: Config) -> bool:
    loss = found.loss
    given = _given(loss)
    logits, hidden = _tensor(given["input"]), found.hidden
    width = hidden.args[-1]
    assert isinstance(width, int)
    rows = chunk_rows(config, int(logits.shape[0]), int(logits.shape[1]), width, logits.device.type)
    if not 0 < rows < logits.shape[0]:
        return False
    told = (
        given.get("ignore_index", -100),
        given.get("reduction", "mean"),
        float(given.get("label_smoothing", 0.0)),
    )
    operands = (hidden, found.weight, found.bias, given["target"], given.get("weight"))
    with module.graph.inserting_before(loss):
        made = module.graph.call_function(chunked_cross_entropy, (*operands, found.wide, rows, *told))
    made.meta.update(loss.meta)
    loss.replace_all_uses_with(made)
    module.graph.erase_node(loss)
    return True


def _keeps_columns(index: Any, rank: int) -> bool:
    """Whether an index cuts out rows alone."""
    if not isinstance(index, tuple) or not all(each is Ellipsis or isinstance(each, slice) for each in index):
        return False
    return index[-1] == _WHOLE if len(index) == rank or Ellipsis in index[:-1] else index[-1] is Ellipsis


def _value(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _tensor(node: Any) -> Tensor:
    value = _value(node)
    assert value is not None, "its rank was asked before"
    return value


def _rank(node: Any) -> int:
    value = _value(node)
    return -1 if value is None else value.dim()
