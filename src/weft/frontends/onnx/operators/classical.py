"""The operators of `ai.onnx.ml` on features and labels; its models are in `linear_models.py` and `trees.py`."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from weft.errors import DataError, ShapeError
from weft.frontends.onnx.call import Call
from weft.frontends.onnx.operators.movement import lifted
from weft.frontends.onnx.operators.shapes import checked_shape
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import f32, i64

_DOMAIN = "ai.onnx.ml"


@onnx_op("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(c: Call) -> Any:
    x, places = c.x(0), c.x(1)
    count = int(np.prod(c.shape(1)))
    made = c.b.take(x, c.b.reshape(places, shape=(count,)), dim=c.rank(0) - 1)
    return c.b.reshape(made, shape=(1, count)) if c.rank(0) == 1 else made


@onnx_op("Binarizer", domain=_DOMAIN)
def binarizer(c: Call) -> Any:
    x = c.x(0)
    above = c.b.gt(x, c.b.full_like(x, c.float("threshold", 0.0)))
    return c.b.cast(above, dtype=c.b.tensor(x).dtype)


@onnx_op("LabelEncoder", domain=_DOMAIN)
def label_encoder(c: Call) -> Any:
    sides: list[np.ndarray] = []
    for side in ("keys", "values"):
        if c.given(f"{side}_tensor"):
            sides.append(c.array(f"{side}_tensor").reshape(-1))
        elif c.given(f"{side}_strings"):
            sides.append(np.array(c.strings(f"{side}_strings"), object))
        elif c.given(f"{side}_int64s"):
            sides.append(np.array(c.ints(f"{side}_int64s"), np.int64))
        else:
            sides.append(np.array(c.floats(f"{side}_floats"), np.float32))
    keys, values = sides
    if c.given("default_tensor"):
        default = c.array("default_tensor").reshape(-1)[0]
    elif values.dtype == np.dtype(object):
        default = c.string("default_string", "_Unused")
    elif values.dtype == np.int64:
        default = c.int("default_int64", -1)
    else:
        default = c.float("default_float", 0.0) if c.given("default_float") else -0.0
    if len(keys) != len(values):
        raise c.unsupported(f"there are {len(keys)} keys for {len(values)} values")
    table = {_key(key): value for key, value in zip(keys.tolist(), values.tolist(), strict=True)}

    def encode(array: np.ndarray) -> np.ndarray:
        found = [table.get(_key(each), default) for each in array.reshape(-1).tolist()]
        return np.array(found, values.dtype).reshape(array.shape)

    return c.host(encode)


def _key(value: Any) -> Any:
    """A number that is not one equals itself here."""
    return "nan" if isinstance(value, float) and value != value else value


@onnx_op("Scaler", domain=_DOMAIN)
def scaler(c: Call) -> Any:
    b, x = c.b, c.x(0)
    x = x if b.tensor(x).dtype == f32 else b.cast(x, dtype=f32)
    for name, how in (("offset", b.sub), ("scale", b.mul)):
        numbers = np.array(c.floats(name, ()), np.float32)
        if numbers.size not in (0, 1, c.shape(0)[-1] if c.shape(0) else 1):
            raise ShapeError(f"{c.node}: attribute {name!r} has {numbers.size} numbers for {c.shape(0)[-1]} features")
        x = how(x, lifted(c, numbers)) if numbers.size else x
    return x


@onnx_op("Normalizer", domain=_DOMAIN)
def normalizer(c: Call) -> Any:
    b, x, rank = c.b, c.x(0), c.rank(0)
    x = x if b.tensor(x).dtype == f32 else b.cast(x, dtype=f32)
    norm, last = c.string("norm", "MAX"), (rank - 1,)
    match norm:
        case "MAX":
            size = b.max(b.abs(x), dims=last, keep=True)
        case "L1":
            size = b.sum(b.abs(x), dims=last, keep=True)
        case "L2":
            size = b.sqrt(b.sum(b.mul(x, x), dims=last, keep=True))
        case _:
            raise c.unsupported(f"attribute 'norm' is {norm!r}, expected MAX, L1 or L2")
    return b.where(b.eq(size, b.full_like(size, 0.0)), x, b.div(x, size))


@onnx_op("Imputer", domain=_DOMAIN)
def imputer(c: Call) -> Any:
    b, x = c.b, c.x(0)
    dtype = b.tensor(x).dtype
    whole = dtype.is_integer
    several = c.ints("imputed_value_int64s", ()) if whole else c.floats("imputed_value_floats", ())
    values = np.array(several, dtype.numpy)
    if values.size not in (1, c.shape(0)[-1] if c.shape(0) else 1):
        raise ShapeError(f"{c.node} has {values.size} values to put in, expected one, or one a feature")
    replaced = c.int("replaced_value_int64", 0) if whole else c.float("replaced_value_float", 0.0)
    is_missing = b.isnan(x) if replaced != replaced else b.eq(x, b.full_like(x, replaced))
    return b.where(is_missing, lifted(c, values), x)


@onnx_op("FeatureVectorizer", domain=_DOMAIN)
def feature_vectorizer(c: Call) -> Any:
    b, parts = c.b, list[SSAValue]()
    widths = c.ints("inputdimensions", [c.shape(place)[-1] for place in range(len(c.inputs))])
    if len(widths) != len(c.inputs):
        raise ShapeError(f"{c.node}: attribute 'inputdimensions' has {len(widths)} widths for {len(c.inputs)} inputs")
    for place, width in enumerate(widths):
        x = b.cast(c.x(place), dtype=f32)
        shape = c.shape(place)
        rows, own = (shape[0], 1) if len(shape) == 1 else (shape[0], int(np.prod(shape[1:])))
        x = b.reshape(x, shape=(rows, own))
        if width < 0 or own > width:
            checked_shape(c, (width,))
            x = b.slice(x, starts=(0, 0), shape=(rows, width), steps=(1, 1))
        parts.append(x)
        if own < width:
            parts.append(b.full(value=0, shape=checked_shape(c, (rows, width - own)), dtype=f32))
    return parts[0] if len(parts) == 1 else b.concat(*parts, dim=1)


@onnx_op("OneHotEncoder", domain=_DOMAIN)
def one_hot_encoder(c: Call) -> Any:
    strings = c.dtype(0) == np.dtype(object)
    known = c.strings("cats_strings", ()) if strings else c.ints("cats_int64s", ())
    if not known:
        raise c.unsupported(f"it states no categories of {'strings' if strings else 'integers'}")
    strict = not c.flag("zeros", True)
    if not strings and not strict:
        b, x = c.b, c.x(0)
        x = b.cast(x, dtype=i64) if b.tensor(x).dtype != i64 else x
        shape = c.shape(0)
        hot = b.eq(b.reshape(x, shape=(*shape, 1)), lifted(c, np.array(known, np.int64)))
        return b.cast(hot, dtype=f32)
    table = {key: place for place, key in enumerate(known)}

    def encode(array: np.ndarray) -> np.ndarray:
        places = np.array([table.get(each, -1) for each in array.reshape(-1).tolist()], np.int64)
        if strict and (places < 0).any():
            raise DataError(f"{c.node}: {array.reshape(-1)[places < 0].tolist()[0]!r} is none of its categories")
        hot = places[:, None] == np.arange(len(known))
        return hot.astype(np.float32).reshape(*array.shape, len(known))

    return c.host(encode)


@onnx_op("CategoryMapper", domain=_DOMAIN)
def category_mapper(c: Call) -> Any:
    words, numbers = c.strings("cats_strings", ()), c.ints("cats_int64s", ())
    if len(words) != len(numbers):
        raise c.unsupported(f"there are {len(words)} strings for {len(numbers)} integers")
    if c.dtype(0) == np.dtype(object):
        to_number, other = dict(zip(words, numbers, strict=True)), c.int("default_int64", -1)
        return c.host(lambda array: _mapped(array, to_number, other, np.dtype(np.int64)))
    to_word, unknown = dict(zip(numbers, words, strict=True)), c.string("default_string", "_Unused")
    return c.host(lambda array: _mapped(array, to_word, unknown, np.dtype(object)))


def _mapped(array: np.ndarray, table: Mapping[Any, Any], default: Any, dtype: np.dtype) -> np.ndarray:
    found = [table.get(each, default) for each in array.reshape(-1).tolist()]
    return np.array(found, dtype).reshape(array.shape)
