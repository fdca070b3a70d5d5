"""Runs imported graphs on targets that take arrays: tensors become these, and results tensors with eager's strides."""

# NumPy's arrays have no types in torch's signatures.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from weft.backends.target import Executable, Opaque
from weft.frontends.torch.dtypes import from_torch, to_torch
from weft.frontends.torch.importer.opaque import OpaqueRuntime
from weft.frontends.torch.importer.strides import restrided
from weft.ir.attributes import from_attribute
from weft.ir.expr import evaluate
from weft.ir.types import dtype_of_numpy
from weft.ops.graph import FuncOp, OpaqueOp

# Types that NumPy only knows through ml_dtypes travel as integers of their width.
_CARRIERS = {1: torch.uint8, 2: torch.int16}
_NUMPYS_OWN = 1
"""What `isbuiltin` says of a type that is NumPy's own: the `kind` of those of ml_dtypes may be that of floats, too."""


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dtype = from_torch(tensor.dtype).numpy
    if dtype.isbuiltin == _NUMPYS_OWN:
        return tensor.numpy()
    return tensor.view(_CARRIERS[dtype.itemsize]).numpy().view(dtype)


def tensor_on(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of an array."""
    dtype = to_torch(dtype_of_numpy(array.dtype))
    if not array.size:  # NumPy strides of 0 are not what torch gives an empty tensor
        return torch.empty(array.shape, dtype=dtype)
    if array.dtype.isbuiltin == _NUMPYS_OWN:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)


def to_tensor(array: np.ndarray) -> torch.Tensor:
    """A new tensor with the array's elements, row-major."""
    return tensor_on(np.array(array, order="C", copy=True))


@dataclass
class TargetExecutor:
    """A program of any target that takes arrays, for a function that torch brought."""

    function: FuncOp
    program: Executable

    def __call__(self, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> list[torch.Tensor]:
        results = [to_tensor(array) for array in self.program([to_array(t) for t in tensors], symbols)]
        attribute = self.function.attributes.get("result_strides")
        if attribute is None:
            return results
        every: Any = from_attribute(attribute)
        return [
            result if strides is None else restrided(result, [evaluate(s, symbols) for s in strides])
            for result, strides in zip(results, every, strict=True)
        ]


def calls_on_arrays(opaque: OpaqueRuntime) -> Opaque:
    """Carries out torch's own calls on arrays."""

    def call(operation: OpaqueOp, operands: Sequence[np.ndarray], symbols: Mapping[str, int]) -> list[np.ndarray]:
        tensors = [to_tensor(array) for array in operands]
        return [
            to_array(torch.empty(0) if result is None else result)
            for result in opaque.call(operation.target.data, operation.arguments.data, tensors, symbols)
        ]

    return call
