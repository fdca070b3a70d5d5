"""Machine code of an artifact in this process: loaded by the system, called on NumPy's arrays.

Neither xDSL nor llvmlite is needed here: the code is a shared object (`backends.cpu.native_program`) that has all
sizes, grids and offsets inside. Who calls this has found out that the code may run, and that this processor can run it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.artifact.element_types import numpy_type
from weft.artifact.manifest import CpuCode, Manifest, Packing, parsed_shape
from weft.artifact.mistakes import unknown_mistake
from weft.artifact.signature import Signature
from weft.errors import ArtifactError
from weft.ir.expr import evaluate
from weft.lower.pack_panels import pack_matrices
from weft.runtime.array_address import address_of, forms_of
from weft.runtime.cores import available_cores
from weft.runtime.huge_pages import use_huge_pages

_ALIGNMENT = 64
_MOST_THREADS = 8
_MOST_KNOWN = 256
"""Kinds of calls that are remembered."""


class NativeProgram:
    """A model as machine code, called with arrays."""

    def __init__(
        self, manifest: Manifest, code: CpuCode, image: bytes, tensors: Mapping[str, Mapping[str, np.ndarray]]
    ) -> None:
        self.signature = Signature(manifest)
        self.code = code
        self._library = load_library(image, code.name)
        self._call = self._function("weft_call", ctypes.c_int64, 6)
        self._arena_bytes = self._function("weft_arena", ctypes.c_int64, 1)
        self._write_shapes = self._function("weft_shapes", None, 2)
        os.register_at_fork(after_in_child=self._function("weft_pool_reset", None, 0))
        self._constants = _constants(code, tensors)
        self._constant_pointers = _pointers(self._constants)
        self._constants_at = address_of(self._constant_pointers)
        self._replaced = [place for place, each in enumerate(self.signature.free) if each.replaced]
        self._strides = [parsed_shape(each) for each in code.inputs]
        self._outputs = [(numpy_type(each.dtype), parsed_shape(each.strides)) for each in code.outputs]
        self._arenas: list[tuple[np.ndarray, int]] = []
        self._known: OrderedDict[Any, _Known] = OrderedDict()
        self._only_outputs = not self._replaced and all(each.kind == "output" for each in code.results)
        self._returned = [each.index for each in code.results]

    def _function(self, name: str, result: Any, arguments: int) -> Any:
        function: Any = self._library[name]
        function.restype = result
        function.argtypes = [ctypes.c_void_p] * arguments
        return function

    def __call__(self, given: Sequence[Any], named: Mapping[str, Any], threads: int | None) -> tuple[np.ndarray, ...]:
        key = forms_of(given) if self._only_outputs and not named else None
        if key is not None and (known := self._known.get(key)) is not None:
            outputs = known.new_outputs()
            self._run(known, given, outputs, threads)
            return tuple([outputs[place] for place in self._returned])
        arrays = self.signature.arrays(given, named)
        symbols = self.signature.sizes(arrays)
        arrays = [self._fitting(place, array, arrays, symbols) for place, array in enumerate(arrays)]
        sizes = np.array([symbols[name] for name in self.code.symbols] or [0], np.int64)
        outputs = self._new_outputs(sizes, symbols)
        known = _Known(sizes, self._arena_bytes(sizes.ctypes.data), len(arrays), outputs)
        if key is not None and all(one is other for one, other in zip(arrays, given, strict=True)):
            self._known[key] = known
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)
        self._run(known, arrays, outputs, threads)
        return tuple(self._result(each.kind, each.index, outputs, arrays) for each in self.code.results)

    def _run(
        self, known: _Known, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], threads: int | None
    ) -> None:
        frame = known.take()
        table = frame.table
        for place, array in enumerate((*inputs, *outputs)):
            table[place] = address_of(array)
        arena, base = self._arena(known.arena_size)
        addresses = known.sizes_at, self._constants_at, frame.inputs_at, frame.outputs_at
        verdict = self._call(*addresses, base, threads or default_threads())
        self._arenas.append((arena, base))
        known.free.append(frame)
        if verdict:
            raise unknown_mistake(self.signature.name, verdict)

    def _result(self, kind: str, index: int, outputs: list[np.ndarray], inputs: list[np.ndarray]) -> np.ndarray:
        if kind == "output":
            return outputs[index]
        if kind in ("input", "replaced"):
            return inputs[index] if kind == "replaced" else inputs[index].copy()
        return self._constants[index].copy()

    def _new_outputs(self, sizes: np.ndarray, symbols: Mapping[str, int]) -> list[np.ndarray]:
        shapes = np.zeros(sum(len(strides) for _, strides in self._outputs) + 1, np.int64)
        self._write_shapes(sizes.ctypes.data, shapes.ctypes.data)
        made: list[np.ndarray] = []
        place = 0
        for dtype, strides in self._outputs:
            shape = tuple(shapes[place : place + len(strides)].tolist())
            made.append(new_array(shape, [evaluate(stride, symbols) * dtype.itemsize for stride in strides], dtype))
            place += len(strides)
        return made

    def _fitting(
        self, place: int, array: np.ndarray, all_given: Sequence[np.ndarray], symbols: Mapping[str, int]
    ) -> np.ndarray:
        """The array with the strides that code takes, in memory of its own where it is written over and shared."""
        item = array.itemsize
        wanted = tuple(evaluate(stride, symbols) * item for stride in self._strides[place])
        lies = all(n <= 1 or a == b for n, a, b in zip(array.shape, array.strides, wanted, strict=True))
        if place in self._replaced:
            others = (other for number, other in enumerate(all_given) if number != place)
            if not array.flags.writeable or any(np.may_share_memory(array, other) for other in others):
                return strided_copy(array, wanted)
        return array if (lies or 0 in array.shape) and array.flags.aligned else strided_copy(array, wanted)

    def _arena(self, size: int) -> tuple[np.ndarray, int]:
        """Memory for temporaries, kept between calls, and where in it they begin."""
        while self._arenas:
            try:
                kept = self._arenas.pop()
            except IndexError:  # another thread has taken it
                break
            if kept[0].size >= size + _ALIGNMENT:
                return kept
        arena = np.empty(size + _ALIGNMENT, np.uint8)
        address = address_of(arena)
        use_huge_pages(address, arena.size)
        return arena, -(-address // _ALIGNMENT) * _ALIGNMENT


class _Known:
    """What a call found out of arrays of some types, shapes and strides, for the next one with such arrays."""

    def __init__(self, sizes: np.ndarray, arena_size: int, inputs: int, outputs: Sequence[np.ndarray]) -> None:
        self.sizes, self.sizes_at = sizes, address_of(sizes)
        self.arena_size = arena_size
        self.inputs, self.count = inputs, inputs + len(outputs)
        self.outputs = [(each.shape, None if each.flags.c_contiguous else each.strides, each.dtype) for each in outputs]
        self.free: list[_Frame] = []

    def take(self) -> _Frame:
        """A table that no other thread's call uses."""
        try:
            return self.free.pop()
        except IndexError:
            return _Frame(self.inputs, self.count)

    def new_outputs(self) -> list[np.ndarray]:
        return [
            np.empty(shape, dtype) if strides is None else new_array(shape, strides, dtype)
            for shape, strides, dtype in self.outputs
        ]


