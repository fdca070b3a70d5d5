"""Find attention that is written out, by a model's author or by torch's decompositions, and make it one op.

The scores between the two matmuls never exist in memory then: the op's kernel keeps a block of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass

from weft.ir.expr import Size
from weft.ir.types import DType, bf16, f16, tensor_of
from weft.ops.base import GraphOp, View
from weft.ops.graph import FuncOp, GraphBuilder
from weft.ops.matmul.attention import WIDEST_HEAD, AnyAttention, widest_head
from weft.ops.matmul.dot import Dot
from weft.passes.attention.attention_masks import Masks, unbroadcast
from weft.passes.attention.attention_operands import factor_of, reshaped, times_number, uncast, untransposed
from weft.passes.simplify.arithmetic_rules import holds
from weft.passes.simplify.constant_values import made_by, number_of


@dataclass(frozen=True)
class RecognizeAttention(ModulePass):
    """Two matmuls with a softmax between them, where nobody else reads what lies between, become one op.

    %s = graph.dot %q, (graph.permute %k)
    %t = graph.add (graph.mul %s, 0.125), %mask
    %e = graph.exp (graph.sub %t, (graph.max %t))       →       %o = graph.attention %q, %k, %v, %mask
    %p = graph.div %e, (graph.sum %e)                               {causal = false, scale = 0.125}
    %o = graph.dot %p, %v

    Masks become booleans, and `causal`, where it can be seen that they are. A further score of each row whose weight is
    left out, as models learn for each head, becomes an operand. With `narrow`, only attention over 16-bit floats is
    taken, also where these were widened for it, and computed on these: tensor cores keep sums in f32 anyway.
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
    """A softmax over the last dimension of `scores`; `safe` if a row of -∞ gives zeros instead of NaN.

    Perhaps with `sinks`, which are a column of scores that nothing is weighted by.
    """

    scores: SSAValue
    ops: list[GraphOp]
    safe: bool
    sinks: tuple[SSAValue, ...] = ()


# What may stand between the first matmul and the softmax.
_STEPS = ("graph.add", "graph.where", "graph.mul", "graph.div", "graph.cast", "graph.reshape", "graph.tanh")


def _recognized(b: GraphBuilder, product: Dot, *, narrow: bool) -> SSAValue | None:
    weights, v = product.operands
    wide = tensor_of(v.type).dtype
    values = factor_of(v, (bf16, f16) if narrow else (wide,), scaled=False)
    ops: list[GraphOp] = [product]
    softmax = _softmax_of(weights, ops, values.dtype)
    if softmax is None:
        return None
    ops += softmax.ops
    masks = Masks(tensor_of(softmax.scores.type).shape, softmax.safe, hides=bool(softmax.sinks))
    scale, softcap = 1.0, 0.0
    value = softmax.scores
    while step := made_by(value, *_STEPS):
        ops.append(step)
        factor = times_number(step)
        if step.name in ("graph.cast", "graph.reshape"):
            if not _keeps_scores(step, values.dtype):
                return None
            value = step.operands[0]
        elif factor is not None and tensor_of(factor[0].type) == tensor_of(value.type):
            value, by = factor
            scale *= by
        elif step.name == "graph.tanh" and not softcap and scale > 0:
            value, softcap = step.operands[0], scale
        elif softcap or scale != 1.0:  # a mask that is scaled too
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
    numbers = {"scale": scale, **({"softcap": softcap} if softcap else {})}
    return _emit(b, product, value.owner, v, masks, softmax.sinks, numbers, narrow=narrow)


def _through_views(value: SSAValue, ops: list[GraphOp], dtype: DType) -> SSAValue:
    """What the weights are a reshape or a rounded copy of."""
    while (step := made_by(value, "graph.cast", "graph.reshape")) is not None and _keeps_scores(step, dtype):
        ops.append(step)
        value = step.operands[0]
    return value


def _keeps_scores(step: GraphOp, dtype: DType) -> bool:
    """Whether a reshape leaves the rows and columns of the scores alone, or a cast has floats as fine as the values."""
    source, result = tensor_of(step.operands[0].type), tensor_of(step.results[0].type)
    if step.name == "graph.cast":
        return source.dtype.is_float and result.dtype.is_float and holds(result.dtype, dtype)
    return min(source.rank, result.rank) >= 2 and source.shape[-2:] == result.shape[-2:]


def _softmax_of(weights: SSAValue, ops: list[GraphOp], dtype: DType) -> _Softmax | None:
    """The softmax that weights are, or all columns of which they are but that of sinks; what lies between is noted."""
    value = _through_views(weights, ops, dtype)
    part = made_by(value, "graph.slice")
    if part is None:
        return _softmax(value)
    ops.append(part)
    softmax = _softmax(_through_views(part.operands[0], ops, dtype))
    return None if softmax is None else _without_sinks(softmax, part, dtype)


