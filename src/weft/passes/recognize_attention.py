"""Find attention that is written out, by a model's author or by torch's decompositions, and make it one op.

The scores between the two products never exist in memory then: the op's kernel keeps a block of them at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import DType, bf16, f16, tensor_of
from weft.ops.attention import AnyAttention
from weft.ops.base import GraphOp, View
from weft.ops.dot import Dot, transposed
from weft.ops.graph import FuncOp, GraphBuilder
from weft.passes.attention_masks import Masks
from weft.passes.constant_values import made_by, number_of


@dataclass(frozen=True)
class RecognizeAttention(ModulePass):
    """Two products with a softmax between them, where nobody else reads what lies between, become one op.

    %s = graph.dot %q, (graph.permute %k)
    %t = graph.add (graph.mul %s, 0.125), %mask
    %e = graph.exp (graph.sub %t, (graph.max %t))       →       %o = graph.attention %q, %k, %v, %mask
    %p = graph.div %e, (graph.sum %e)                               {causal = false, scale = 0.125}
    %o = graph.dot %p, %v

    Masks become booleans, and `causal`, where it can be seen that they are. A further score of each row whose weight is
    left out, as models learn for each head, scales what attention gives by the share that the others have of the sum.
    With `narrow`, only attention over 16-bit floats is taken, also where these were widened for it, and computed on
    these: tensor cores keep sums in f32 anyway.
    """

    name: ClassVar[str] = "recognize_attention"
    narrow: bool = False

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.body.block.ops:
            if not isinstance(function, FuncOp):
                continue
            for candidate in list(function.block.ops):
                b = GraphBuilder(function.block, candidate.location, before=candidate)
                replacement: Sequence[SSAValue] = ()
                if isinstance(candidate, Dot):
                    found = _recognized(b, candidate, narrow=self.narrow)
                    replacement = () if found is None else (found,)
                elif isinstance(candidate, AnyAttention):
                    replacement = _with_better_mask(b, candidate)
                if replacement:
                    for old, new in zip(candidate.results, replacement, strict=True):
                        old.replace_all_uses_with(new)
                    _erase(candidate)


def _erase(op: Operation) -> None:
    op.detach()
    op.erase()


@dataclass
class _Softmax:
    """A softmax over the last dimension of `scores`; `safe` if a row of -∞ gives zeros instead of NaN."""

    scores: SSAValue
    ops: list[GraphOp]
    safe: bool


_LEAST_ROWS = 128
"""Rows that are a tile for tensor cores: of fewer, with a further score, keys would not be split over a whole GPU."""

# What may stand between the first product and the softmax.
_STEPS = ("graph.add", "graph.where", "graph.mul", "graph.div", "graph.cast", "graph.reshape")


def _recognized(b: GraphBuilder, product: Dot, *, narrow: bool) -> SSAValue | None:
    weights, v = product.operands
    ops: list[GraphOp] = [product]
    value = _through_views(weights, ops)
    cut = _without_last(value)
    if cut is not None:
        ops.append(cut)
        value = _through_views(cut.operands[0], ops)
    softmax = _softmax(value)
    if softmax is None:
        return None
    ops += softmax.ops
    value, further = softmax.scores, None
    if cut is not None:
        joined = made_by(_unshifted(value, ops), "graph.concat")
        if joined is None or not _adds_one_score(joined, narrow=narrow):
            return None
        ops.append(joined)
        value, further = joined.operands
    # Where there is a further score, rows without any key give zeros, and lowest numbers hide as -inf does.
    masks, scale = (
        Masks(tensor_of(value.type).shape, softmax.safe or further is not None, hides=further is not None),
        1.0,
    )
    while step := made_by(value, "graph.add", "graph.where", "graph.mul", "graph.div", "graph.cast", "graph.reshape"):
        ops.append(step)
        factor = _factor(step)
        if step.name in ("graph.cast", "graph.reshape"):
            if not _keeps_scores(step):
                return None
            value = step.operands[0]
        elif factor is not None:
            value, by = factor
            scale *= by
        elif scale != 1.0:  # a mask that is scaled too
            return None
        else:
            inner = _masked(masks, step)
            if inner is None:
                return None
            value = inner
    if not isinstance(value.owner, Dot):
        return None
    ops.append(value.owner)
    if not _only_read_within(ops):
        return None
    return _emit(b, product, value.owner, v, masks, scale, further, narrow=narrow)


def _without_last(value: SSAValue) -> GraphOp | None:
    """The op that leaves the last column out, if the value is made by it."""
    cut = made_by(value, "graph.slice")
    if cut is None or any(cut.params["starts"]) or any(step != 1 for step in cut.params["steps"]):
        return None
    *lead, columns = tensor_of(cut.operands[0].type).shape
    return cut if tensor_of(value.type).shape == (*lead, columns - 1) else None


def _unshifted(value: SSAValue, ops: list[GraphOp]) -> SSAValue:
    """Scores before their greatest was subtracted, which changes nothing of their softmax, and before casts."""
    while (step := made_by(value, "graph.cast", "graph.sub")) is not None:
        source = step.operands[0]
        if step.name == "graph.sub":
            greatest = made_by(step.operands[1], "graph.max")
            last = {"dims": (tensor_of(source.type).rank - 1,), "keep": True}
            if greatest is None or greatest.operands[0] is not source or greatest.params != last:
                break
            ops.append(greatest)
        elif not _keeps_scores(step):
            break
        ops.append(step)
        value = source
    return value


def _adds_one_score(joined: GraphOp, *, narrow: bool) -> bool:
    """Whether a concatenation puts one number behind the scores of each row, and there are rows enough."""
    *_, rows, columns = tensor_of(joined.results[0].type).shape
    last = joined.params["dim"] == tensor_of(joined.results[0].type).rank - 1
    one = len(joined.operands) == 2 and tensor_of(joined.operands[1].type).shape[-1] == 1
    return last and one and columns != 1 and (not narrow or (isinstance(rows, int) and rows >= _LEAST_ROWS))


def _through_views(value: SSAValue, ops: list[GraphOp]) -> SSAValue:
    """What the weights are a reshape or a rounded copy of."""
    while (step := made_by(value, "graph.cast", "graph.reshape")) is not None and _keeps_scores(step):
        ops.append(step)
        value = step.operands[0]
    return value


def _keeps_scores(step: GraphOp) -> bool:
    """Whether a reshape leaves the rows and columns of the scores alone, or a cast leaves floats floats."""
    source, result = tensor_of(step.operands[0].type), tensor_of(step.results[0].type)
    if step.name == "graph.cast":
        return source.dtype.is_float and result.dtype.is_float
    return min(source.rank, result.rank) >= 2 and source.shape[-2:] == result.shape[-2:]


def _softmax(value: SSAValue) -> _Softmax | None:
    ops: list[GraphOp] = []
    hidden: SSAValue | None = None
    if (choice := made_by(value, "graph.where")) is not None and number_of(choice.operands[1]) == 0:
        ops.append(choice)
        hidden, _, value = choice.operands
    quotient = made_by(value, "graph.div")
    powers = None if quotient is None else made_by(quotient.operands[0], "graph.exp")
    total = None if quotient is None else made_by(quotient.operands[1], "graph.sum")
    shifted = None if powers is None else made_by(powers.operands[0], "graph.sub")
    greatest = None if shifted is None else made_by(shifted.operands[1], "graph.max")
    if quotient is None or powers is None or total is None or shifted is None or greatest is None:
        return None
    scores = shifted.operands[0]
    last = {"dims": (tensor_of(scores.type).rank - 1,), "keep": True}
    if total.operands[0] is not powers.results[0] or greatest.operands[0] is not scores:
        return None
    if total.params != last or greatest.params != last:
        return None
    ops += [quotient, powers, total, shifted, greatest]
    if hidden is None:
        return _Softmax(scores, ops, safe=False)
    every = _every(hidden)
    equal = None if every is None else made_by(every[-1].operands[0], "graph.eq")
    if every is None or equal is None or number_of(equal.operands[1]) != -float("inf"):
        return None
    if _uncast(equal.operands[0]) is not _uncast(scores) or not any(op.params == last for op in every):
        return None
    return _Softmax(scores, [*ops, *every, equal], safe=True)


def _every(value: SSAValue) -> list[GraphOp] | None:
    """The ops that say whether something holds all over, or that it fails nowhere; the last one first."""
    if (every := made_by(value, "graph.all")) is not None:
        return [every]
    never = made_by(value, "graph.logical_not")
    somewhere = None if never is None else made_by(never.operands[0], "graph.any")
    fails = None if somewhere is None else made_by(somewhere.operands[0], "graph.logical_not")
    return None if never is None or somewhere is None or fails is None else [never, somewhere, fails]


def _uncast(value: SSAValue) -> SSAValue:
    cast = made_by(value, "graph.cast")
    return value if cast is None else cast.operands[0]


def _factor(step: GraphOp) -> tuple[SSAValue, float] | None:
    """The operand and the number of a multiplication by a number."""
    if step.name not in ("graph.mul", "graph.div"):
        return None
    x, y = step.operands
    number = number_of(y)
    if number is not None:
        return (x, float(number)) if step.name == "graph.mul" else (x, 1 / number) if number else None
    number = number_of(x) if step.name == "graph.mul" else None
    return None if number is None else (y, float(number))


def _masked(masks: Masks, step: GraphOp) -> SSAValue | None:
    """The scores before a mask is applied, which is noted; None where the step is no mask."""
    shape = tensor_of(step.results[0].type).shape
    if shape != masks.shape:
        return None
    if step.name == "graph.add":
        for scores, mask in (step.operands, reversed(step.operands)):
            if tensor_of(scores.type).shape == shape and _leads_to_product(scores):
                return scores if masks.add(mask) else None
        return None
    if step.name != "graph.where":
        return None
    condition, yes, no = step.operands
    for scores, fill, keeps in ((yes, no, True), (no, yes, False)):
        number = number_of(fill)
        if number is not None and tensor_of(scores.type).shape == shape:
            return scores if masks.choose(condition, float(number), keeps) else None
    return None


def _leads_to_product(value: SSAValue, seen: set[SSAValue] | None = None) -> bool:
    """Whether the value is a product that was scaled and masked: to tell scores from a mask."""
    seen = set() if seen is None else seen
    step = made_by(value, *_STEPS)
    if step is None or value in seen:
        return isinstance(value.owner, Dot)
    seen.add(value)
    return any(_leads_to_product(operand, seen) for operand in step.operands)


def _only_read_within(ops: list[GraphOp]) -> bool:
    """Whether all but the first op are read by the others alone."""
    members: set[Operation] = set(ops)
    return all(use.operation in members for op in ops[1:] for result in op.results for use in result.uses)


def _emit(
    b: GraphBuilder,
    product: Dot,
    first: Dot,
    v: SSAValue,
    masks: Masks,
    scale: float,
    further: SSAValue | None,
    *,
    narrow: bool,
) -> SSAValue | None:
    dtype = wide = tensor_of(v.type).dtype
    if tensor_of(first.results[0].type).dtype != dtype or not dtype.is_float:
        return None
    lead = masks.shape[:-2]
    q, k, v = (_reshaped(b, x, (*lead, *tensor_of(x.type).shape[-2:])) for x in (*first.operands, v))
    q, by_q = _unscaled(q)
    k, by_k = _unscaled(k)
    k = _transposed(b, k)
    if narrow:
        q, k, v = map(_uncast, (q, k, v))
        dtype = tensor_of(v.type).dtype
        if {tensor_of(x.type).dtype for x in (q, k, v)} not in ({bf16}, {f16}):
            return None
        if dtype != wide and not _is_rounded(product.results[0], dtype):
            return None
    if not masks.fits(dtype):
        return None
    mask, causal = masks.combined(b, dtype)
    params = {"causal": causal, "scale": scale * by_q * by_k}
    result: SSAValue
    if further is None:
        result = b.attention(q, k, v, *mask, **params)
    else:
        result, sums = b.attention_with_lse(q, k, v, *mask, **params)
        result = _beside(b, result, sums, further)
    result = masks.without_hidden_rows(b, result if dtype == wide else b.cast(result, dtype=wide))
    shape = tensor_of(product.results[0].type).shape
    return result if tensor_of(result.type).shape == shape else b.reshape(result, shape=shape)


def _beside(b: GraphBuilder, result: SSAValue, sums: SSAValue, further: SSAValue) -> SSAValue:
    """What attention gives where a further score has its share of the sum of powers."""
    sums = b.reshape(sums, shape=(*b.tensor(sums).shape, 1))
    dtype, wide = b.tensor(result).dtype, b.tensor(sums).dtype
    others = b.exp(b.sub(b.cast(further, dtype=wide), sums))
    one = b.full_like(others, 1)
    return b.cast(b.mul(b.cast(result, dtype=wide), b.div(one, b.add(one, others))), dtype=dtype)


def _is_rounded(value: SSAValue, dtype: DType) -> bool:
    """Whether all that is read of a value, through views, is rounded to a type."""
    readers = [use.operation for use in value.uses]
    return all(
        (reader.name == "graph.cast" and tensor_of(reader.results[0].type).dtype == dtype)
        or (isinstance(reader, View) and _is_rounded(reader.results[0], dtype))
        for reader in readers
    )


def _unscaled(value: SSAValue) -> tuple[SSAValue, float]:
    """An operand of the first product before it was scaled by a number, and the number."""
    step = made_by(value, "graph.mul", "graph.div")
    factor = None if step is None or not step.results[0].has_one_use() else _factor(step)
    if factor is None or tensor_of(factor[0].type) != tensor_of(value.type):
        return value, 1.0
    return factor


def _reshaped(b: GraphBuilder, x: SSAValue, shape: tuple[Size, ...]) -> SSAValue:
    view = made_by(x, "graph.reshape")
    source = x if view is None else view.operands[0]
    return source if tensor_of(source.type).shape == shape else b.reshape(source, shape=shape)


def _transposed(b: GraphBuilder, x: SSAValue) -> SSAValue:
    view = made_by(x, "graph.permute")
    rank = tensor_of(x.type).rank
    if view is not None and view.params["dims"] == (*range(rank - 2), rank - 1, rank - 2):
        return view.operands[0]
    return transposed(b, x)


def _with_better_mask(b: GraphBuilder, op: AnyAttention) -> Sequence[SSAValue]:
    """The results of an attention op whose mask says the same with less; none where there is none."""
    q, k, v, *mask = op.operands
    if not mask:
        return ()
    shape = (*tensor_of(q.type).shape[:-1], tensor_of(k.type).shape[-2])
    masks = Masks(shape, safe=True, causal=op.params["causal"])
    dtype = tensor_of(mask[0].type).dtype if tensor_of(mask[0].type).dtype.is_float else tensor_of(q.type).dtype
    known = masks.keep(mask[0]) if not tensor_of(mask[0].type).dtype.is_float else masks.add(mask[0])
    if not known:
        return ()
    better, causal = masks.combined(b, dtype)
    if list(better) == mask and causal == op.params["causal"]:
        return ()
    made = type(op).make(q, k, v, *better, location=b.location, **op.params | {"causal": causal})
    b.insert(made)
    return made.results
