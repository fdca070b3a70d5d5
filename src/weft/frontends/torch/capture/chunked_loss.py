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

import copy
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from weft.config import Config
from weft.diagnostics import warn
from weft.frontends.torch.capture.chunked_cross_entropy import chunked_cross_entropy
from weft.frontends.torch.capture.graph_effects import changes_what_follows, is_differentiated_inside

_LINEAR = functional.linear
_OPERANDS: dict[Any, tuple[str, ...]] = {
    _LINEAR: ("input", "weight", "bias"),
    operator.matmul: ("a", "b"),
    torch.matmul: ("input", "other"),
    torch.mm: ("input", "mat2"),
}
_CASTS = ("float", "double", "to")
_VIEWS = ("contiguous", "view", "reshape", "flatten", torch.reshape, torch.flatten)
_PARAMETERS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_WHOLE = slice(None, None, None)

_LEAST_ROWS = {"cpu": 256, "cuda": 2048}
"""Rows of a chunk that is found. The gradient of the weights is read and written once for each: 2 V H elements, beside
6 V H operations a row. With ten of these for each byte that memory moves meanwhile, that is a twentieth of the time:
200 rows on a processor core (150 GFLOP/s and 15 GB/s), 1,400 on an H200 with bf16 (800 TFLOP/s and 4.5 TB/s)."""
_WORTH = 2
"""Chunks that are at least found: fewer save no memory."""
_MOST_CHUNKS = 64
"""Each is traced and compiled with those before it, and what a chunk holds is small beside the rest by then."""


def _told(config: Config) -> str:
    return config.chunked_loss or ("auto" if config.memory_budget else "0")


