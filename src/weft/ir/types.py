"""Element types and tensor types: Weft's own small values, and their form as MLIR attributes.

`Tensor` (a dtype and a shape of `Size`s) is what type rules, lowering and the runtime speak; `tensor_type` and
`tensor_of` turn it into xDSL's `tensor<...>` and back. A symbolic size prints as `?` and the encoding names it:
`tensor<?x384xf32, #graph.sizes<["s0", "384"]>>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
from xdsl.dialects import builtin
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.hints import isa

from weft.errors import DTypeError
from weft.ir.expr import Size
from weft.ir.size_text import parse_size

_T = TypeVar("_T")


@dataclass(frozen=True)
class DType:
    """An element type. `kind` is one of float, int, uint, bool, complex."""

    name: str
    kind: str
    bits: int

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def bytes(self) -> int:
        """Bytes one element takes in memory; a bool takes one."""
        return max(self.bits, 8) // 8

    @property
    def numpy(self) -> np.dtype:
        return _NUMPY[self.name]


f64, f32 = DType("f64", "float", 64), DType("f32", "float", 32)
f16, bf16 = DType("f16", "float", 16), DType("bf16", "float", 16)
f8e4m3, f8e5m2 = DType("f8E4M3FN", "float", 8), DType("f8E5M2", "float", 8)
i64, i32, i16, i8, i4 = (DType(f"i{n}", "int", n) for n in (64, 32, 16, 8, 4))
u64, u32, u16, u8, u4 = (DType(f"ui{n}", "uint", n) for n in (64, 32, 16, 8, 4))
boolean = DType("i1", "bool", 1)
c64, c128 = DType("complex<f32>", "complex", 64), DType("complex<f64>", "complex", 128)

_NUMPY: dict[str, np.dtype] = {
    name: np.dtype(type_)
    for name, type_ in {
        "f64": np.float64,
        "f32": np.float32,
        "f16": np.float16,
        "bf16": ml_dtypes.bfloat16,
        "f8E4M3FN": ml_dtypes.float8_e4m3fn,
        "f8E5M2": ml_dtypes.float8_e5m2,
        "i64": np.int64,
        "i32": np.int32,
        "i16": np.int16,
        "i8": np.int8,
        "i4": ml_dtypes.int4,
        "ui64": np.uint64,
        "ui32": np.uint32,
        "ui16": np.uint16,
        "ui8": np.uint8,
        "ui4": ml_dtypes.uint4,
        "i1": np.bool_,
        "complex<f32>": np.complex64,
        "complex<f64>": np.complex128,
    }.items()
}

DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        *(f64, f32, f16, bf16, f8e4m3, f8e5m2),
        *(i64, i32, i16, i8, i4, u64, u32, u16, u8, u4),
        *(boolean, c64, c128),
    )
}
_BY_NUMPY = {dtype: name for name, dtype in _NUMPY.items()}

_FLOAT_ATTRIBUTES: dict[str, Attribute] = {
    "f64": builtin.f64,
    "f32": builtin.f32,
    "f16": builtin.f16,
    "bf16": builtin.bf16,
    "f8E4M3FN": builtin.Float8E4M3FNType(),
    "f8E5M2": builtin.Float8E5M2Type(),
    "complex<f32>": builtin.ComplexType(builtin.f32),
    "complex<f64>": builtin.ComplexType(builtin.f64),
}
_FROM_ATTRIBUTE = {attribute: DTYPES[name] for name, attribute in _FLOAT_ATTRIBUTES.items()}


def dtype_of_numpy(dtype: np.dtype) -> DType:
    """The element type of a NumPy array."""
    try:
        return DTYPES[_BY_NUMPY[np.dtype(dtype)]]
    except KeyError as error:
        if not np.dtype(dtype).isnative:
            raise DTypeError(
                f"NumPy type {dtype} is in the byte order of other machines", hint="x.astype(x.dtype.newbyteorder('='))"
            ) from error
        raise DTypeError(f"NumPy type {dtype} has no Weft type", hint=f"use one of {', '.join(DTYPES)}") from error


@cache
def element_type(dtype: DType) -> Attribute:
    """The MLIR type of an element: `f32`, `i64`, `ui8`, `i1`."""
    if dtype.name in _FLOAT_ATTRIBUTES:
        return _FLOAT_ATTRIBUTES[dtype.name]
    sign = builtin.Signedness.UNSIGNED if dtype.kind == "uint" else builtin.Signedness.SIGNLESS
    return builtin.IntegerType(dtype.bits, sign)


@cache
def dtype_of(attribute: Attribute) -> DType:
    """The element type an MLIR type stands for."""
    if attribute in _FROM_ATTRIBUTE:
        return _FROM_ATTRIBUTE[attribute]
    if isa(attribute, builtin.IntegerType):
        prefix = "ui" if attribute.signedness.data == builtin.Signedness.UNSIGNED else "i"
        name = f"{prefix}{attribute.width.data}"
        if name in DTYPES:
            return DTYPES[name]
    if isinstance(attribute, builtin.IndexType):
        return i64
    raise DTypeError(f"{attribute} is not an element type", hint=f"use one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class Tensor:
    """The type of a value: element type and shape."""

    dtype: DType
    shape: tuple[Size, ...]

    def __hash__(self) -> int:
        return hash((self.dtype.name, self.shape))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        return all(isinstance(size, int) for size in self.shape)

    def __str__(self) -> str:
        return "x".join([*(str(size) for size in self.shape), str(self.dtype)])


@irdl_attr_definition
class SizesAttr(ParametrizedAttribute):
    """Names the symbolic sizes of a tensor type: one expression a dimension."""

    name = "graph.sizes"
    sizes: builtin.ArrayAttr[builtin.StringAttr]


@cache
def tensor_type(tensor: Tensor) -> builtin.TensorType[Attribute]:
    """The MLIR type of a tensor."""
    element = element_type(tensor.dtype)
    if tensor.is_static:
        return builtin.TensorType(element, [size for size in tensor.shape if isinstance(size, int)])
    encoding = SizesAttr(builtin.ArrayAttr(builtin.StringAttr(str(size)) for size in tensor.shape))
    shape = [size if isinstance(size, int) else builtin.DYNAMIC_INDEX for size in tensor.shape]
    return builtin.TensorType(element, shape, encoding)


def remembered(function: Callable[[Attribute], _T]) -> Callable[[Attribute], _T]:
    """A function of attributes that writes its result down on the attribute: looking one up by value takes longer."""
    key = f"_weft_{function.__name__}"

    @wraps(function)
    def look_up(attribute: Attribute) -> _T:
        memory: dict[str, Any] = vars(attribute)
        try:
            return memory[key]
        except KeyError:
            found = memory[key] = function(attribute)
            return found

    return look_up


@remembered
@cache
def tensor_of(attribute: Attribute) -> Tensor:
    """The tensor an MLIR type stands for."""
    if not isa(attribute, builtin.TensorType[Attribute]):
        raise DTypeError(f"{attribute} is not a tensor type")
    dtype = dtype_of(attribute.element_type)
    if isinstance(attribute.encoding, SizesAttr):
        return Tensor(dtype, tuple(parse_size(size.data) for size in attribute.encoding.sizes))
    return Tensor(dtype, attribute.get_shape())


def is_float(value: SSAValue) -> bool:
    """Whether a value is a tensor of floats: it has a gradient then."""
    return tensor_of(value.type).dtype.is_float


def contiguous_strides(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides, in elements; a size of 0 counts as 1, as in torch."""
    return _contiguous_strides(tuple(shape))


@lru_cache(maxsize=4096)
def _contiguous_strides(shape: tuple[Size, ...]) -> tuple[Size, ...]:
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * (1 if size == 0 else size)
    return tuple(reversed(strides))
