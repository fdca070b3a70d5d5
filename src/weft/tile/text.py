"""Reads programs of both dialects from text, and remembers where each op stands in it.

An op whose text states no location gets the place where it was read, so that every later complaint, also one of a pass
or of the lowering, can name the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO

from xdsl.dialects.builtin import FileLineColLoc, FunctionType, IntAttr, ModuleOp, StringAttr, UnknownLoc
from xdsl.ir import Attribute, Dialect, Operation, SSAValue
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
    """xDSL's printer, which makes the text of an attribute once: a program has few types, and each op states some.

    What a program has most of, operands, types and strings, goes out at once and not piece by piece.
    """

    def print_string(self, text: str, *, indent: int | None = None) -> None:
        if "\n" in text or self.stream is None:
            super().print_string(text, indent=indent)
        else:
            self._current_column += len(text)
            self.stream.write(text)

    def print_attribute(self, attribute: Attribute) -> None:
        self.print_string(_text_of(attribute))

    def print_operands(self, operands: Sequence[SSAValue]) -> None:
        names = [self._ssa_values.get(operand) for operand in operands]
        if None in names:
            super().print_operands(operands)
        else:
            self.print_string(f"({', '.join(f'%{name}' for name in names)})")

    def print_function_type(self, input_types: Iterable[Attribute], output_types: Iterable[Attribute]) -> None:
        outputs = list(output_types)
        if any(isinstance(each, FunctionType) for each in outputs):
            super().print_function_type(input_types, outputs)
            return
        results = ", ".join(map(_text_of, outputs))
        self.print_string(
            f"({', '.join(map(_text_of, input_types))}) -> {results if len(outputs) == 1 else f'({results})'}"
        )

    def print_bytes_literal(self, bytestring: bytes) -> None:
        text = bytestring.decode("latin-1")
        if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
            self.print_string(f'"{text}"')
        else:
            super().print_bytes_literal(bytestring)


@remembered
def _text_of(attribute: Attribute) -> str:
    stream = StringIO()
    Printer.print_attribute(_TextPrinter(stream), attribute)
    return stream.getvalue()
