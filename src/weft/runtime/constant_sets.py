"""Arrays that a program was given as constants: snapshots of frozen weights, prepared and packed for it.

Code does not depend on the values, so one program serves many sets of weights: those of the layers of a model, or those
of one layer at different times. A set is made when weights are met that are not those of another set: other arrays, or
the same ones changed in place. Frameworks count most changes. Those that they do not (torch's `.data`, NumPy) are seen
in a few elements of each weight in the processor's memory; what leaves these as they are, or writes to a GPU's memory
past the framework, has to be told by `refreeze`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Generic

import numpy as np

from weft.errors import UnsupportedError
from weft.ir.expr import evaluate, symbols_of
from weft.lower.steps import Buffer
from weft.ops.layouts import contiguous
from weft.runtime.array_adapter import ArrayAdapter, ArrayT
from weft.runtime.memory_samples import MemorySamples, sampled_addresses
from weft.runtime.program import Program
from weft.runtime.strides import row_major


@dataclass(frozen=True)
class ConstantSet(Generic[ArrayT]):
    """The constants of one set of weights: arrays by their buffers, and where the table has their addresses.

    It holds the weights' memory, so that no other weights can come to lie there, but not the weights themselves.
    """

    arrays: ArrayAdapter[ArrayT]
    weights: tuple[weakref.ref[Any], ...]
    memory: tuple[ArrayT, ...]
    pointers: tuple[int, ...]
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    """Their shapes and strides."""
    versions: tuple[int, ...]
    samples: MemorySamples | None
    """Elements of those in the processor's memory."""
    time: int
    """How often `refreeze` had been called."""
    tensors: dict[int, ArrayT]
    places: np.ndarray
    addresses: np.ndarray
    unchanged: Callable[[Sequence[ArrayT]], bool] | None = None
    """Whether these are the very weights, where and as often changed as they were; the executor's quick way to ask."""

    def is_current(self, given: Sequence[ArrayT]) -> bool:
        """Whether these are the weights that it was made of, and have not changed since."""
        if self.unchanged is not None and self.unchanged(given):
            return self._is_as_sampled()
        return self.is_of(given) and self.is_fresh(given)

    def is_of(self, given: Sequence[ArrayT]) -> bool:
        """Whether these are the weights that it was made of."""
        address = self.arrays.address
        if tuple([address(array) for array in given]) != self.pointers:
            return False
        # The very same objects lie as they did: only others are asked, which may be views of the same memory.
        if all(map(is_, [weight() for weight in self.weights], given)):
            return True
        return tuple([_layout(array, self.arrays) for array in given]) == self.layouts

    def is_fresh(self, given: Sequence[ArrayT]) -> bool:
        """Whether the weights, which lie where they did, have not changed since."""
        version = self.arrays.version
        return tuple([version(array) for array in given]) == self.versions and self._is_as_sampled()

    def _is_as_sampled(self) -> bool:
        return (self.samples is None or self.samples.are_unchanged()) and self.time == _refrozen[0]

    def is_needed(self) -> bool:
        """Whether all of the weights are still there, where they were."""
        found = [reference() for reference in self.weights]
        address = self.arrays.address
        return all(a is not None and address(a) == p for a, p in zip(found, self.pointers, strict=True))


_refrozen = [0]


def refreeze() -> None:
    """Take the weights of all compiled functions with `freeze` anew, when these are next called.

    To be called after weights were changed in a way that nobody sees: parts of them through `.data` or NumPy, or the
    memory of a GPU past torch.
    """
    _refrozen[0] += 1


Preparing = Callable[[Sequence[ArrayT]], Sequence[ArrayT]]
"""What a program's constants are computed by, on its own device."""


def make_set(
    program: Program,
    given: Sequence[ArrayT],
    arrays: ArrayAdapter[ArrayT],
    prepare: Preparing[ArrayT] | None = None,
    prepared: Mapping[int, np.ndarray] | None = None,
) -> ConstantSet[ArrayT]:
    """Prepare and pack weights for a program: on its device, or by the processor.

    Where they were `prepared` before, the arrays of its buffers are these, and no weight is looked at.
    """
    plan = program.plan
    if prepared is not None:
        tensors = {number: arrays.from_host(array) for number, array in prepared.items()}
    elif prepare is not None and all(constant.packing is None for constant in plan.constants):
        there = [arrays.placed(array) for array in given]
        made = prepare(there) if any(c.source >= len(given) for c in plan.constants) else ()
        tensors = {c.buffer: (*there, *made)[c.source] for c in plan.constants}
    else:
        packed = program.constants([arrays.to_host(array) for array in given])
        tensors = {number: arrays.from_host(array) for number, array in packed.items()}
    for constant in plan.constants:
        if constant.packing is None:
            number = constant.buffer
            tensors[number] = _fitting(tensors[number], plan.buffers[number], arrays)
    return ConstantSet(
        arrays,
        tuple(weakref.ref(array) for array in given),
        tuple(map(arrays.alias, given)),
        tuple(map(arrays.address, given)),
        tuple(_layout(array, arrays) for array in given),
        tuple(map(arrays.version, given)),
        _samples(given, arrays) if prepared is None else None,
        _refrozen[0],
        tensors,
        np.array(list(tensors), np.int64),
        np.array([arrays.address(array) for array in tensors.values()], np.int64),
    )


def _layout(array: ArrayT, arrays: ArrayAdapter[ArrayT]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(arrays.shape(array)), tuple(arrays.strides(array))


def _fitting(array: ArrayT, buffer: Buffer, arrays: ArrayAdapter[ArrayT]) -> ArrayT:
    """The array of a constant with the strides that kernels read it by."""
    shape, strides = arrays.shape(array), buffer.layout.strides
    sizes = {str(size): actual for size, actual in zip(buffer.tensor.shape, shape, strict=True)}
    if 0 in shape:
        return array
    if strides == contiguous(buffer.tensor).strides:
        wanted = row_major(shape)
    elif all(symbols_of(stride) <= sizes.keys() for stride in strides):
        wanted = tuple(evaluate(stride, sizes) for stride in strides)
    else:
        raise UnsupportedError(
            f"a constant with the strides ({', '.join(map(str, strides))}), whose values its shape does not tell",
            hint="compile it for fixed sizes",
        )
    if all(n <= 1 or a == b for n, a, b in zip(shape, arrays.strides(array), wanted, strict=True)):
        return array
    return arrays.copied(array, wanted)


def _samples(given: Sequence[ArrayT], arrays: ArrayAdapter[ArrayT]) -> MemorySamples | None:
    here = [array for array in given if arrays.is_on_host(array) and arrays.address(array)]
    addresses = [
        address
        for each in here
        for address in sampled_addresses(
            arrays.address(each), arrays.shape(each), arrays.strides(each), arrays.itemsize(each)
        )
    ]
    return MemorySamples(addresses) if addresses else None
