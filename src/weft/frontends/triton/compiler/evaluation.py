"""The state while one function of the author is evaluated: its names, its text, and where in it we are.

Rules for nodes of the syntax tree are functions in expressions.py, statements.py, branches.py and loops.py; they are
entered in the tables here by the type of node that they are for.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from weft.frontends.triton.builders import builder
from weft.frontends.triton.compiler.scopes import Scope
from weft.frontends.triton.errors import (
    CompileTimeAssertionFailure,
    Frame,
    KernelError,
    KernelShapeError,
    KernelUnsupportedError,
    from_exception,
)
from weft.frontends.triton.language.constants import base_value
from weft.frontends.triton.runtime.jit import JITFunction

ExpressionRule: TypeAlias = "Callable[[Evaluation, Any], Any]"
StatementRule: TypeAlias = "Callable[[Evaluation, Any], None]"
_F = TypeVar("_F", bound=Callable[..., Any])

EXPRESSIONS: dict[type[ast.AST], ExpressionRule] = {}
STATEMENTS: dict[type[ast.AST], StatementRule] = {}


def expression(*kinds: type[ast.AST]) -> Callable[[_F], _F]:
    """Enter a rule for expressions: it gives the value."""

    def enter(function: _F) -> _F:
        EXPRESSIONS.update(dict.fromkeys(kinds, function))
        return function

    return enter


def statement(*kinds: type[ast.AST]) -> Callable[[_F], _F]:
    """Enter a rule for statements."""

    def enter(function: _F) -> _F:
        STATEMENTS.update(dict.fromkeys(kinds, function))
        return function

    return enter


@dataclass
class Evaluation:
    """One call of one function of the author."""

    function: JITFunction
    around: Mapping[str, Any]
    scope: Scope = field(default_factory=Scope)
    loops: list[ast.stmt] = field(default_factory=list[ast.stmt])

    def evaluate(self, node: ast.expr) -> Any:
        """The value of an expression."""
        rule = EXPRESSIONS.get(type(node))
        try:
            if rule is None:
                raise unsupported(node)
            return rule(self, node)
        except KernelError as error:
            self.placed(error, node)
            raise
        except Exception as error:
            raise self.placed(from_exception(error), node) from error

    def perform(self, node: ast.stmt) -> None:
        """Do what a statement says that is neither `if` nor `for` nor `return`: these see the statements after them."""
        rule = STATEMENTS.get(type(node))
        try:
            if rule is None:
                raise unsupported(node)
            rule(self, node)
        except KernelError as error:
            self.placed(error, node)
            raise
        except Exception as error:
            raise self.placed(from_exception(error), node) from error

    def at(self, node: ast.expr | ast.stmt) -> None:
        """What the builder makes next was written here."""
        place = f"{self.function.source.file}:{node.lineno}:{node.col_offset + 1}"
        builder.written_at.set(place)
        builder.current.get().at(place)

    def placed(self, error: KernelError, node: ast.AST) -> KernelError:
        """Say that an error is at this node, unless a node inside of it has said so."""
        if error.owner != id(self):
            error.add_frame(self.frame(node), self.types_in(node))
            error.owner = id(self)
            error.hint = error.hint or _hint(error, node)
        return error

    def frame(self, node: ast.AST) -> Frame:
        """A node's place in the author's file."""
        source = self.function.source
        _, first, indent = source.definition
        lines = source.text.splitlines()
        place: Any = node
        line: int = place.lineno
        text = " " * indent + lines[line - first] if 0 <= line - first < len(lines) else ""
        in_bytes = text.rstrip().encode()
        offsets = (place.col_offset, place.end_col_offset if place.end_lineno == line else len(in_bytes))
        column, end = (len(in_bytes[:offset].decode(errors="ignore")) for offset in offsets)
        return Frame(source.file, line, column, end, text, self.function.__name__)

    def types_in(self, node: ast.AST) -> dict[str, str]:
        """The types of the names that are read in a node: what the author must know to see the mistake."""
        # Of a statement with a body only the head is of interest.
        parts = [node] if isinstance(node, ast.expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return) else []
        seen: dict[str, str] = {}
        for part in parts:
            for each in ast.walk(part):
                if isinstance(each, ast.Name) and isinstance(self.scope.values.get(each.id), base_value):
                    seen[each.id] = describe(self.scope.values[each.id])
        return seen


def describe(value: Any) -> str:
    """A value's type, as an author knows it."""
    if isinstance(value, base_value):
        type_ = value.type
        return str(type_) if type(value).__name__ != "constexpr" else repr(value)
    return f"{value!r} of Python's type {type(value).__name__}"


def _hint(error: KernelError, node: ast.AST) -> str:
    """What to do about an error that does not say so itself."""
    if isinstance(error, CompileTimeAssertionFailure):
        return "the constexprs of this launch do not fit: change them where the kernel is launched"
    if isinstance(error, KernelShapeError):
        return "sides that meet must be equal, or 1: look at the shapes of the operands"
    if isinstance(node, ast.Call):
        return f"see help({ast.unparse(node.func)})"
    return "look at the types of the operands; x.to(...) converts"


_INSTEAD: dict[type[ast.AST], tuple[str, str]] = {
    ast.Break: ("`break`", "make the condition part of a `while`, or mask what comes after with tl.where"),
    ast.Continue: ("`continue`", "put what it skips under an `if`"),
    ast.Try: ("`try`", "check with `if`, tl.static_assert or tl.device_assert"),
    ast.Raise: ("`raise`", "use tl.static_assert at compile time, or tl.device_assert"),
    ast.With: ("`with`", "write out what it stands for"),
    ast.FunctionDef: ("a function inside of a kernel", "define it outside, with @triton.jit"),
    ast.ClassDef: ("a class inside of a kernel", "define it outside"),
    ast.Lambda: ("`lambda`", "define a function outside, with @triton.jit"),
    ast.Dict: ("a dictionary", "use a tuple, or a named tuple"),
    ast.Set: ("a set", "use a tuple"),
    ast.DictComp: ("a dictionary comprehension", "use a tuple, or a named tuple"),
    ast.SetComp: ("a set comprehension", "use a list comprehension over a tuple"),
    ast.GeneratorExp: ("a generator expression", "use a list comprehension over a tuple, or a loop"),
    ast.Global: ("`global`", "return the value, or store it through a pointer"),
    ast.Nonlocal: ("`nonlocal`", "return the value, or store it through a pointer"),
    ast.Import: ("`import`", "import at the top of the file"),
    ast.ImportFrom: ("`import`", "import at the top of the file"),
    ast.Delete: ("`del`", "leave it out: values need no freeing"),
    ast.Yield: ("`yield`", "store results through a pointer"),
    ast.YieldFrom: ("`yield`", "store results through a pointer"),
    ast.Await: ("`await`", "leave it out: loads are asynchronous where the target can do so"),
    ast.AsyncFor: ("`async for`", "use `for`"),
    ast.AsyncWith: ("`async with`", "write out what it stands for"),
    ast.AsyncFunctionDef: ("a function inside of a kernel", "define it outside, with @triton.jit"),
    ast.Match: ("`match`", "use if/elif/else"),
    ast.MatMult: ("`@`", "use tl.dot(a, b)"),
}


def unsupported(node: ast.AST) -> KernelUnsupportedError:
    """The error for syntax that has no meaning in a kernel."""
    what, instead = _INSTEAD.get(type(node), (f"{type(node).__name__} syntax", "write it in another way"))
    return KernelUnsupportedError(f"{what} is not supported in a kernel", hint=instead)
