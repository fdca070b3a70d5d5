"""FlexAttention as attention: what functions of places say becomes a mask and numbers that are added to scores.

    flex_attention(q, k, v, score_mod, mask_mod)     →     graph.attention q, k, v, where(mask, added, -∞) {softcap}

The functions are called once, with the places of all batches, heads, rows and keys at once: what is done to each score
by itself is done to all of them by broadcasting. Where the functions do something else to scores, and in the backward,
it is torch's own formula, with all scores at once, that is imported in place of the call.
"""

# Torch's graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import fx
from torch._functorch.eager_transforms import enable_inplace_requires_grad
from torch._higher_order_ops.flex_attention import math_attention, sdpa_dense_backward
from torch._subclasses.fake_tensor import FakeTensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from weft.errors import UnsupportedError, WeftError
from weft.frontends.torch.aten.attention import flex_attention
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.inlining import graph_of, trace_decomposition
from weft.ops.matmul.attention import WIDEST_HEAD

if TYPE_CHECKING:
    from weft.frontends.torch.importer.import_nodes import NodeImporter

_aten: Any = torch.ops.aten


def is_flex(node: fx.Node) -> bool:
    """Whether a node is a call of FlexAttention, or of its backward."""
    return getattr(node.target, "_name", None) in ("flex_attention", "flex_attention_backward")


