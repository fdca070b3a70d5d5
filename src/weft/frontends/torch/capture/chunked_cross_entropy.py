"""Cross-entropy of a projection, some rows at a time, with its gradients: what `chunked_loss` puts into a graph.

    loss of a row = (1 - ε) w[y] (lse - s[y]) + ε / V · Σ_c w[c] (lse - s[c])          s = hidden · weightᵀ + bias

Each chunk's logits `s` are made, and of them its part of the loss and, where gradients are wanted, those of all
operands: logits are computed once, as without chunks. What the loss is multiplied with later scales these gradients.
Losses that are not reduced have a factor for each row, which is known in the backward alone: their logits are made
again there, and so are those of float16, whose gradients would be too small before they are scaled. A gradient of the
gradients is an error.
"""

# Torch's functions have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUntypedFunctionDecorator=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@dataclass(frozen=True)
class CrossEntropy:
    """The parameters of a loss, and how many rows are computed at a time."""

    rows: int
    logits: torch.dtype
    """To which the projection is cast."""
    ignored: int = -100
    reduction: str = "mean"
    smoothing: float = 0.0


@dataclass(frozen=True)
class _Labels:
    """The labels of rows: whether each counts, its class (0 where it does not), and the weight of that class."""

    counted: Tensor
    places: Tensor
    factors: Tensor

    @classmethod
    def of(cls, labels: Tensor, weights: Tensor | None, ignored: int, wide: torch.dtype) -> _Labels:
        counted = labels != ignored
        places = torch.where(counted, labels, 0)
        chosen = torch.ones((), dtype=wide, device=labels.device) if weights is None else weights.to(wide)[places]
        return cls(counted, places, torch.where(counted, chosen, 0.0))

    def scale(self, reduction: str) -> Tensor:
        """What the sum of losses is multiplied with."""
        return 1.0 / self.factors.sum() if reduction == "mean" else self.factors.new_ones(())

    def part(self, rows: slice) -> _Labels:
        return _Labels(self.counted[rows], self.places[rows], self.factors[rows])


@dataclass(frozen=True)
class _Projection:
    """What is projected and compared with labels: the operands of both functions below."""

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    labels: Tensor
    weights: Tensor | None
    """Those of classes."""
    wide: torch.dtype
    """In which losses are computed: at least 32 bits."""
    loss: CrossEntropy

    def known_labels(self) -> _Labels:
        return _Labels.of(self.labels, self.weights, self.loss.ignored, self.wide)

    def chunks(self) -> list[slice]:
        count = int(self.hidden.shape[0])
        return [slice(start, min(start + self.loss.rows, count)) for start in range(0, count, self.loss.rows)]

    def scores(self, rows: slice) -> tuple[Tensor, Tensor]:
        """The logits of some rows, widened, and the logarithms of their sums of exponentials."""
        scores = functional.linear(self.hidden[rows], self.weight, self.bias).to(self.loss.logits).to(self.wide)
        return scores, torch.logsumexp(scores, -1)

    def losses(self, scores: Tensor, norm: Tensor, labels: _Labels) -> Tensor:
        """The loss of each row."""
        smoothing, classes = self.loss.smoothing, scores.shape[-1]
        picked = scores.gather(1, labels.places.unsqueeze(1)).squeeze(1)
        losses = (1.0 - smoothing) * labels.factors * (norm - picked)
        if smoothing:
            weighed = scores if self.weights is None else scores * self.weights.to(self.wide)
            spread = norm * self._weight_of_all(classes) - weighed.sum(-1)
            losses = losses + smoothing / classes * torch.where(labels.counted, spread, 0.0)
        return torch.where(labels.counted, losses, 0.0)

    def changes(self, scores: Tensor, norm: Tensor, labels: _Labels, factor: Tensor) -> Tensor:
        """The gradient of the logits of rows whose losses have these factors."""
        smoothing, classes = self.loss.smoothing, scores.shape[-1]
        own = (1.0 - smoothing) * labels.factors
        columns = torch.arange(classes, device=scores.device)
        hit = torch.where(columns == labels.places.unsqueeze(1), own.unsqueeze(1), 0.0)
        share = own + smoothing / classes * self._weight_of_all(classes) if smoothing else own
        change = torch.exp(scores - norm.unsqueeze(1)) * share.unsqueeze(1) - hit
        if smoothing:
            change = change - smoothing / classes * (1.0 if self.weights is None else self.weights.to(self.wide))
        counted = torch.where(labels.counted, factor, 0.0).unsqueeze(1)
        return (change * counted).to(torch.promote_types(self.hidden.dtype, self.weight.dtype))

    def _weight_of_all(self, classes: int) -> Tensor | float:
        return float(classes) if self.weights is None else self.weights.to(self.wide).sum()


