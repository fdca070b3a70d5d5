"""A launch as attributes, so that an annotated kernel can be printed and read back with how it is launched."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, cast

from xdsl.dialects.builtin import ArrayAttr, BoolAttr, DictionaryAttr, IntegerAttr, StringAttr, i64
from xdsl.ir import Attribute

from weft.backends.nvidia.code import Launch, TensorMap
from weft.errors import ParseError
from weft.tile.dialect import Sizes


def launch_attribute(launch: Launch) -> DictionaryAttr:
    """What differs from the fields' defaults."""
    given = {each.name: getattr(launch, each.name) for each in fields(Launch)}
    return DictionaryAttr({each.name: _written(given[each.name]) for each in fields(Launch) if _told(each, given)})


def read_launch(attribute: Attribute) -> Launch:
    """The launch that an attribute tells."""
    if not isinstance(attribute, DictionaryAttr):
        raise ParseError("a launch is a dictionary", hint="#nvidia.launch<{threads = 128, shared = 0}>")
    known = {each.name for each in fields(Launch)}
    wrong = [name for name in attribute.data if name not in known]
    if wrong or "threads" not in attribute.data or "shared" not in attribute.data:
        raise ParseError(f"a launch has threads, shared and other fields of {sorted(known)}, not {wrong}")
    return Launch(**{name: _read(value) for name, value in attribute.data.items()})


def _told(field: Field[Any], given: dict[str, Any]) -> bool:
    return field.default is MISSING or given[field.name] != field.default


def _written(value: object) -> Attribute:
    match value:
        case bool():
            return BoolAttr.from_bool(value)
        case int():
            return IntegerAttr(value, i64)
        case tuple():
            return ArrayAttr(_written(each) for each in cast("tuple[object, ...]", value))
        case TensorMap():
            return DictionaryAttr(
                {
                    "argument": IntegerAttr(value.argument, i64),
                    "dtype": StringAttr(value.dtype),
                    **{name: Sizes(getattr(value, name)) for name in ("sizes", "strides", "box")},
                }
            )
        case _:
            raise TypeError(f"a launch has no {value!r}")


def _read(attribute: Attribute) -> Any:
    match attribute:
        case IntegerAttr() if attribute.type == i64:
            return attribute.value.data
        case IntegerAttr():
            return bool(attribute.value.data)
        case ArrayAttr():
            return tuple(map(_read, attribute.data))
        case DictionaryAttr(data=parts):
            return TensorMap(**{name: _read(part) for name, part in parts.items()})
        case Sizes():
            return attribute.data
        case StringAttr():
            return attribute.data
        case _:
            raise ParseError(f"a launch has no {attribute}")