def import_flex(nodes: NodeImporter, node: fx.Node) -> tuple[Any, ...]:
    """The results of a node that `is_flex`, in the order of the leaves of what tracing recorded."""
    last, known = nodes.block.last_op, len(nodes.fallbacks)
    if _is_forward(node):
        try:
            flex = read_flex(node)
            masks = nodes.traced(flex.graph, [nodes.values[source] for source in flex.sources], nodes.converted)
            nodes.builder.enter(node)
            query, key, value = (nodes.values[each] for each in node.all_input_nodes[:3])
            return flex_attention(nodes.builder, query, key, value, *masks, scale=flex.scale, softcap=flex.softcap)
        except UnsupportedError:
            nodes.erase_after(last)
    graph, sources = trace_decomposition(node, math_attention if _is_forward(node) else _backward_of(node))
    for inner in graph.graph.nodes:
        inner.meta |= {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
    try:
        results = nodes.traced(graph, [nodes.values[source] for source in sources], nodes.call)
    except WeftError:  # the call is left to torch as a whole
        del nodes.fallbacks[known:]
        raise
    nodes.builder.enter(node)
    if any(made is None and wanted is not None for made, wanted in zip(results, nodes.builder.results, strict=True)):
        raise UnsupportedError("a gradient that its formula does not have")
    return results


def _backward_of(node: fx.Node) -> Callable[..., Any]:
    """Torch's formula for a backward: it asks of what is captured whether a gradient of it is wanted.

    Torch's trace has gradients of captured integers, too: nothing reads them, and they are 0.
    """
    wanted = [isinstance(each, torch.Tensor) for each in node.meta["val"][3]]

    def backward(*args: Any) -> Any:
        *others, captured, masks = args
        floats = [w and x.is_floating_point() for x, w in zip(captured, wanted, strict=True)]
        with enable_inplace_requires_grad(True):
            marked = [x.detach().requires_grad_() if w else x for x, w in zip(captured, floats, strict=True)]
        given: Any = (*others, tuple(marked), masks)
        *found, gradients = sdpa_dense_backward(*given)
        kinds = zip(gradients, captured, wanted, floats, strict=True)
        whole = [torch.zeros_like(x) if w and not is_float else each for each, x, w, is_float in kinds]
        return tuple(pytree.tree_leaves((*found, whole)))

    return functionalize(backward)  # it writes into results


def _is_forward(node: fx.Node) -> bool:
    return getattr(node.target, "_name", None) == "flex_attention"


def is_own_flex(node: fx.Node) -> bool:
    """Whether a GPU has a kernel for it that keeps scores in registers: torch's own way is to write them all."""
    if not _is_forward(node):
        return False
    query, key, value = (each.meta["val"] for each in node.args[:3])  # type: ignore[union-attr]
    width = query.shape[-1]
    fits = width % 16 == 0 and 64 <= width <= WIDEST_HEAD and value.shape[-1] == width
    return fits and query.dtype in (torch.float16, torch.bfloat16) and key.shape[-2] > 1


@dataclass(frozen=True)
class Flex:
    """A call, taken apart; the graph computes its mask, and what is added if anything is, from the sources."""

    scale: float
    softcap: float
    graph: fx.GraphModule
    sources: list[fx.Node]


def read_flex(node: fx.Node) -> Flex:
    """What a call says."""
    call_args: tuple[Any, ...] = node.args
    query, key, _, score_node, block_mask, scale, _, *buffers = call_args
    score_mod, mask_mod = (graph_of(each) for each in (score_node, block_mask[-1]))
    assert score_mod is not None and mask_mod is not None
    softcap, adds = _form(score_mod)
    captured: list[list[Any]] = [list(each) for each in (*buffers, (), ())[:2]]
    if not all(isinstance(each, fx.Node) for each in (*captured[0], *captured[1])):
        raise UnsupportedError("flex_attention over numbers that change")
    sources: list[fx.Node] = [query, key, *captured[0], *captured[1]]
    metas = [source.meta["val"] for source in sources]
    modes = [meta.fake_mode for meta in metas if isinstance(meta, FakeTensor)]
    if not modes:
        raise UnsupportedError("flex_attention without anything to trace it with")

    def call(query: torch.Tensor, key: torch.Tensor, *others: torch.Tensor) -> list[torch.Tensor]:
        sizes = (*query.shape[:3], key.shape[2])
        places = [
            torch.arange(size, device=query.device).view([size if d == place else 1 for d in range(4)])
            for place, size in enumerate(sizes)
        ]
        first = others[: len(captured[0])]
        found = [mask_mod(*places, *others[len(first) :])]
        if adds:
            # Scores are as wide whatever a function makes of them, of numbers in torch's default type for example.
            wide = torch.float64 if query.dtype == torch.float64 else torch.float32
            nothing = torch.zeros((1, 1, 1, 1), device=query.device, dtype=wide)
            found.append(score_mod(nothing, *places, *first).to(wide))
        return found

    with modes[0], torch.no_grad():
        graph = make_fx(call, decomposition_table=decompositions())(*metas)
    return Flex(float(scale), softcap, graph, sources)


def _form(score_mod: fx.GraphModule) -> tuple[float, bool]:
    """The limit that scores approach, if any, and whether anything is added to them, or they are hidden."""
    nodes = list(score_mod.graph.nodes)
    score = nodes[0]
    node = nodes[-1].args[0]
    node = node[0] if isinstance(node, tuple | list) else node
    adds = False
    while node is not score:
        inner = _under_sum(node, score)
        if inner is None:
            break
        adds, node = True, inner
    if node is score:
        return 0.0, adds
    softcap = _softcap(node, score)
    if softcap is None:
        raise UnsupportedError("flex_attention with scores that are neither added to, hidden nor capped")
    return softcap, adds


def _under_sum(node: fx.Node, score: fx.Node) -> fx.Node | None:
    """What something that does not depend on the score is added to, or that is hidden in places."""
    args: tuple[Any, ...] = node.args
    match node.target:
        case _aten.add.Tensor if not node.kwargs:
            pairs = (args, args[::-1])
        case _aten.sub.Tensor if not node.kwargs:
            pairs = (args,)
        case _aten.where.self if _is_nothing(args[2]):
            pairs = ((args[1], args[0]),)
        case _aten.where.ScalarOther if args[2] == -math.inf:
            pairs = ((args[1], args[0]),)
        case _:
            return None
    for inner, other in pairs:
        if _depends(inner, score) and not _depends(other, score):
            return inner
    return None


def _softcap(node: fx.Node, score: fx.Node) -> float | None:
    """The c of `c * tanh(score / c)`."""
    outer = _times(node)
    if outer is None or getattr(outer[0], "target", None) is not _aten.tanh.default:
        return None
    inner = _times(outer[0].args[0])
    if inner is None or inner[0] is not score or not math.isclose(inner[1] * outer[1], 1.0, rel_tol=1e-6):
        return None
    return outer[1]


def _times(node: Any) -> tuple[Any, float] | None:
    """The node that is multiplied or divided by a number, and by what it is multiplied."""
    if not isinstance(node, fx.Node) or node.target not in (_aten.mul.Tensor, _aten.div.Tensor):
        return None
    value, number = node.args
    if isinstance(value, int | float) and node.target is _aten.mul.Tensor:
        value, number = number, value
    if not isinstance(number, int | float) or not isinstance(value, fx.Node) or number == 0:
        return None
    return value, number if node.target is _aten.mul.Tensor else 1 / number


def _is_nothing(value: Any) -> bool:
    """Whether a value is -∞ everywhere."""
    if not isinstance(value, fx.Node):
        return value == -math.inf
    made = {_aten.full.default: 1, _aten.scalar_tensor.default: 0, _aten.full_like.default: 1}.get(value.target)  # type: ignore[arg-type]
    return made is not None and bool(value.args[made] == -math.inf)


def _depends(value: Any, source: fx.Node) -> bool:
    left, seen = [value], set[fx.Node]()
    while left:
        node = left.pop()
        if node is source:
            return True
        if isinstance(node, fx.Node) and node not in seen:
            seen.add(node)
            left += node.all_input_nodes
    return False