def _without_sinks(softmax: _Softmax, part: GraphOp, dtype: DType) -> _Softmax | None:
    """A softmax over scores and a column of sinks, of which a part has all but this column."""
    value = softmax.scores
    shape = tensor_of(value.type).shape
    last = {"dims": (len(shape) - 1,), "keep": True}
    while (step := made_by(value, "graph.cast", "graph.sub")) is not None:
        softmax.ops.append(step)
        if step.name == "graph.sub":  # what is subtracted from all scores of a row does not count
            greatest = made_by(step.operands[1], "graph.max")
            if greatest is None or greatest.operands[0] is not step.operands[0] or greatest.params != last:
                return None
            softmax.ops.append(greatest)
        elif not _keeps_scores(step, dtype):
            return None
        value = step.operands[0]
    joined = made_by(value, "graph.concat")
    if softmax.safe or joined is None or len(joined.operands) != 2 or joined.params["dim"] != len(shape) - 1:
        return None
    softmax.ops.append(joined)
    first = tensor_of(joined.operands[0].type).shape[-1] == 1  # sinks may stand before the scores, or behind them
    sinks, scores = joined.operands if first else reversed(joined.operands)
    starts, steps = ((int(first) if d == len(shape) - 1 else 0 for d in range(len(shape))), (1,) * len(shape))
    wanted = {"starts": tuple(starts), "shape": tensor_of(scores.type).shape, "steps": steps}
    if tensor_of(sinks.type).shape[-1] != 1 or part.params != wanted:
        return None
    return _Softmax(scores, softmax.ops, safe=True, sinks=(unbroadcast(sinks),))


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
    if uncast(equal.operands[0]) is not uncast(scores) or not any(op.params == last for op in every):
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


def _masked(masks: Masks, step: GraphOp) -> SSAValue | None:
    """The scores before a mask is applied, which is noted; None where the step is no mask."""
    shape = tensor_of(step.results[0].type).shape
    if shape != masks.shape:
        return None
    if step.name == "graph.add":
        for scores, mask in (step.operands, reversed(step.operands)):
            if tensor_of(scores.type).shape == shape and _leads_to_product(scores):
                masks.add(mask)
                return scores
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
    """Whether the value is a matmul that was scaled and masked: to tell scores from a mask."""
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
    sinks: Sequence[SSAValue],
    numbers: dict[str, float],
    *,
    narrow: bool,
) -> SSAValue | None:
    wide = tensor_of(v.type).dtype
    if tensor_of(first.results[0].type).dtype != wide or not wide.is_float:
        return None
    dtypes = (bf16, f16) if narrow else (wide,)
    factors = [*(factor_of(x, dtypes) for x in first.operands), factor_of(v, dtypes, scaled=False)]
    dtype = factors[2].dtype
    if dtype not in dtypes or any(factor.dtype != dtype for factor in factors):
        return None
    if dtype != wide and not _is_rounded(product.results[0], dtype):
        return None
    # Wide heads take the place of matmuls of f32; those of 16 bits are as fast.
    most = WIDEST_HEAD if dtype == wide else widest_head(tensor_of(first.operands[0].type).shape[-2])
    if narrow and not all(_fits_tile(tensor_of(x.type).shape[-1], most) for x in (first.operands[0], v)):
        return None
    kind = dtype if masks.fits(dtype) else wide
    if not masks.fits(kind):
        return None
    lead = masks.shape[:-2]
    q, k, v = (reshaped(b, x, (*lead, *tensor_of(x.type).shape[-2:])) for x in (factor.seen(b) for factor in factors))
    k = untransposed(b, k)
    mask = masks.combined(b, kind)
    numbers["scale"] *= factors[0].scale * factors[1].scale
    flags = {"undefined": mask.hides_rows, "sinks": bool(sinks)}
    params = {"causal": mask.causal, **numbers, **{name: True for name, flag in flags.items() if flag}}
    result: SSAValue = b.attention(q, k, v, *mask.operands, *sinks, **params)
    result = result if dtype == wide else b.cast(result, dtype=wide)
    shape = tensor_of(product.results[0].type).shape
    return result if tensor_of(result.type).shape == shape else b.reshape(result, shape=shape)


def _fits_tile(width: Size, most: int) -> bool:
    return isinstance(width, int) and width <= most


def _is_rounded(value: SSAValue, dtype: DType) -> bool:
    """Whether all that is read of a value, through views, is rounded to a type."""
    readers = [use.operation for use in value.uses]
    return all(
        (reader.name == "graph.cast" and tensor_of(reader.results[0].type).dtype == dtype)
        or (isinstance(reader, View) and _is_rounded(reader.results[0], dtype))
        for reader in readers
    )


def _with_better_mask(b: GraphBuilder, op: AnyAttention) -> Sequence[SSAValue]:
    """The results of an attention op whose mask says the same with less; none where there is none."""
    q, k, v = op.operands[:3]
    mask = list(op.masks)
    if not mask or op.seen:
        return ()
    shape = (*tensor_of(q.type).shape[:-1], tensor_of(k.type).shape[-2])
    masks = Masks(shape, safe=True, causal=op.params["causal"])
    dtype = tensor_of(mask[0].type).dtype if tensor_of(mask[0].type).dtype.is_float else tensor_of(q.type).dtype
    if tensor_of(mask[0].type).dtype.is_float:
        masks.add(mask[0])
    else:
        masks.choose(mask[0], -math.inf, keeps=True)
    better = masks.combined(b, dtype)
    if list(better.operands) == mask and better.causal == op.params["causal"]:
        return ()
    params = op.params | {"causal": better.causal}
    made = type(op).make(q, k, v, *better.operands, *op.sinks, location=b.location, **params)
    b.insert(made)
    return made.results
