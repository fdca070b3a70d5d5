"""Python values as MLIR attributes and back: op classes take and return plain Python, the IR holds attributes."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TypeAlias

from xdsl.dialects import builtin
from xdsl.ir import Attribute, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition

from weft.errors import DTypeError
from weft.ir.expr import Expr
from weft.ir.size_text import parse_size
from weft.ir.types import DType, dtype_of, element_type, remembered

Value: TypeAlias = "bool | int | float | str | DType | Expr | tuple[Value, ...] | None"


@irdl_attr_definition
class SizeAttr(ParametrizedAttribute):
    """A symbolic size as an attribute: `#graph.size<"s0*2">`."""

    name = "graph.size"
    text: builtin.StringAttr


def to_attribute(value: Value) -> Attribute:
    """The attribute that stands for a Python value."""
    # 1, 1.0 and True are equal and hash alike, and so do 0.0 and -0.0: the memo needs types and signs beside the value.
    return _to_attribute(value, _type_key(value))


def _type_key(value: Value) -> object:
    match value:
        case tuple():
            return tuple(_type_key(item) for item in value)
        case float():
            return float, math.copysign(1, value)
        case _:
            return type(value)


@lru_cache(maxsize=4096)
def _to_attribute(value: Value, _key: object) -> Attribute:
    match value:
        case None:
            return builtin.NoneType()  # prints as `none`, which is read back as the type
        case bool():
            return builtin.IntegerAttr(int(value), builtin.i1)
        case int():
            return builtin.IntegerAttr(value, builtin.i64)
        case float():
            return builtin.FloatAttr(value, builtin.f64)
        case str():
            return builtin.StringAttr(value)
        case DType():
            return element_type(value)
        case Expr():
            return SizeAttr(builtin.StringAttr(str(value)))
        case tuple():
            return builtin.ArrayAttr(to_attribute(item) for item in value)


@remembered
@lru_cache(maxsize=4096)
def from_attribute(attribute: Attribute) -> Value:
    """The Python value an attribute stands for."""
    match attribute:
        case builtin.NoneType():
            return None
        case builtin.IntegerAttr(value=value, type=type_):
            return bool(value.data) if type_ == builtin.i1 else value.data
        case builtin.FloatAttr(value=value):
            return value.data
        case builtin.StringAttr(data=data):
            return data
        case SizeAttr(text=text):
            return parse_size(text.data)
        case builtin.ArrayAttr(data=items):
            return tuple(from_attribute(item) for item in items)
        case builtin.UnitAttr():
            return True
        case _:
            try:
                return dtype_of(attribute)
            except DTypeError as error:
                raise DTypeError(f"attribute {attribute} has no Python value") from error


_NUMBERS = itertools.count()


@remembered
@lru_cache(maxsize=1 << 16)
def identity_of(attribute: Attribute) -> int:
    """A number that only equal attributes share, for keys that are compared often. It means nothing elsewhere."""
    return next(_NUMBERS)