def chunk_rows(config: Config, rows: int, classes: int, width: int, device: str) -> int:
    """How many rows of logits are computed at a time; 0 where all are, as they are no larger than their operands."""
    told, least = _told(config), -(-rows // _MOST_CHUNKS)
    if told != "auto":
        return max(int(told), least) if int(told) else 0
    found = _LEAST_ROWS.get(device, _LEAST_ROWS["cpu"])
    if rows < _WORTH * found or rows * classes <= rows * width + classes * width:
        return 0
    return max(found, least)


@dataclass(frozen=True)
class _Loss:
    """A loss of a projection: its node, the nodes from its logits back to the projection, and what is projected."""

    loss: fx.Node
    chain: list[fx.Node]
    hidden: fx.Node
    weight: fx.Node
    bias: fx.Node | None

    @property
    def width(self) -> int:
        return int(_tensor(self.hidden).shape[-1])


def with_chunked_losses(module: fx.GraphModule, config: Config) -> fx.GraphModule:
    """A graph that Dynamo captured, or a copy of it with its losses in chunks of rows, as the options say."""
    if _told(config) != "auto" and not int(_told(config)):
        return module
    if not module.graph.find_nodes(op="call_function", target=functional.cross_entropy):
        return module
    graph = copy.deepcopy(module.graph)
    left = "functions are differentiated or batched inside" if is_differentiated_inside(graph) else ""
    changed = False
    for node in graph.find_nodes(op="call_function", target=functional.cross_entropy):
        found = left or _projection_of(node)
        if not isinstance(found, str):
            changed |= _replace(found, config)
        elif config.chunked_loss:
            advice = "return the loss alone, of rows of logits and class indices"
            warn("options", "chunked_loss has no effect on a loss", found, advice)
    return _with_graph(module, graph) if changed else module


def _with_graph(module: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """The same module with another graph: weights are shared."""
    made = fx.GraphModule(module, graph, module.__class__.__name__)
    made.meta.update(module.meta)
    for name, value in vars(module).items():
        vars(made).setdefault(name, value)
    for old, new in zip(module.graph.find_nodes(op="placeholder"), graph.find_nodes(op="placeholder"), strict=True):
        for name, value in vars(old).items():
            vars(new).setdefault(name, value)  # Dynamo notes there where arguments come from
    return made


def _given(loss: fx.Node) -> dict[str, Any]:
    return dict(zip(_PARAMETERS, loss.args, strict=False)) | loss.kwargs


def _refusal(given: dict[str, Any]) -> str:
    """What of a loss's parameters chunks cannot have; empty if they can have all."""
    if given.get("size_average") is not None or given.get("reduce") is not None:
        return "it is reduced as torch used to"
    logits, labels, weights = _value(given["input"]), _value(given["target"]), given.get("weight")
    if logits is None or labels is None or logits.dim() != 2 or labels.dim() != 1:
        return "its logits are not rows, or its labels no indices"
    if any(isinstance(size, torch.SymInt) for size in (*logits.shape, *labels.shape)):
        return "the number of its rows is not known"
    if labels.dtype not in (torch.int64, torch.uint8) or labels.shape[0] != logits.shape[0]:
        return "its labels are not one class index for each row"
    smoothing, ignored = given.get("label_smoothing", 0.0), given.get("ignore_index", -100)
    if not isinstance(smoothing, int | float) or not isinstance(ignored, int):
        return "its parameters are no numbers"
    if given.get("reduction", "mean") not in ("none", "mean", "sum"):
        return "its reduction is not known"
    known = _value(weights)
    if weights is not None and (known is None or known.requires_grad or known.shape != logits.shape[1:]):
        return "its weights of classes are not one constant for each"
    return ""


def _projection_of(loss: fx.Node) -> _Loss | str:
    """The projection that a loss is of, after which rows are only cut, put in line and cast; or why it has none."""
    given = _given(loss)
    if refusal := _refusal(given):
        return refusal
    node, chain, casts, cut = given["input"], list[fx.Node](), 0, False
    while isinstance(node, fx.Node) and node.op in ("call_method", "call_function") and len(node.users) == 1:
        chain.append(node)
        if node.target in _OPERANDS:
            return _of_rows(loss, chain)
        source = node.args[0] if node.args else node.kwargs.get("input")
        before, after = _value(source), _value(node)
        if before is None or after is None or before.shape[-1:] != after.shape[-1:] or before.device != after.device:
            break
        if node.target is operator.getitem:
            if not _keeps_columns(node.args[1], before.dim()):
                break
            cut = True
        elif node.target in _VIEWS:
            if before.dtype != after.dtype:
                break  # the bits are read in another way
            if cut and before.shape != after.shape:
                return "its logits are put in line before rows are cut from them"
        elif node.target not in _CASTS:
            break
        casts += before.dtype != after.dtype
        if casts > 1:
            return "its logits are cast more than once"
        node = source
    return "something else reads its logits, or they come of no projection"


def _of_rows(loss: fx.Node, chain: list[fx.Node]) -> _Loss | str:
    """The loss, if what its projection reads is the same where the loss stands."""
    node = chain[-1]
    names = _OPERANDS[node.target]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    hidden, weight = given.get(names[0]), given.get(names[1])
    bias = given.get("bias")
    if not given.keys() <= set(names) or not isinstance(hidden, fx.Node) or not isinstance(weight, fx.Node):
        return "its projection is not by one matrix"
    rows, matrix = _value(hidden), _value(weight)
    if rows is None or rows.dim() < 2 or matrix is None or matrix.dim() != 2:
        return "its projection is not by one matrix"
    if isinstance(rows.shape[-1], torch.SymInt) or _value(node) is None or _value(loss) is None:
        return "the size of what is projected is not known"
    if bias is not None and (not isinstance(bias, fx.Node) or _value(bias) is None or _tensor(bias).dim() != 1):
        return "the bias of its projection is not one number for each class"
    between = node.next
    while between is not loss:
        if changes_what_follows(between):
            return "between its projection and it tensors are written to, or a mode of torch is changed"
        between = between.next
    return _Loss(loss, chain, hidden, weight, bias)


def _replace(found: _Loss, config: Config) -> bool:
    loss, graph = found.loss, found.loss.graph
    given = _given(loss)
    logits, projection = _tensor(given["input"]), found.chain[-1]
    rows = chunk_rows(config, int(logits.shape[0]), int(logits.shape[1]), found.width, logits.device.type)
    if not 0 < rows < logits.shape[0]:
        return False
    told = (
        given.get("ignore_index", -100),
        given.get("reduction", "mean"),
        float(given.get("label_smoothing", 0.0)),
    )
    dtypes = tuple(_tensor(node).dtype for node in (projection, given["input"], loss))
    hidden, weight = found.hidden, found.weight
    with graph.inserting_before(loss):
        if projection.target is not _LINEAR:
            weight = graph.call_method("t", (weight,))
        for view in reversed(found.chain):
            if view.target is operator.getitem:
                hidden = graph.call_function(operator.getitem, (hidden, view.args[1]))
        hidden = graph.call_method("reshape", (hidden, -1, found.width))
        operands = (hidden, weight, found.bias, given["target"], given.get("weight"))
        made = graph.call_function(chunked_cross_entropy, (*operands, dtypes, rows, *told))
    made.meta.update(loss.meta)
    loss.replace_all_uses_with(made)
    # Nothing else is dead for sure: Dynamo's graphs write to tensors by nodes that nobody reads.
    for node in (loss, *found.chain):
        graph.erase_node(node)
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
    assert value is not None, "it was looked at before"
    return value
