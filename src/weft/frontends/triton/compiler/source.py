"""The text of a kernel: where it was written, its syntax tree, and what else its meaning depends on.

`Source` reads the file only when asked, since an interpreted kernel needs no text. `fingerprint` is a digest of a
function, of the functions it calls and of the globals it uses: part of the key under which a compiled kernel is kept.
"""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import ast
import collections
import dataclasses
import enum
import hashlib
import inspect
import reprlib
import symtable
import textwrap
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Protocol, TypeAlias

from weft.errors import WeftError
from weft.forks import cached_property


class SourceError(WeftError, ValueError):
    """A kernel whose text cannot be read."""


class Source:
    """The text of a Python function. Line numbers of `tree` are those of the file."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.file = function.__code__.co_filename
        self._given: str | None = None

    @cached_property
    def raw_lines(self) -> tuple[list[str], int]:
        """The lines as written, decorators included, and the number of the first."""
        try:
            return inspect.getsourcelines(self.function)
        except (OSError, TypeError) as error:
            name = self.function.__name__
            raise SourceError(
                f"the text of {name} cannot be read",
                location=f"{self.file}:{self.function.__code__.co_firstlineno}",
                hint="define kernels in a file or a notebook, or run them with WEFT_INTERPRET=1, which needs no text",
            ) from error

    @cached_property
    def definition(self) -> tuple[str, int, int]:
        """The text from `def` on without indentation, the number of its first line, and the indentation."""
        lines, first = self.raw_lines
        text = "".join(lines)
        indent = len(lines[0]) - len(lines[0].lstrip())
        node = ast.parse(textwrap.dedent(text)).body[0]
        skipped = node.lineno - 1
        return textwrap.dedent("".join(lines[skipped:])), first + skipped, indent

    @property
    def text(self) -> str:
        """The function from `def` on; `replace` may have changed it."""
        return self.definition[0] if self._given is None else self._given

    @property
    def line(self) -> int:
        """The line of the file on which `def` stands."""
        return self.definition[1]

    def replace(self, text: str) -> None:
        """Compile another text in place of the file's."""
        self._given = text

    def parse(self) -> ast.FunctionDef:
        """The syntax tree; lines and columns are those of the file."""
        _, line, indent = self.definition
        tree = ast.parse(self.text)
        (node,) = tree.body
        if not isinstance(node, ast.FunctionDef):
            raise SourceError("a kernel is a plain function", location=f"{self.file}:{line}")
        for each in ast.walk(node):
            if isinstance(each, ast.expr | ast.stmt | ast.arg | ast.keyword | ast.ExceptHandler):
                each.lineno += line - 1
                each.col_offset += indent
                if each.end_lineno is not None:
                    each.end_lineno += line - 1
                if each.end_col_offset is not None:
                    each.end_col_offset += indent
        return node


class Scope(Protocol):
    """Where a name is looked up again: globals, the names of a module, or what a closure holds."""

    def get(self, name: str, default: Any = None, /) -> Any: ...


Nested: TypeAlias = "Callable[[Any], Fingerprint | None]"


@dataclass
class Fingerprint:
    """The digest of a function with all that it refers to, and the names that were looked up for it."""

    digest: str
    stable: bool = True
    """Whether another process would find the same digest."""
    used: list[tuple[Scope, str, Any]] = field(default_factory=list[tuple[Scope, str, Any]])
    whole: bool = True
    """Whether no function on the way was left out because it was being looked at already."""

    def holds(self) -> bool:
        """Whether the names still have the values that went into the digest."""
        return all(scope.get(name, _ABSENT) is value for scope, name, value in self.used)

    def take(self, inner: Fingerprint) -> str:
        """Depend on all that another fingerprint depends on; its digest."""
        self.used.extend(inner.used)
        self.stable &= inner.stable
        self.whole &= inner.whole
        return inner.digest


_ABSENT = object()


def fingerprint(source: Source, nested: Nested, described: str) -> Fingerprint:
    """The fingerprint of a function. `nested` gives that of a value which is itself a kernel function, else None."""
    function = source.function
    digest = hashlib.sha256(f"{described}\n{source.line}\n{source.file}\n{source.text}".encode())
    result = Fingerprint("")
    cells = _Cells(function)
    own = _own_names(source)
    seen: set[str] = set()
    for name, value in _defaults(function):
        digest.update(f"{name} is by default {_value(value, nested, result)}".encode())
    for chain in _references(source.parse()):
        root = chain[0]
        scope: Scope = cells if cells.get(root, _ABSENT) is not _ABSENT else function.__globals__
        path = ".".join(chain)
        start = scope.get(root, _ABSENT)
        if start is _ABSENT or path in seen or root in own:
            continue
        seen.add(path)
        value = _follow(scope, root, chain[1:], result)
        if not isinstance(value, ModuleType):
            digest.update(f"{path} is {_value(value, nested, result)}".encode())
    result.digest = digest.hexdigest()
    return result


def _value(value: Any, nested: Nested, result: Fingerprint) -> str | None:
    """A text for a value that a function refers to, whose dependences become those of the result."""
    inner = nested(value)
    if inner is not None:
        return f"function {result.take(inner)}"
    if isinstance(value, type) and not _is_known(value.__module__):
        return f"class {result.take(_of_class(value, nested))}"
    text = _text_of(value)
    result.stable &= text is not None
    return text


_classes: ContextVar[tuple[type, ...]] = ContextVar("_classes", default=())
"""The author's classes that are being looked at: a method may refer to its own."""

