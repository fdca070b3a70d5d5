"""Types and parameters come back from MLIR's attributes, and from their text, as they went in."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from xdsl.parser import Parser

from weft.errors import DTypeError
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import floordiv, symbol
from weft.ir.types import (
    DTYPES,
    DType,
    Tensor,
    bf16,
    boolean,
    contiguous_strides,
    dtype_of,
    dtype_of_numpy,
    element_type,
    f32,
    i4,
    i64,
    tensor_of,
    tensor_type,
    u8,
)
from weft.ops.dialect import weft_context

s0, s1 = symbol("s0"), symbol("s1")


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_an_element_type_comes_back(dtype: DType) -> None:
    assert dtype_of(element_type(dtype)) == dtype
    assert dtype_of(Parser(weft_context(), str(element_type(dtype))).parse_type()) == dtype
    assert dtype_of_numpy(dtype.numpy) == dtype
    assert from_attribute(to_attribute(dtype)) == dtype


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor(f32, ()),
        Tensor(bf16, (2, 0, 3)),
        Tensor(boolean, (s0,)),
        Tensor(u8, (s0, 384, s1 * 2 + 1)),
        Tensor(i64, (floordiv(s0 + 3, 4), 1)),
    ],
    ids=str,
)
def test_a_tensor_type_comes_back(tensor: Tensor) -> None:
    type_ = tensor_type(tensor)
    assert tensor_of(type_) == tensor
    assert tensor_of(Parser(weft_context(), str(type_)).parse_type()) == tensor


def test_a_symbolic_size_is_a_question_mark_with_a_name() -> None:
    assert str(tensor_type(Tensor(f32, (s0, 384)))) == 'tensor<?x384xf32, #graph.sizes<["s0", "384"]>>'
    assert str(tensor_type(Tensor(f32, (2, 384)))) == "tensor<2x384xf32>"


VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -(2**40),
    0.0,
    -0.0,
    0.1,
    1 / 3,
    1e300,
    5e-324,
    math.inf,
    -math.inf,
    "",
    'a "quoted" line\n',
    f32,
    i4,
    s0 * 2 - 1,
    (),
    (1, 1.0, True),
    (s0, (2, None), "x"),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_parameter_comes_back(value: Any) -> None:
    attribute = to_attribute(value)
    again = Parser(weft_context(), str(attribute)).parse_attribute()
    for found in (from_attribute(attribute), from_attribute(again)):
        assert found == value
        assert repr(found) == repr(value)  # 1, 1.0 and True are equal, and so are 0.0 and -0.0


def test_nan_comes_back() -> None:
    again = from_attribute(Parser(weft_context(), str(to_attribute(math.nan))).parse_attribute())
    assert isinstance(again, float)
    assert math.isnan(again)


def test_what_is_not_a_type_is_refused() -> None:
    with pytest.raises(DTypeError):
        dtype_of_numpy(np.dtype("datetime64[s]"))
    with pytest.raises(DTypeError):
        tensor_of(element_type(f32))
    with pytest.raises(DTypeError):
        dtype_of(tensor_type(Tensor(f32, ())))


def test_strides_of_rows() -> None:
    assert contiguous_strides((2, s0, 3)) == (s0 * 3, 3, 1)
    assert contiguous_strides(()) == ()
