"""The types of tile kernels: tiles, pointers, and the index expressions that their ops carry."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from xdsl.dialects import builtin
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr
from xdsl.ir import Attribute, Data, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    irdl_attr_definition,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from weft.ir.expr import Size
from weft.ir.size_text import parse_size
from weft.ir.types import DType, dtype_of, element_type, remembered


@irdl_attr_definition
class TileType(ParametrizedAttribute, TypeAttribute):
    """A tile: `!tile.tile<[4, 1000], f32>`."""

    name = "tile.tile"
    shape: ArrayAttr[IntegerAttr]
    element: Attribute

    @classmethod
    def of(cls, shape: Sequence[int], dtype: DType) -> TileType:
        return _tile_of(tuple(shape), dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        return _sizes(self)

    @property
    def dtype(self) -> DType:
        return dtype_of(self.element)


@lru_cache(maxsize=4096)
def _tile_of(shape: tuple[int, ...], dtype: DType) -> TileType:
    return TileType(ArrayAttr(IntegerAttr(size, builtin.i64) for size in shape), element_type(dtype))


@remembered
def _sizes(attribute: Attribute) -> tuple[int, ...]:
    assert isinstance(attribute, TileType)
    return tuple(size.value.data for size in attribute.shape)


@irdl_attr_definition
class PointerType(ParametrizedAttribute, TypeAttribute):
    """The address of a tensor's first element."""

    name = "tile.ptr"
    element: Attribute

    @property
    def dtype(self) -> DType:
        return dtype_of(self.element)


@irdl_attr_definition
class Sizes(Data[tuple[Size, ...]]):
    """Index expressions over the op's index operands: `#tile.sizes<["d0*768 + d1", "1"]>`."""

    name = "tile.sizes"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> tuple[Size, ...]:
        with parser.in_angle_brackets():
            texts = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_str_literal)
        return tuple(parse_size(text) for text in texts)

    def print_parameter(self, printer: Printer) -> None:
        # An array of strings, as MLIR prints the one parameter of an attribute: so that others can read it.
        with printer.in_angle_brackets(), printer.in_square_brackets():
            printer.print_list(self.data, lambda size: printer.print_string_literal(str(size)))


def tile_type(value: SSAValue) -> TileType:
    assert isinstance(value.type, TileType), value.type
    return value.type