_OF_NO_MEANING = {"__doc__", "__dict__", "__weakref__", "__module__", "__qualname__", "__name__", "__annotations__"} | {
    *("__slots__", "__match_args__", "__firstlineno__", "__static_attributes__", "__hash__", "__abstractmethods__"),
    *("_abc_impl", "__annotate__", "__annotate_func__", "__annotations_cache__", "__dataclass_params__"),
}
"""Entries of a class that say nothing about its objects, or are looked at in another way."""


def _of_class(kind: type, nested: Nested) -> Fingerprint:
    """The fingerprint of a class that an author wrote: its fields with their defaults, and its methods."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    active = _classes.get()
    if kind in active:
        return Fingerprint(f"recursion in {name}", whole=False)
    result = Fingerprint("")
    token = _classes.set((*active, kind))
    try:
        parts = [f"{name} {list(inspect.get_annotations(kind))}"]
        parts += [f"of {_value(base, nested, result)}" for base in kind.__bases__]
        for member, value in vars(kind).items():
            if member not in _OF_NO_MEANING:
                parts.append(f"{member} is {_member(kind, value, nested, result)}")
    finally:
        _classes.reset(token)
    result.digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return result


def _member(kind: type, value: Any, nested: Nested, result: Fingerprint) -> str | None:
    if isinstance(value, property):
        return str([_member(kind, each, nested, result) for each in (value.fget, value.fset)])
    if isinstance(value, staticmethod | classmethod):
        return f"{type(value).__name__} {_member(kind, value.__func__, nested, result)}"
    if isinstance(value, dataclasses.Field):
        parts = [value.default, value.default_factory]
        return str([None if part is dataclasses.MISSING else _value(part, nested, result) for part in parts])
    if isinstance(value, dict):
        return str([(key, _member(kind, each, nested, result)) for key, each in value.items()])
    if type(value).__name__ == "_tuplegetter":  # a field of a named tuple
        return repr(value)
    if not isinstance(value, FunctionType):
        return _value(value, nested, result)
    if value.__module__.startswith("weft."):  # an aggregate's: around the class as it was written
        held = (cell.cell_contents for cell in value.__closure__ or ())
        return str([_value(each, nested, result) for each in held if isinstance(each, type)])
    if _is_generated(kind, value):
        return "generated"
    try:
        return result.take(fingerprint(Source(value), nested, value.__qualname__))
    except (SourceError, SyntaxError):  # a lambda, or a function without a text
        result.stable = False
        return None


def _is_generated(kind: type, value: FunctionType) -> bool:
    """Whether the fields of the class say all about a method: those that dataclasses and named tuples make."""
    made = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    library = value.__code__.co_filename.startswith(("<", collections.__file__, dataclasses.__file__, reprlib.__file__))
    return made and library


def _defaults(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(function.__defaults__ or ()):
        yield str(number), value
    yield from (function.__kwdefaults__ or {}).items()


def _own_names(source: Source) -> set[str]:
    """The parameters of a function, and the names it assigns to: no globals, whatever these are called."""
    table = symtable.symtable(source.text, source.file, "exec")
    functions = [child for child in table.get_children() if isinstance(child, symtable.Function)]
    return set[str]().union(*(child.get_locals() for child in functions))


class _Cells:
    """What the closure of a function holds now."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def get(self, name: str, default: Any = None, /) -> Any:
        try:
            return self._cells[name].cell_contents
        except (KeyError, ValueError):  # a cell that is not bound yet: a function that is defined later
            return default


def _references(tree: ast.AST) -> Iterator[tuple[str, ...]]:
    """Names that are read, with the attributes taken of them: `tl.math.exp` is ("tl", "math", "exp")."""
    for node in ast.walk(tree):
        chain: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield (inner.id, *reversed(chain))


def _follow(scope: Scope, root: str, attributes: tuple[str, ...], result: Fingerprint) -> Any:
    """The last thing on the way that can be found: a module's attribute is, one of a kernel's value may not be.

    Names that can be bound anew are noted, save those that lead to modules and those of Weft's own.
    """
    value = scope.get(root)
    if not isinstance(value, ModuleType):
        result.used.append((scope, root, value))
    for name in attributes:
        if not isinstance(value, ModuleType | type) or not hasattr(value, name):
            break
        holder, value = value, getattr(value, name)
        if isinstance(holder, ModuleType) and not isinstance(value, ModuleType) and not _is_known(holder.__name__):
            result.used.append((vars(holder), name, vars(holder).get(name, _ABSENT)))
    return value


def _is_known(module: str) -> bool:
    """Whether what the module defines is the same in every process of this version."""
    return module in ("builtins", "math", "typing", "weft") or module.startswith("weft.")


def _text_of(value: Any) -> str | None:
    """A text that differs where the meaning may differ, and is the same in another process; None if there is none."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__module__}.{value!s} {_text_of(value.value)}"
    if isinstance(value, dict):
        return _text_of([item for pair in value.items() for item in pair])
    if isinstance(value, tuple | list):
        parts = [_text_of(item) for item in value]
        return None if None in parts else f"{type(value).__name__} {parts}"
    if callable(value) and hasattr(value, "__qualname__"):
        module = str(getattr(value, "__module__", ""))
        return f"{module}.{value.__qualname__}" if _is_known(module) or isinstance(value, type) else None
    if value is None or isinstance(value, bool | int | float | str) or type(value).__module__.startswith("weft."):
        return f"{type(value).__qualname__} {value!r}"
    return None
