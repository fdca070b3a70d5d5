"""Quantizes activations: of what is not rounded yet, so that they are part of its conversion to 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.ops.base import GraphOp
from weft.spatial.quantize.float_values import Activated, Pending, Quantized, constant_of
from weft.spatial.quantize.rounding import Rounding


class ActivationRules(Rounding):
    """The rules of activations."""

    def _relu(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return self._with_function(op, operands[0], "relu")

    def _tanh(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return self._with_function(op, operands[0], "tanh")

    def _sigmoid(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return self._with_function(op, operands[0], "sigmoid")

    def _gelu(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        x, to = self._quantized(op, operands[0]), self._scale(op.results[0])
        return Quantized(self.build.gelu(x.value, x.scale, to), to)

    def _silu(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        return Activated(operands[0])

    def _maximum(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        """A maximum with 0 is a relu."""
        for x, other in zip(operands, map(constant_of, found[::-1]), strict=True):
            if other is not None and not other.any():
                return self._with_function(op, x, "relu")
        return None

    def _minimum(self, op: GraphOp, operands: list[SSAValue], found: list[Any]) -> Any:
        """A minimum that is the greatest number of the result: the conversion to 8 bits saturates there.

        So it is rounded here, with the scale of this result: what is computed of it afterwards has another.
        """
        reached = float(np.abs(self.seen[op.results[0]]).max(initial=0.0))
        for one, other in zip(found, map(constant_of, found[::-1]), strict=True):
            if other is not None and other.size == 1 and isinstance(one, Pending):
                if reached > float(other.reshape(-1)[0]) * (1 + 1e-6):
                    return None
                return self._as_row(op.results[0], self._rounded(one, self._scale(op.results[0])))
        return None
