"""A layer of a decoder (Llama, Qwen, Mistral, Mixtral) as a graph of 8-bit integers, split for the chips that share it.

The graph says which chips compute what. Heads are split by groups that share keys, everything else by columns of
weights, so that parts are computed as they would be in one piece, and joined by `concat` of channels:

    n = norm(x)                                          every chip that reads it
    a = concat(attention(n Wq_p, cache_p + n Wk_p, …))   chip of p
    y = concat(a Wo_p + x_p);  m = norm(y)
    h = concat(silu(m Wg_p) · m Wu_p)
    z = concat(h Wd_p + y_p)

With experts all of them are computed for every token, each on its own chips, times the weight that a router gives it: 0
for those that are not chosen. So what is chosen as the program runs changes no cycle of it.

Weights are random: this is for time and space, and for comparing what is split with what is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ir.types import Tensor, f32, i8, i32
from weft.ops.graph import FuncOp
from weft.spatial.int8_transformer import TransformerBuilder


@dataclass(frozen=True)
class DecoderShape:
    """The sizes of a decoder. With experts, each has a gated hidden layer of its own, and a token takes some."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    width: int
    ffn: int
    layers: int
    vocabulary: int
    experts: int = 0
    chosen: int = 0

    @property
    def repeats(self) -> int:
        """Heads of queries that share one of keys."""
        return self.heads // self.kv_heads

    @property
    def inner(self) -> int:
        """Columns of the hidden layers, of all experts side by side."""
        return self.ffn * max(1, self.experts)

    @property
    def parameters(self) -> int:
        """Weights of products, without norms and the table of embeddings."""
        attention = self.hidden * self.width * (2 * self.heads + 2 * self.kv_heads)
        ffn = 3 * self.hidden * self.inner
        return self.layers * (attention + ffn + self.hidden * self.experts) + self.hidden * self.vocabulary


Span = tuple[int, int]
"""The first and the one after the last."""
Parts = Sequence[tuple[int, Span]]
"""Chips, and what each has; a chip may have several parts."""


@dataclass(frozen=True)
class Placement:
    """Which chip computes which part of a layer: heads in groups that share keys, the others in columns."""

    attention: Parts
    out: Parts
    ffn: Parts
    down: Parts
    """The same columns as `out`, to which they are added."""

    @property
    def chips(self) -> list[int]:
        parts = (*self.attention, *self.out, *self.ffn, *self.down)
        return sorted({chip for chip, _ in parts})


def whole(shape: DecoderShape, chip: int = 0) -> Placement:
    """Everything on one chip, in one piece."""
    out = [(chip, (0, shape.hidden))]
    return Placement([(chip, (0, shape.kv_heads))], out, _of_experts(shape, [(chip, (0, shape.ffn))]), out)


def _of_experts(shape: DecoderShape, parts: Parts) -> Parts:
    """The parts of a hidden layer for every expert."""
    return [
        (chip, (expert * shape.ffn + a, expert * shape.ffn + b))
        for expert in range(max(1, shape.experts))
        for chip, (a, b) in parts
    ]