@dataclass
class _Gradients:
    """The gradients of hidden rows, weight and bias, to which each chunk adds its part; None where none is wanted."""

    of: _Projection
    wants: Sequence[bool]
    weight: Tensor | None = None
    bias: Tensor | None = None

    def __post_init__(self) -> None:
        self.hidden: list[Tensor] = []

    def add(self, rows: slice, change: Tensor) -> None:
        if self.wants[0]:
            self.hidden.append(change @ self.of.weight)
        if self.wants[1]:
            turned, chunk = change.t(), self.of.hidden[rows]
            self.weight = turned @ chunk if self.weight is None else torch.addmm(self.weight, turned, chunk)
        if self.wants[2]:
            sums = change.to(self.of.wide).sum(0)
            self.bias = sums if self.bias is None else self.bias + sums

    def made(self) -> list[Tensor | None]:
        bias = None if self.bias is None or self.of.bias is None else self.bias.to(self.of.bias.dtype)
        return [torch.cat(self.hidden) if self.hidden else None, self.weight, bias]


class _Reduced(torch.autograd.Function):
    """The mean or the sum of losses, and the gradients that were made with it."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        projection = _Projection(*operands)
        known, loss, wide = projection.known_labels(), projection.loss, projection.wide
        scale = known.scale(loss.reduction)
        total = known.factors.new_zeros(())
        gradients = _Gradients(projection, ctx.needs_input_grad[:3])
        for rows in projection.chunks():
            scores, norm = projection.scores(rows)
            part = known.part(rows)
            total = total + projection.losses(scores, norm, part).sum()
            if any(gradients.wants):
                gradients.add(rows, projection.changes(scores, norm, part, scale))
        made = gradients.made()
        ctx.kept, ctx.wide = [value is not None for value in made], wide
        ctx.save_for_backward(*(value for value in made if value is not None))
        return total * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = iter(ctx.saved_tensors)
        made = [next(saved) if kept else None for kept in ctx.kept]
        factor = gradient.to(ctx.wide)
        scaled = [None if value is None else (value.to(ctx.wide) * factor).to(value.dtype) for value in made]
        return (*scaled, None, None, None, None)


class _Rows(torch.autograd.Function):
    """The loss of each row, or their mean or sum; logits are made again where gradients are."""

    @staticmethod
    def forward(ctx: Any, *operands: Any) -> Tensor:
        projection = _Projection(*operands)
        known, loss, wide = projection.known_labels(), projection.loss, projection.wide
        ctx.save_for_backward(*operands[:5])
        ctx.told = wide, loss
        parts = (projection.losses(*projection.scores(rows), known.part(rows)) for rows in projection.chunks())
        if loss.reduction == "none":
            return torch.cat(list(parts))
        scale, total = known.scale(loss.reduction), known.factors.new_zeros(())
        for part in parts:
            total = total + (part * scale).sum()
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, weights = ctx.saved_tensors
        wide, loss = ctx.told
        projection = _Projection(hidden, weight, bias, labels, weights, wide, loss)
        known = projection.known_labels()
        if loss.reduction != "none":
            gradient = (gradient * known.scale(loss.reduction)).expand(hidden.shape[0])
        # The same rows, whatever the gradient is: of hidden itself, AOTAutograd would know the logits from the forward,
        # and keep all of them.
        rows_now = torch.where((gradient == gradient).unsqueeze(1), hidden, hidden)
        projection = replace(projection, hidden=rows_now)
        gradients = _Gradients(projection, ctx.needs_input_grad[:3])
        for rows in projection.chunks():
            change = projection.changes(*projection.scores(rows), known.part(rows), gradient[rows])
            gradients.add(rows, change)
        return (*gradients.made(), None, None, None, None)


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    weights: Tensor | None,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
    rows: int,
    ignored: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    """`cross_entropy` of `linear(hidden, weight, bias)`, so many rows at a time.

    The types are those of the projection, of the logits, and of the loss.
    """
    narrow, logits, result = dtypes
    # As linear would under autocast: once for all chunks, and outside, where casts have gradients.
    hidden, weight = hidden.to(narrow), weight.to(narrow)
    bias = None if bias is None else bias.to(narrow)
    labels = labels.to(torch.int64)
    weights = None if weights is None else weights.detach()
    wide = torch.promote_types(logits, torch.float32)
    loss = CrossEntropy(rows, logits, ignored, reduction, smoothing)
    with torch.autocast(hidden.device.type, enabled=False):
        # Gradients of float16 are too small for it until they are scaled, which is known in the backward alone.
        later = reduction == "none" or narrow == torch.float16
        return (_Rows if later else _Reduced).apply(hidden, weight, bias, labels, weights, wide, loss).to(result)
