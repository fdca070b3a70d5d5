"""The table of element functions and combiners: types, and the starting values of reductions."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import DTypeError
from weft.ir.types import DType, bf16, boolean, f32, f64, i8, i32, i64, u8
from weft.tile.functions import COMBINERS, FUNCTIONS, Function

DTYPES = (f64, f32, bf16, i8, i32, i64, u8, boolean)


def operands_of(function: Function, dtype: DType) -> list[DType]:
    return [boolean, dtype, dtype] if function.name == "select" else [dtype] * function.arity


def takes(function: Function, dtype: DType) -> bool:
    try:
        function.result_dtype(*operands_of(function, dtype))
    except DTypeError:
        return False
    return True


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=lambda function: function.name)
def test_an_implementation_gives_the_type_the_table_says(function: Function) -> None:
    dtypes = [dtype for dtype in DTYPES if takes(function, dtype)]
    assert dtypes
    for dtype in dtypes:
        operands = operands_of(function, dtype)
        arrays = [np.ones(3, operand.numpy) for operand in operands]
        if function.result == "given":
            assert function.numpy(*arrays, dtype.numpy).dtype == dtype.numpy
            continue
        with np.errstate(all="ignore"):
            assert function.numpy(*arrays).dtype == function.result_dtype(*operands).numpy


def test_operands_outside_the_domain_are_refused() -> None:
    for name, dtypes in [
        ("exp", (i32,)),
        ("and", (f32, f32)),
        ("add", (f32, f64)),
        ("add", (f32,)),
        ("neg", (boolean,)),
    ]:
        with pytest.raises(DTypeError):
            FUNCTIONS[name].result_dtype(*dtypes)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("dtype", [f64, f32, i32, i64, u8], ids=str)
def test_a_combiner_starts_from_its_identity(name: str, dtype: DType) -> None:
    combiner = COMBINERS[name]
    identity = np.asarray(combiner.identity(dtype)).astype(dtype.numpy)
    values = np.array([0, 1, 5, 100], dtype.numpy)
    np.testing.assert_array_equal(FUNCTIONS[combiner.function].numpy(identity, values), values)
    assert combiner.result_dtype(dtype) == dtype


def test_booleans_combine() -> None:
    x = np.array([[True, False], [True, True]])
    np.testing.assert_array_equal(COMBINERS["any"].reduce(x, 1), [True, True])
    np.testing.assert_array_equal(COMBINERS["all"].reduce(x, 1), [False, True])
    assert COMBINERS["any"].identity(boolean) is False
    assert COMBINERS["all"].identity(boolean) is True


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_the_index_of_a_nan_or_the_first_of_equals_wins(dtype: DType) -> None:
    x = np.array([[1, 3, 3], [np.nan, 4, np.nan]]).astype(dtype.numpy)
    np.testing.assert_array_equal(COMBINERS["argmax"].reduce(x, 1), [1, 0])
    np.testing.assert_array_equal(COMBINERS["argmin"].reduce(x, 1), [0, 0])
    assert COMBINERS["argmax"].result_dtype(dtype) == i64


def test_narrow_floats_are_summed_in_f32() -> None:
    assert COMBINERS["sum"].accumulator(bf16) == f32
    assert COMBINERS["max"].accumulator(bf16) == bf16
    assert COMBINERS["sum"].accumulator(i8) == i8