def columns(size: int, chips: Sequence[int], lanes: int) -> list[tuple[int, Span]]:
    """Columns for each chip, in whole vectors, as equally as they are; chips beyond the vectors have none."""
    blocks = -(-size // lanes)
    edges = [min(size, blocks * number // len(chips) * lanes) for number in range(len(chips) + 1)]
    return [(chip, (a, b)) for chip, a, b in zip(chips, edges, edges[1:], strict=False) if a < b]


def groups(count: int, chips: Sequence[int]) -> list[tuple[int, Span]]:
    """Groups of heads for each chip."""
    edges = [count * number // len(chips) for number in range(len(chips) + 1)]
    return [(chip, (a, b)) for chip, a, b in zip(chips, edges, edges[1:], strict=False) if a < b]


def tensor_parallel(shape: DecoderShape, chips: Sequence[int], lanes: int, ffn: Sequence[int] = ()) -> Placement:
    """Every part split over all chips; the hidden layer and what is behind it on others, where these are given.

    Experts are shared out whole where there are as many as chips, and split over the chips that they have otherwise.
    """
    later = list(ffn or chips)
    share = max(1, len(later) // max(1, shape.experts))
    inner: list[tuple[int, Span]] = []
    for expert in range(max(1, shape.experts)):
        own = later if not shape.experts else [later[(expert * share + n) % len(later)] for n in range(share)]
        inner += [
            (chip, (expert * shape.ffn + a, expert * shape.ffn + b)) for chip, (a, b) in columns(shape.ffn, own, lanes)
        ]
    out, down = columns(shape.hidden, chips, lanes), columns(shape.hidden, later, lanes)
    if len(out) != len(down):
        down = [(later[number % len(later)], span) for number, (_, span) in enumerate(out)]
    return Placement(groups(shape.kv_heads, chips), out, inner, down)


def in_stages(shape: DecoderShape, chips: Sequence[int], lanes: int, together: int = 4) -> Placement:
    """A layer over chips one after another: attention, its output, the hidden layer, and what is behind it.

    What follows each other is cut where the fullest chip has the fewest tiles of weights: between groups of heads, and
    between columns, as many vectors of which stay together as there are planes.
    """
    deep, wide = -(-shape.hidden // lanes), -(-shape.ffn // lanes)
    group = deep * (shape.repeats + 2) * max(1, -(-shape.width // lanes))
    queries = shape.kv_heads * max(1, -(-shape.repeats * shape.width // lanes))
    inner_columns = -(-wide // together)
    units = {
        "attention": [group * 2 // 3] * shape.kv_heads,
        "out": [together * queries] * -(-deep // together),
        "ffn": [together * 2 * deep] * (inner_columns * max(1, shape.experts)),
        "down": [together * wide * max(1, shape.experts)] * -(-deep // together),
    }
    costs = [cost for each in units.values() for cost in each]
    least, most = max(costs), sum(costs)
    while least < most:
        limit = (least + most) // 2
        least, most = (least, limit) if _chips_of(costs, limit)[-1] < len(chips) else (limit + 1, most)
    own, at = _chips_of(costs, least), 0
    found: dict[str, list[int]] = {}
    for name, those in units.items():
        found[name], at = [chips[number] for number in own[at : at + len(those)]], at + len(those)
    attention = [(chip, (a, b)) for chip, a, b in _runs(found["attention"])]
    # What is added to the result lies on the chips of the output: both are cut where one of them is.
    edges = sorted({edge for name in ("out", "down") for _, a, b in _runs(found[name]) for edge in (a, b)})
    size = together * lanes
    both = [(a, (a * size, min(shape.hidden, b * size))) for a, b in pairwise(edges)]
    inner: list[tuple[int, Span]] = []
    for expert in range(max(1, shape.experts)):
        for chip, a, b in _runs(found["ffn"][expert * inner_columns : (expert + 1) * inner_columns]):
            first = expert * shape.ffn
            inner.append((chip, (first + a * size, first + min(shape.ffn, b * size))))
    return Placement(
        attention,
        [(found["out"][first], span) for first, span in both],
        inner,
        [(found["down"][first], span) for first, span in both],
    )


def _chips_of(costs: Sequence[int], limit: int) -> list[int]:
    """Which chip has each piece, when each takes as many as fit."""
    found: list[int] = []
    chip, room = 0, limit
    for cost in costs:
        if cost > room:
            chip, room = chip + 1, limit
        room -= cost
        found.append(chip)
    return found


def _runs(chips: Sequence[int]) -> list[tuple[int, int, int]]:
    """A chip, and the first and the one after the last of its pieces, which follow each other."""
    edges = [n for n in range(len(chips) + 1) if n in (0, len(chips)) or chips[n] != chips[n - 1]]
    return [(chips[a], a, b) for a, b in pairwise(edges)]


@dataclass
class LayerWeights:
    """The weights of a layer, in one piece: random 8-bit integers."""

    shape: DecoderShape
    seed: int = 0

    def __post_init__(self) -> None:
        s, rng = self.shape, np.random.default_rng(self.seed)
        sizes = {
            "q": (s.hidden, s.heads * s.width),
            "k": (s.hidden, s.kv_heads * s.width),
            "v": (s.hidden, s.kv_heads * s.width),
            "o": (s.heads * s.width, s.hidden),
        }
        sizes |= {"gate": (s.hidden, s.inner), "up": (s.hidden, s.inner), "down": (s.inner, s.hidden)}
        self.matrices = {name: rng.integers(-128, 128, size, dtype=np.int8) for name, size in sizes.items()}
        self.gammas = [rng.uniform(20, 60, s.hidden).astype(np.float32) for _ in range(2)]

    def part(self, name: str, span: Span) -> np.ndarray:
        return self.matrices[name][:, slice(*span)]


Half = Literal["layer", "attention", "ffn"]


@dataclass
class DecoderBuilder:
    """Builds the graph of layers that take some rows, each a token of the next position, after `held` in the cache.

    `half` is what of them is built: all of a layer, attention with its output, or the hidden layer.
    """

    layers: Sequence[tuple[LayerWeights, Placement]]
    held: int
    rows: int = 1
    half: Half = "layer"

    def __post_init__(self) -> None:
        if self.rows < 1 or self.held < 1:
            raise UnsupportedError(f"{self.rows} rows after {self.held} in the cache", hint="give one at least of each")
        arguments: dict[str, Tensor] = {}
        for number, (weights, p) in enumerate(self.layers):
            s = weights.shape
            if s.heads % s.kv_heads:
                raise UnsupportedError(f"{s.heads} heads do not share {s.kv_heads} of keys equally")
            if [*spans(p.out)] != [*spans(p.down)] or [*spans(p.out)] != [*spans(self.layers[0][1].out)]:
                raise UnsupportedError("what is added to a layer's result is split otherwise than it")
            if not number:
                arguments |= {f"x{a}": Tensor(i8, (self.rows, b - a)) for a, b in spans(p.out)}
            if self.half != "ffn":
                for a, b in spans(p.attention):
                    cache = Tensor(i8, (self.held, (b - a) * s.width))
                    arguments |= {f"k{number}.{a}": cache, f"v{number}.{a}": cache}
            if self.half != "attention":
                arguments |= {f"r{number}.{expert}": Tensor(i8, (self.rows, 1)) for expert in range(s.experts)}
        self.build = TransformerBuilder("layers", arguments)

    def run(self) -> FuncOp:
        """The graph. Its results are the parts of the last layer's, then the keys and values that are new."""
        x, caches = [self.build.argument(f"x{a}") for a, _ in spans(self.layers[0][1].out)], list[SSAValue]()
        for number, (weights, placement) in enumerate(self.layers):
            self.number, self.weights, self.placement = number, weights, placement
            if self.half != "ffn":
                x, new = self._attended(x)
                caches += new
            if self.half != "attention":
                x = self._hidden(x)
        self._joined(x)  # parts lie side by side for whoever reads them next
        return self.build.finish([*x, *caches])

    def _attended(self, x: list[SSAValue]) -> tuple[list[SSAValue], list[SSAValue]]:
        b, p = self.build, self.placement
        with b.on(*sorted({chip for chip, _ in p.attention})):
            normed = b.rms_norm(self._joined(x), self.weights.gammas[0], None, 1.0, 0.01)
        attended: list[SSAValue] = []
        caches: list[SSAValue] = []
        for chip, span in p.attention:
            with b.on(chip):
                made, *new = self._attention(normed, span)
                attended.append(made)
                caches += new
        mixed = self._joined(attended)
        results: list[SSAValue] = []
        for (chip, span), beside in zip(p.out, x, strict=True):
            with b.on(chip):
                results.append(self._linear(mixed, "o", span, 30, (beside, 0.5)))
        return results, caches

    def _hidden(self, x: list[SSAValue]) -> list[SSAValue]:
        b, p = self.build, self.placement
        with b.on(*sorted({chip for chip, _ in p.ffn})):
            normed = b.rms_norm(self._joined(x), self.weights.gammas[1], None, 1.0, 0.01)
        hidden: list[SSAValue] = []
        for chip, span in p.ffn:
            with b.on(chip):
                hidden.append(self._gated(normed, span))
        inner, results = self._joined(hidden), list[SSAValue]()
        for (chip, span), beside in zip(p.down, x, strict=True):
            with b.on(chip):
                results.append(self._linear(inner, "down", span, 30, (beside, 0.5)))
        return results

    def _joined(self, parts: Sequence[SSAValue]) -> SSAValue:
        return parts[0] if len(parts) == 1 else self.build.builder.concat(*parts, dim=1)

    def _linear(
        self, x: SSAValue, name: str, span: Span, spread: float, beside: tuple[SSAValue, float] | None = None
    ) -> SSAValue:
        """A product whose results have about the given deviation, for inputs that have 40."""
        weights = self.weights.part(name, span)
        scale = np.full(weights.shape[1], spread / (40 * 74 * np.sqrt(weights.shape[0])), np.float32)
        return self.build.linear(x, weights, scale, beside=beside)

    def _attention(self, x: SSAValue, span: Span) -> tuple[SSAValue, SSAValue, SSAValue]:
        b, s = self.build, self.weights.shape
        a, z = span
        own, heads = (a * s.width, z * s.width), (a * s.repeats, z * s.repeats)
        query = self._rotated(self._linear(x, "q", (heads[0] * s.width, heads[1] * s.width), 30), heads[1] - heads[0])
        key = self._rotated(self._linear(x, "k", own, 30), z - a)
        value = self._linear(x, "v", own, 30)
        keys = b.builder.concat(b.argument(f"k{self.number}.{a}"), key, dim=0)
        values = b.builder.concat(b.argument(f"v{self.number}.{a}"), value, dim=0)
        factor = 1 / (30 * 30 * np.sqrt(s.width))
        return b.attention(query, keys, values, heads[1] - heads[0], z - a, factor, 2.0, 1.5), key, value

    def _rotated(self, x: SSAValue, heads: int) -> SSAValue:
        """The rotation by position: halves of a head exchanged by a product, and both mixed."""
        s, half = self.weights.shape, self.weights.shape.width // 2
        turn = np.zeros((s.width, s.width), np.int8)
        turn[np.arange(half, s.width), np.arange(half)] = -1
        turn[np.arange(half), np.arange(half, s.width)] = 1
        whole_turn = np.kron(np.eye(heads, dtype=np.int8), turn)
        turned = self.build.to_int8(self.build.scaled(self.build.dot(x, whole_turn), np.ones(1, np.float32)))
        steps = 10000.0 ** (-np.arange(0, s.width, 2) / s.width)
        angles = np.tile(np.outer(np.arange(self.held, self.held + self.rows), steps), (1, 2 * heads))
        cosine, sine = (np.rint(127 * f(angles)).astype(np.int8) for f in (np.cos, np.sin))
        return self.build.rotate(x, turned, cosine, sine, 1 / 127)

    def _gated(self, x: SSAValue, span: Span) -> SSAValue:
        gate, up = (self._linear(x, name, span, 30) for name in ("gate", "up"))
        made = self.build.gated_silu(gate, up, 0.05, 1.0)
        if not self.weights.shape.experts:
            return made
        # The weight of an expert, 127 for 1, is in all lanes: a sum of one.
        b, expert = self.build.builder, span[0] // self.weights.shape.ffn
        weight = b.sum(b.cast(self.build.argument(f"r{self.number}.{expert}"), dtype=i32), dims=(1,), keep=True)
        factor = self.build.scaled(weight, np.full(1, 1 / 127, np.float32))
        return self.build.to_int8(b.mul(b.cast(made, dtype=f32), factor))

    def arguments(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random values of the arguments; the same however layers are split."""
        rng = np.random.default_rng(seed)
        shape = self.layers[0][0].shape
        x = rng.integers(-100, 101, (self.rows, shape.hidden)).astype(np.int8)
        given = {f"x{a}": x[:, a:b] for a, b in spans(self.layers[0][1].out)}
        for number, (weights, placement) in enumerate(self.layers):
            s = weights.shape
            cache = [rng.integers(-90, 91, (self.held, s.kv_heads * s.width)).astype(np.int8) for _ in range(2)]
            scores = rng.random((self.rows, s.experts))
            chosen = np.argsort(-scores, axis=1, kind="stable")[:, : s.chosen]
            if self.half != "ffn":
                for a, b in spans(placement.attention):
                    own = slice(a * s.width, b * s.width)
                    given |= {f"{name}{number}.{a}": each[:, own] for name, each in zip("kv", cache, strict=True)}
            if self.half != "attention":
                for expert in range(s.experts):
                    weight = np.where((chosen == expert).any(axis=1), 127 * scores[:, expert], 0)
                    given[f"r{number}.{expert}"] = np.rint(weight).astype(np.int8)[:, None]
        return given


def head_graph(shape: DecoderShape, parts: Parts, rows: int, seed: int = 0) -> tuple[FuncOp, dict[str, np.ndarray]]:
    """The last norm and the scores of all words, in parts; and the constants."""
    build, rng = TransformerBuilder("head", {"x": Tensor(i8, (rows, shape.hidden))}), np.random.default_rng(seed)
    with build.on(*sorted({chip for chip, _ in parts})):
        normed = build.rms_norm(
            build.argument("x"), rng.uniform(20, 60, shape.hidden).astype(np.float32), None, 1.0, 0.01
        )
    results: list[SSAValue] = []
    for chip, (a, b) in parts:
        weights = rng.integers(-128, 128, (shape.hidden, b - a), dtype=np.int8)
        with build.on(chip):
            scale = np.full(b - a, 30 / (40 * 74 * np.sqrt(shape.hidden)), np.float32)
            results.append(build.linear(normed, weights, scale))
    return build.finish(results), build.constants


def spans(parts: Parts) -> Iterator[Span]:
    """What parts have, without their chips."""
    return (span for _, span in parts)
