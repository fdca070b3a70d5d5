"""From the text of a `@jit` function to calls of the builder: the syntax tree is evaluated on values of the language.

    source.parse() ──► statements.execute ──► expressions, calls ──► operators of tensor, tl.* ──► builder

A function called from a kernel is evaluated in place, each time anew: there are no calls in what is built.
"""

from __future__ import annotations

import ast
import linecache
import re
import weakref
from collections import ChainMap
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.compiler.carried import type_of
from weft.frontends.triton.compiler.evaluation import Evaluation
from weft.frontends.triton.compiler.scopes import Scope
from weft.frontends.triton.compiler.source import Source
from weft.frontends.triton.compiler.statements import Returned, execute, is_constexpr_annotation
from weft.frontends.triton.errors import Frame, KernelError, KernelTypeError, KernelUnsupportedError, from_exception
from weft.frontends.triton.language.constants import base_type, base_value, constexpr, unwrap
from weft.frontends.triton.language.known import is_known, known
from weft.frontends.triton.runtime.jit import JITFunction

_DEEPEST = 100

_active: ContextVar[tuple[tuple[JITFunction, list[base_type]], ...]] = ContextVar("_active", default=())
_trees: weakref.WeakKeyDictionary[Source, tuple[str, ast.FunctionDef]] = weakref.WeakKeyDictionary()


def build_kernel(function: JITFunction, arguments: Mapping[str, Any]) -> None:
    """Evaluate a kernel on its arguments, by name, with the current builder."""
    run, returned = _evaluate(function, (), arguments)
    if returned is not None and returned.value is not None:
        error = KernelTypeError(
            f"kernel {function.__name__} returns a value: nobody would get it",
            hint="store results through a pointer with tl.store",
        )
        raise run.placed(error, returned.node or _tree(function.source))


def build_function(function: JITFunction, args: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None) -> Any:
    """Evaluate a function on its arguments with the current builder: gives what it returns, or None."""
    _, returned = _evaluate(function, args, keywords or {})
    return None if returned is None else returned.value


def _evaluate(
    function: JITFunction, args: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Evaluation, Returned | None]:
    tree = _tree(function.source)
    scope = _arguments(function, tree, args, keywords)
    signature = [type_of(value) for value in scope.values.values()]
    active = _active.get()
    _refuse_recursion(function, signature, active)
    token, place = _active.set((*active, (function, signature))), builder.written_at.set("")
    try:
        run = Evaluation(function, ChainMap(_closure(function), function.fn.__globals__), scope)
        return run, execute(run, tree.body)
    finally:
        _active.reset(token)
        builder.written_at.reset(place)


@contextmanager
def framed(function: JITFunction) -> Generator[None]:
    """What goes wrong in here, below the language, is shown as an error of this kernel, at the line if it is known."""
    try:
        yield
    except KernelError:
        raise
    except Exception as error:
        shown = from_exception(error)
        shown.add_frame(_place(function, getattr(error, "location", None) or ""))
        shown.hint = shown.hint or "this is a fault of Weft, not of the kernel: please report it with the kernel's text"
        raise shown from error


def _place(function: JITFunction, location: str) -> Frame:
    """The line that a location names, or the one on which the kernel is defined."""
    source = function.source
    file, line = source.file, source.line
    found = re.match(r"(.+?):(\d+)(?::\d+)?$", location)
    if found is not None:
        file, line = found[1], int(found[2])
    text = linecache.getline(file, line).rstrip()
    return Frame(file, line, len(text) - len(text.lstrip()), len(text), text, function.__name__)


def _tree(source: Source) -> ast.FunctionDef:
    text, tree = _trees.get(source, ("", None))
    if tree is None or text != source.text:
        tree = source.parse()
        _trees[source] = (source.text, tree)
    return tree


def _closure(function: JITFunction) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, cell in zip(function.fn.__code__.co_freevars, function.fn.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # a name that is given its value later
            continue
    return found


def _arguments(function: JITFunction, tree: ast.FunctionDef, args: Sequence[Any], keywords: Mapping[str, Any]) -> Scope:
    """The parameters with their values: the scope that the body begins with."""
    try:
        bound = function.signature.bind(*args, **keywords)
    except TypeError as error:
        raise KernelTypeError(
            f"{function.__name__}: {error}", hint=f"it is defined as {function.__name__}{function.signature}"
        ) from None
    bound.apply_defaults()
    scope = Scope()
    parameters = [*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs]
    constants = {each.arg for each in parameters if each.annotation and is_constexpr_annotation(each.annotation)}
    for name, value in bound.arguments.items():
        if isinstance(value, dict):
            raise KernelUnsupportedError(f"{function.__name__} takes **{name}", hint="name the parameters")
        value = known(value)
        if name in constants and is_known(value):
            scope.declare(name, value if isinstance(value, base_value | base_type) else constexpr(unwrap(value)))
        else:
            scope.set(name, value)
    return scope


def _refuse_recursion(
    function: JITFunction, signature: list[base_type], active: tuple[tuple[JITFunction, list[base_type]], ...]
) -> None:
    """Calls are evaluated in place: one that comes back to itself with the same types would never end."""
    again = any(other is function and types == signature for other, types in active)
    if again or len(active) >= _DEEPEST:
        raise KernelUnsupportedError(
            f"{function.__name__} calls itself: recursion is not supported in a kernel",
            hint="use a loop; only a call whose types or constexprs change each time, and that ends, can be recursive",
        )
