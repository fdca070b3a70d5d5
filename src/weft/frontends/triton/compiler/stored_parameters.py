"""Which parameters of a kernel it may write through: found in its text, with the functions it calls.

A name is followed through assignments, so an index that was read from a tensor counts too: more may be named than are
written, never fewer; what is not known may write through all that it is given.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from typing import Any

from weft.frontends.triton.compiler.constexpr_function import ConstexprFunction
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.values import tensor
from weft.frontends.triton.runtime.jit import JITCallable, JITFunction

_WRITES = ("store", "atomic_", "scatter")
_ALL = "*"
"""Stands for every argument of a call to something unknown."""

_OF_TENSORS = frozenset(name for name in dir(tensor) if not name.startswith(_WRITES)) | {"load", "gather"}
"""Methods of values that write nothing."""


def stored_parameters(function: JITFunction, active: tuple[JITFunction, ...] = ()) -> tuple[str, ...]:
    """The parameters through which the kernel may write."""
    if function in active:
        return ()
    tree = function.source.parse()
    sources: dict[str, set[str]] = {}
    written: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    _flow(sources, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                _flow(sources, target, value)
            case ast.AugAssign(target=target, value=value):
                _flow(sources, target, value)
            case ast.For(target=target, iter=value):
                _flow(sources, target, value)
            case ast.NamedExpr(target=target, value=value):
                _flow(sources, target, value)
            case ast.Call():
                written |= _written_by(node, function, active)
            case _:
                continue
    while True:
        reached = written.union(*(sources.get(name, set()) for name in written))
        if reached == written:
            return tuple(name for name in function.arg_names if name in written)
        written = reached


def _flow(sources: dict[str, set[str]], target: ast.expr, value: ast.expr) -> None:
    for name in _names(target):
        sources.setdefault(name, set()).update(_names(value))


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _written_by(call: ast.Call, function: JITFunction, active: tuple[JITFunction, ...]) -> set[str]:
    """The names through which a call may write."""
    callee = _callee(call.func, function)
    if isinstance(callee, JITFunction):
        return _written_by_function(call, callee, (*active, function))
    own = isinstance(callee, type) or inspect.isroutine(callee)
    own = own and str(callee.__module__).startswith(("weft.", "builtins", "math"))
    called = callee.__name__ if own else call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if called.startswith(_WRITES):
        # `tl.store(pointer, value)`: the pointer; `descriptor.store(offsets, value)`: the descriptor.
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("pointer", None))]
        return set[str]().union(*map(_names, [*given, call.func]))
    if own or isinstance(callee, ConstexprFunction) or called in _OF_TENSORS:
        return set()
    return _names(call)


def _written_by_function(call: ast.Call, callee: JITFunction, active: tuple[JITFunction, ...]) -> set[str]:
    inner = stored_parameters(callee, active)
    given: dict[str, ast.expr] = dict(zip(callee.arg_names, call.args, strict=False))
    given |= {keyword.arg or _ALL: keyword.value for keyword in call.keywords}
    spread = _ALL in given or any(isinstance(argument, ast.Starred) for argument in call.args)
    if inner and spread:
        return _names(call)
    return set[str]().union(*(_names(given[name]) for name in inner if name in given))


def _callee(node: ast.expr, function: JITCallable) -> Any:
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    value: Any = function.get_capture_scope().get(node.id, getattr(builtins, node.id, None))
    for name in reversed(path):
        value = getattr(value, name, None)
    return unwrap(value)
