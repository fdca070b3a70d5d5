"""The text of a kernel: where it was written, its syntax tree, and what else its meaning depends on.

`Source` reads the file only when asked, since an interpreted kernel needs no text. `fingerprint` is a digest of a
function, of the functions it calls and of the globals it uses: part of the key under which a compiled kernel is kept.
"""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

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


@dataclass
class Fingerprint:
    """The digest of a function with all that it refers to, and the globals that were read for it."""

    digest: str
    stable: bool = True
    """Whether another process would find the same digest."""
    used: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list[tuple[dict[str, Any], str, Any]])

    def holds(self) -> bool:
        """Whether the globals still have the values that went into the digest."""
        return all(scope.get(name, _ABSENT) is value for scope, name, value in self.used)


_ABSENT = object()


def fingerprint(source: Source, nested: Callable[[Any], Fingerprint | None], described: str) -> Fingerprint:
    """The fingerprint of a function. `nested` gives that of a value which is itself a kernel function, else None."""
    function = source.function
    digest = hashlib.sha256(f"{described}\n{source.line}\n{source.file}\n{source.text}".encode())
    result = Fingerprint("")
    scopes = [_closure(function), function.__globals__]
    seen: set[str] = set()
    for chain in _references(source.parse()):
        root = chain[0]
        scope = next((each for each in scopes if root in each), None)
        path = ".".join(chain)
        if scope is None or path in seen:
            continue
        seen.add(path)
        if not isinstance(scope[root], ModuleType) and scope is function.__globals__:
            result.used.append((scope, root, scope[root]))
        value = _follow(scope[root], chain[1:])
        inner = nested(value)
        if inner is not None:
            digest.update(f"{path} calls {inner.digest}".encode())
            result.used.extend(inner.used)
            result.stable &= inner.stable
        elif not isinstance(value, ModuleType):
            text = _text_of(value)
            result.stable &= text is not None
            digest.update(f"{path} is {text}".encode())
    result.digest = digest.hexdigest()
    return result


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    cells = function.__closure__ or ()
    values: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not bound yet: a function that is defined later
            continue
    return values


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


def _follow(value: Any, attributes: tuple[str, ...]) -> Any:
    """The last thing on the way that can be found: a module's attribute is, one of a kernel's value may not be."""
    for name in attributes:
        if not isinstance(value, ModuleType | type) or not hasattr(value, name):
            break
        value = getattr(value, name)
    return value


def _text_of(value: Any) -> str | None:
    """A text that differs where the meaning may differ, and is the same in another process; None if there is none."""
    if isinstance(value, tuple | list):
        parts = [_text_of(item) for item in value]
        return None if None in parts else f"{type(value).__name__} {parts}"
    if callable(value) and hasattr(value, "__qualname__"):
        module = str(getattr(value, "__module__", ""))
        known = module in ("builtins", "math", "typing") or module.startswith("weft.") or isinstance(value, type)
        return f"{module}.{value.__qualname__}" if known else None
    if value is None or isinstance(value, bool | int | float | str) or type(value).__module__.startswith("weft."):
        return f"{type(value).__qualname__} {value!r}"
    return None