class _Frame:
    """The table of addresses of one running call: inputs, then outputs."""

    def __init__(self, inputs: int, count: int) -> None:
        self.words = np.zeros(count + 1, np.int64)
        self.table = self.words.data
        self.inputs_at = address_of(self.words)
        self.outputs_at = self.inputs_at + inputs * self.words.itemsize


_loaded = itertools.count(1)


def load_library(image: bytes, name: str) -> ctypes.CDLL:
    """A shared object that is in memory; it stays for as long as the process, whose threads may be running in it."""
    try:
        file = os.memfd_create(f"weft-{name}")
        try:
            with open(file, "wb", closefd=False) as out:
                out.write(image)
            return ctypes.CDLL(_path(file, next(_loaded)))
        finally:
            os.close(file)
    except OSError as error:
        raise ArtifactError(f"the code for {name} cannot be loaded: {error}", hint="run `weft doctor`") from error


def _path(file: int, number: int) -> str:
    """A path to an open file that no other load has had: the loader gives what it has loaded by the same one before."""
    bits = "".join("/." if bit == "0" else "//." for bit in f"{number:b}")
    return f"/proc/self/fd{bits}/{file}"


def default_threads() -> int:
    """OMP_NUM_THREADS, or the cores that there are for us."""
    stated = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return (int(stated) if stated.isdecimal() else 0) or available_cores()


def new_array(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array with strides in bytes, which may overlap or leave gaps; its content is undefined."""
    array = np.empty(tuple(shape), dtype)
    if not array.size or all(n <= 1 or a == b for n, a, b in zip(shape, array.strides, strides, strict=True)):
        return array
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + dtype.itemsize
    # NumPy cannot stride over some of the types that it has from elsewhere, but over bytes.
    memory = np.zeros(reach, np.uint8)
    return np.lib.stride_tricks.as_strided(memory, (*shape, dtype.itemsize), (*strides, 1)).view(dtype)[..., 0]


def strided_copy(array: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """A copy with strides in bytes."""
    made = new_array(array.shape, strides, array.dtype)
    made[...] = array
    return made


def _constants(code: CpuCode, tensors: Mapping[str, Mapping[str, np.ndarray]]) -> list[np.ndarray]:
    """The arrays that code takes in every call, packed as it wants them."""
    from concurrent.futures import ThreadPoolExecutor

    def made(number: int) -> np.ndarray:
        constant = code.constants[number]
        array = tensors[constant.member][constant.tensor]
        if constant.packing is not None:
            return packed(array, constant.packing)
        if constant.strides is None:
            return array if array.flags.aligned else array.copy()
        return strided_copy(array, [stride * array.itemsize for stride in constant.strides])

    with ThreadPoolExecutor(min(_MOST_THREADS, available_cores())) as pool:
        return list(pool.map(made, range(len(code.constants))))


def packed(array: np.ndarray, packing: Packing) -> np.ndarray:
    """A weight as the panels that kernels read."""
    shape = (*packing.batch, packing.K, packing.N)
    return pack_matrices(array, shape, packing.strides, packing.offset, packing.NR, packing.together, packing.unit)


def _pointers(arrays: Sequence[np.ndarray]) -> np.ndarray:
    # ctypes.data of an array without elements is an address all the same.
    return np.array([address_of(array) for array in arrays] or [0], np.int64)
