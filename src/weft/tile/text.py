"""Reads programs of both dialects from text, and remembers where each op stands in it.

An op whose text states no location gets the place where it was read, so that every later complaint, also one of a pass
or of the lowering, can name the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, ModuleOp, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Dialect, Operation, TypeAttribute
from xdsl.printer import Printer

from weft.errors import ParseError
from weft.ir.locations import line_of
from weft.ir.parser import TextParser
from weft.ir.types import remembered
from weft.ops.dialect import weft_context
from weft.ops.graph import FuncOp
from weft.tile.dialect import KernelOp
from weft.tile.registry import Tile


class _LocatingParser(TextParser):
    def parse_operation(self) -> Operation:
        span = self._current_token.span
        operation = super().parse_operation()
        if isinstance(operation.location, UnknownLoc):
            place = span.get_location()
            operation.location = FileLineColLoc(StringAttr(place.file), IntAttr(place.line), IntAttr(place.col))
        return operation


def parse_program(text: str, name: str = "<text>", dialects: Sequence[Dialect] = ()) -> ModuleOp:
    """Read a module of graph functions and tile kernels, and check it; `dialects` are those of targets."""
    context = weft_context()
    for dialect in (Tile, *dialects):
        context.load_dialect(dialect)
    module = _LocatingParser(context, text, name, "a graph or tile program").program()
    verify_program(module)
    return module


def verify_program(module: ModuleOp) -> None:
    """Check a module; a complaint names the line of the op."""
    try:
        module.verify()
    except Exception as whole:  # a verifier may meet what no program has
        for operation in module.walk():
            try:
                operation.verify(verify_nested_ops=False)
            except Exception as error:
                message = _first_line(str(error))
                raise ParseError(f"the program is not valid: {message}", location=place_of(operation)) from error
        raise ParseError(f"the program is not valid: {_first_line(str(whole))}") from whole


def _first_line(text: str) -> str:
    """What a verifier says, without the program that it prints around it."""
    lines = [line.strip(" ^│|") for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith(("Operation does not verify", '"', "%", "}"))]
    return said[0].removeprefix("Operation does not verify: ") if said else text


def place_of(operation: Operation | None) -> str | None:
    """An op's location as `file:line`, None where it is not known."""
    return None if operation is None else line_of(operation.location)


def functions_of(module: ModuleOp) -> list[FuncOp]:
    return [op for op in module.body.block.ops if isinstance(op, FuncOp)]


def kernels_of(module: ModuleOp) -> list[KernelOp]:
    return [op for op in module.body.block.ops if isinstance(op, KernelOp)]


def print_program(operation: Operation, *, locations: bool = False) -> str:
    """The text of a program, in MLIR's generic form."""
    stream = StringIO()
    _TextPrinter(stream, print_debuginfo=locations).print_op(operation)
    return stream.getvalue() + "\n"


class _TextPrinter(Printer):
    """xDSL's printer, which writes a type out once: a program has few types, and states them with every op."""

    def print_attribute(self, attribute: Attribute) -> None:
        if isinstance(attribute, TypeAttribute):
            self.print_string(_type_text(attribute))
        else:
            super().print_attribute(attribute)


@remembered
def _type_text(attribute: Attribute) -> str:
    stream = StringIO()
    Printer(stream).print_attribute(attribute)
    return stream.getvalue()
