"""A layer of a decoder (Llama, Qwen, Mistral, Mixtral) as a graph of 8-bit integers, split for the chips that share it.

The graph says which chips compute what. Heads are split by groups that share keys, everything else by columns of
weights, so that parts are computed as they would be in one piece, and joined by `concat` of channels:

    n = norm(x)                                          every chip that reads it
    a = concat(attention(n Wq_p, cache_p + n Wk_p, …))   chip of p
    y = concat(a Wo_p + x_p);  m = norm(y)
    h = concat(silu(m Wg_p) · m Wu_p)
    z = concat(h Wd_p + y_p)

Weights are random: this is for time and space, and for comparing what is split with what is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import UnsupportedError
from weft.ir.types import Tensor, i8
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
        return self.heads // self.kv_heads

    @property
    def parameters(self) -> int:
        """Weights of products, without norms and the table of embeddings."""
        attention = self.hidden * self.width * (2 * self.heads + 2 * self.kv_heads)
        ffn = 3 * self.hidden * self.ffn * max(1, self.experts)
        return self.layers * (attention + ffn + self.hidden * self.experts) + self.hidden * self.vocabulary


Span = tuple[int, int]


@dataclass(frozen=True)
class Placement:
    """Which chip computes which part of a layer: heads in groups that share keys, the others in columns."""

    attention: Sequence[tuple[int, Span]]
    """A chip, and the groups of heads it has."""
    out: Sequence[tuple[int, Span]]
    ffn: Sequence[tuple[int, Span]]
    down: Sequence[tuple[int, Span]]

    @property
    def chips(self) -> list[int]:
        parts = (*self.attention, *self.out, *self.ffn, *self.down)
        return sorted({chip for chip, _ in parts})


def whole(shape: DecoderShape, chip: int = 0) -> Placement:
    """Everything on one chip, in one piece."""
    return Placement(
        [(chip, (0, shape.kv_heads))], [(chip, (0, shape.hidden))], [(chip, (0, shape.ffn))], [(chip, (0, shape.hidden))]
    )


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
    """Every part split over all chips; the hidden layer and what is behind it on others, where these are given."""
    later = ffn or chips
    return Placement(
        groups(shape.kv_heads, chips),
        columns(shape.hidden, chips, lanes),
        columns(shape.ffn, later, lanes),
        columns(shape.hidden, later, lanes),
    )


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
        ffn = {"gate": (s.hidden, s.ffn), "up": (s.hidden, s.ffn), "down": (s.ffn, s.hidden)}
        for expert in range(max(1, s.experts)):
            sizes |= {f"{name}{expert}": size for name, size in ffn.items()}
        self.matrices = {name: rng.integers(-128, 128, size, dtype=np.int8) for name, size in sizes.items()}
        self.gammas = [rng.uniform(20, 60, s.hidden).astype(np.float32) for _ in range(2)]

    def part(self, name: str, span: Span) -> np.ndarray:
        return self.matrices[name][:, slice(*span)]


@dataclass
class DecoderLayerBuilder:
    """Builds the graph of a layer that takes some rows, each a token of the next position, after `held` in the cache."""

    weights: LayerWeights
    placement: Placement
    held: int
    rows: int = 1
    results: list[SSAValue] = field(default_factory=list[SSAValue])

    def __post_init__(self) -> None:
        s, p = self.weights.shape, self.placement
        if s.heads % s.kv_heads:
            raise UnsupportedError(f"{s.heads} heads do not share {s.kv_heads} of keys equally")
        arguments = {f"x{a}": Tensor(i8, (self.rows, b - a)) for a, b in self.spans(p.out)}
        for _, (a, b) in p.attention:
            cache = Tensor(i8, (self.held, (b - a) * s.width))
            arguments |= {f"k{a}": cache, f"v{a}": cache}
        self.build = TransformerBuilder("layer", arguments)

    @staticmethod
    def spans(parts: Sequence[tuple[int, Span]]) -> Iterator[Span]:
        return (span for _, span in parts)

    def run(self) -> FuncOp:
        """The graph. Its results are the parts of the layer's, then the keys and values that are new."""
        b, p, s = self.build, self.placement, self.weights.shape
        x = [b.argument(f"x{a}") for a, _ in self.spans(p.out)]
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
        y: list[SSAValue] = []
        for (chip, span), beside in zip(p.out, x, strict=True):
            with b.on(chip):
                y.append(self._linear(mixed, "o", span, 30, (beside, 0.5)))
        with b.on(*sorted({chip for chip, _ in p.ffn})):
            normed = b.rms_norm(self._joined(y), self.weights.gammas[1], None, 1.0, 0.01)
        hidden: list[SSAValue] = []
        for chip, span in p.ffn:
            with b.on(chip):
                hidden.append(self._gated(normed, span))
        inner = self._joined(hidden)
        parts = dict(zip(self.spans(p.out), y, strict=True))
        if list(self.spans(p.down)) != list(parts):
            raise UnsupportedError("what is added to the hidden layer's result is split otherwise than it")
        for chip, span in p.down:
            with b.on(chip):
                self.results.append(self._linear(inner, "down0", span, 30, (parts[span], 0.5)))
        del s
        return b.finish([*self.results, *caches])

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
        keys = b.builder.concat(b.argument(f"k{a}"), key, dim=0)
        values = b.builder.concat(b.argument(f"v{a}"), value, dim=0)
        factor = 1 / (30 * 30 * np.sqrt(s.width))
        return b.attention(query, keys, values, heads[1] - heads[0], z - a, factor, 2.0, 1.5), key, value

    def _rotated(self, x: SSAValue, heads: int) -> SSAValue:
        """The rotation by position: halves of a head exchanged by a product, and both mixed."""
        s, half = self.weights.shape, self.weights.shape.width // 2
        turn = np.zeros((s.width, s.width), np.int8)
        turn[np.arange(half, s.width), np.arange(half)] = -1
        turn[np.arange(half), np.arange(half, s.width)] = 1
        whole_turn = np.kron(np.eye(heads, dtype=np.int8), turn)
        turned = self.build.to_int8(self.build.scaled(self.build.dot(x, whole_turn), np.ones(heads * s.width, np.float32)))
        steps = 10000.0 ** (-np.arange(0, s.width, 2) / s.width)
        angles = np.tile(np.outer(np.arange(self.held, self.held + self.rows), steps), (1, 2 * heads))
        cosine, sine = (np.rint(127 * f(angles)).astype(np.int8) for f in (np.cos, np.sin))
        return self.build.rotate(x, turned, cosine, sine, 1 / 127)

    def _gated(self, x: SSAValue, span: Span) -> SSAValue:
        gate, up = (self._linear(x, f"{name}0", span, 30) for name in ("gate", "up"))
        return self.build.gated_silu(gate, up, 0.05, 1.0)

    def arguments(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random values of the arguments; the same however the layer is split."""
        s, rng = self.weights.shape, np.random.default_rng(seed)
        x = rng.integers(-100, 101, (self.rows, s.hidden)).astype(np.int8)
        cache = [rng.integers(-90, 91, (self.held, s.kv_heads * s.width)).astype(np.int8) for _ in range(2)]
        given = {f"x{a}": x[:, a:b] for a, b in self.spans(self.placement.out)}
        for a, b in self.spans(self.placement.attention):
            own = slice(a * s.width, b * s.width)
            given |= {f"{name}{a}": each[:, own] for name, each in zip("kv", cache, strict=True)}
        return given
