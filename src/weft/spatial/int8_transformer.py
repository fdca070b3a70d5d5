"""Builds the parts of transformers as graphs of 8-bit integers: attention, norms, activations, rotated positions.

What a part computes in between it rounds to 8 bits with a scale that calibration gives. Sums over rows are products by
ones, so that nothing moves between lanes:

    attention   e = exp(a · q kᵀ + b) in 8 bits;  e v / (e 1)             b keeps the greatest score's power in range
    norm        d = x - (x 1) / C;  s = d² in 8 bits;  d · (s 1)^-½ · γ + β
    gelu        x / 2 · (1 + tanh(x · (k + k' x²)))
    silu        x / 2 · (1 + tanh(x / 2)), times another tensor
    rotation    x · cos + (x R) · sin, where R exchanges the halves of a head: for each row its own cos and sin
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from xdsl.ir import SSAValue

from weft.ir.types import f32, i8, i32
from weft.ops.matmul.dot import transposed
from weft.spatial.int8_builder import Int8Builder


@dataclass
class TransformerBuilder(Int8Builder):
    """A function of 8-bit integers that is being built. Scales are what an integer of 1 stands for."""

    def linear(
        self,
        x: SSAValue,
        weights: np.ndarray,
        scale: np.ndarray,
        bias: np.ndarray | None = None,
        beside: tuple[SSAValue, float] | None = None,
    ) -> SSAValue:
        """x · weights · scale + bias, and another tensor times a factor, all in units of the result."""
        value = self.scaled(self.dot(x, weights), scale)
        if bias is not None:
            value = self.add(value, bias)
        if beside is not None:
            value = self.add(value, self._times(self.builder.cast(beside[0], dtype=f32), beside[1]))
        return self.to_int8(value)

    def heads(self, x: SSAValue, count: int, repeats: int = 1) -> SSAValue:
        """[S, H · d] as [H, S, d]; where `repeats` heads share one, each `repeats` times."""
        b = self.builder
        rows, channels = (int(size) for size in b.tensor(x).shape)  # type: ignore[arg-type]
        width = channels // count
        split = b.permute(b.reshape(x, shape=(rows, count, width)), dims=(1, 0, 2))
        if repeats == 1:
            return split
        spread = b.broadcast(b.reshape(split, shape=(count, 1, rows, width)), shape=(count, repeats, rows, width))
        return b.reshape(spread, shape=(count * repeats, rows, width))

    def attention(
        self,
        q: SSAValue,
        k: SSAValue,
        v: SSAValue,
        heads: int,
        kv_heads: int,
        factor: float,
        offset: float,
        scale: float,
        mask: np.ndarray | None = None,
    ) -> SSAValue:
        """Softmax of scores: powers of `factor · q kᵀ + offset`, and their sum; the result times `scale`.

        A mask [S, keys] of 0 and 1 says which keys a row sees.
        """
        b, repeats = self.builder, heads // kv_heads
        rows, channels = (int(size) for size in b.tensor(q).shape)  # type: ignore[arg-type]
        keys = transposed(b, self.heads(k, kv_heads, repeats))
        scores = b.cast(b.dot(self.heads(q, heads), keys, dtype=i32), dtype=f32)
        powers = b.exp(self._plus(self._times(scores, factor), offset))
        powers = self.to_int8(powers if mask is None else b.mul(powers, self._tensor(mask)))
        mixed = b.cast(b.dot(powers, self.heads(v, kv_heads, repeats), dtype=i32), dtype=f32)
        total = b.cast(b.sum(b.cast(powers, dtype=i32), dims=(2,), keep=True), dtype=f32)
        root = b.rsqrt(self._plus(total, 0.001))  # a row that sees nothing is 0
        result = self.to_int8(self._times(b.mul(mixed, b.mul(root, root)), scale))
        return b.reshape(b.permute(result, dims=(1, 0, 2)), shape=(rows, channels))

    def layer_norm(
        self,
        x: SSAValue,
        gamma: np.ndarray,
        beta: np.ndarray,
        epsilon: float,
        centred: float,
        squared: float,
    ) -> SSAValue:
        """`centred` is an integer of x in units of the difference from the mean, `squared` one of that difference's
        square in units of its own; γ, β and ε are in units of the result and of the sum of squares."""
        b = self.builder
        channels = int(b.tensor(x).shape[1])  # type: ignore[arg-type]
        mean = self._times(b.cast(b.sum(b.cast(x, dtype=i32), dims=(1,), keep=True), dtype=f32), -1 / channels)
        centre = self.to_int8(self._times(b.add(b.cast(x, dtype=f32), mean), centred))
        return self.rms_norm(centre, gamma, beta, epsilon, squared)

    def rms_norm(
        self, x: SSAValue, gamma: np.ndarray, beta: np.ndarray | None, epsilon: float, squared: float
    ) -> SSAValue:
        """x · (Σ squares + ε)^-½ · γ + β, the squares in units of `squared`."""
        b = self.builder
        wide = b.cast(x, dtype=f32)
        squares = self.to_int8(self._times(b.mul(wide, wide), squared))
        total = b.cast(b.sum(b.cast(squares, dtype=i32), dims=(1,), keep=True), dtype=f32)
        value = b.mul(b.mul(b.cast(x, dtype=f32), self._row(gamma)), b.rsqrt(self._plus(total, epsilon)))
        return self.to_int8(value if beta is None else b.add(value, self._row(beta)))

    def gelu(self, x: SSAValue, scale: float, to: float) -> SSAValue:
        """An integer of x stands for `scale`, one of the result for `to`."""
        b = self.builder
        wide, root = b.cast(x, dtype=f32), float(np.sqrt(2 / np.pi))
        inner = self._plus(self._times(b.mul(wide, wide), 0.044715 * root * scale**3), root * scale)
        half = b.tanh(b.mul(inner, wide))
        return self.to_int8(b.mul(self._plus_times(half, 0.5 * scale / to), wide))

    def tanh(self, x: SSAValue, factor: float) -> SSAValue:
        """tanh(x) · factor, in f32."""
        return self._times(self.builder.tanh(x), factor)

    def sigmoid(self, half: SSAValue, factor: float) -> SSAValue:
        """sigmoid(2 · half) · factor, in f32."""
        return self._plus_times(self.builder.tanh(half), 0.5 * factor)

    def silu(self, x: SSAValue, scale: float, to: float) -> SSAValue:
        """An integer of x stands for `scale`, one of the result for `to`."""
        b = self.builder
        wide = b.cast(x, dtype=f32)
        return self.to_int8(b.mul(self._plus_times(b.tanh(self._times(wide, scale / 2)), 0.5 * scale / to), wide))

    def softmax(self, x: SSAValue, scale: float, offset: float, factor: float) -> SSAValue:
        """e / (e 1) · factor over rows, where e = exp(scale · x + offset) in 8 bits."""
        b = self.builder
        powers = self.to_int8(b.exp(self._plus(self._times(b.cast(x, dtype=f32), scale), offset)))
        total = b.cast(b.sum(b.cast(powers, dtype=i32), dims=(1,), keep=True), dtype=f32)
        root = b.rsqrt(self._plus(total, 0.001))  # a row of nothing is 0
        return self.to_int8(self._times(b.mul(b.cast(powers, dtype=f32), b.mul(root, root)), factor))

    def gated_silu(self, gate: SSAValue, up: SSAValue, scale: float, factor: float) -> SSAValue:
        """silu(gate) · up · factor; an integer of the gate stands for `scale`."""
        b = self.builder
        wide = b.cast(gate, dtype=f32)
        half = self._plus_times(b.tanh(self._times(wide, scale / 2)), 0.5 * scale * factor)
        return self.to_int8(b.mul(b.mul(half, wide), b.cast(up, dtype=f32)))

    def rotate(self, x: SSAValue, turned: SSAValue, cosine: np.ndarray, sine: np.ndarray, factor: float) -> SSAValue:
        """(x · cosine + turned · sine) · factor, where these are matrices of 8-bit integers."""
        b = self.builder
        one = b.mul(b.cast(x, dtype=f32), self._tensor(cosine))
        other = b.mul(b.cast(turned, dtype=f32), self._tensor(sine))
        return self.to_int8(self._times(b.add(one, other), factor))

    def _tensor(self, values: np.ndarray) -> SSAValue:
        return self.builder.cast(self.constant(f"c{len(self.constants)}", values.astype(np.int8), i8), dtype=f32)

    def _plus_times(self, x: SSAValue, factor: float) -> SSAValue:
        """(1 + x) · factor, with one constant."""
        value = self.constant(f"c{len(self.constants)}", np.array([factor], np.float32), f32)
        return self.builder.add(self.builder.mul(x, value), value)

    def _times(self, x: SSAValue, factor: float) -> SSAValue:
        value = self.constant(f"c{len(self.constants)}", np.array([factor], np.float32), f32)
        return self.builder.mul(x, value)

    def _plus(self, x: SSAValue, offset: float) -> SSAValue:
        value = self.constant(f"c{len(self.constants)}", np.array([offset], np.float32), f32)
        return self.builder.add(x, value)

    def _row(self, values: np.ndarray) -> SSAValue:
        return self.constant(f"c{len(self.constants)}", values.astype(np.float32), f32)
