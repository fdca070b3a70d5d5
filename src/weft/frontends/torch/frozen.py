"""Tensors that a program was given as constants: snapshots of frozen weights, prepared and packed for it.

Code does not depend on the values, so one program serves many sets of weights: those of the layers of a model, or those
of one layer at different times. A set is made when weights are met that are not those of another set: other tensors, or
the same ones changed in place as torch counts it. What writes past torch (`.data`, NumPy) is not noticed.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from weft.frontends.torch.dtypes import to_torch
from weft.frontends.torch.reference import to_array
from weft.ir.types import dtype_of_numpy
from weft.runtime.executable import Executable


@dataclass(frozen=True)
class ConstantSet:
    """The constants of one set of weights: tensors by their buffers, and where the table has their addresses."""

    given: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    tensors: dict[int, torch.Tensor]
    places: np.ndarray
    addresses: np.ndarray

    def is_of(self, given: Sequence[torch.Tensor]) -> bool:
        """Whether these are the weights that it was made of."""
        return all(a is b or a.data_ptr() == b.data_ptr() for a, b in zip(self.given, given, strict=True))

    def is_fresh(self) -> bool:
        """Whether the weights have not changed since."""
        return all(version < 0 or t._version == version for t, version in zip(self.given, self.versions, strict=True))


def make_set(executable: Executable, given: Sequence[torch.Tensor]) -> ConstantSet:
    """Prepare and pack weights for a program."""
    arrays = executable.constants([to_array(tensor) for tensor in given])
    tensors = {number: _tensor_on(array) for number, array in arrays.items()}
    return ConstantSet(
        tuple(given),
        tuple(-1 if tensor.is_inference() else tensor._version for tensor in given),
        tensors,
        np.array(list(tensors), np.int64),
        np.array([tensor.data_ptr() for tensor in tensors.values()], np.int64),
    )


def _tensor_on(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of an array."""
    dtype = to_torch(dtype_of_numpy(array.dtype))
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    # torch does not know NumPy's narrow floats, but integers of their width.
    return torch.from_numpy(array.view(f"i{array.itemsize}")).view(dtype)
