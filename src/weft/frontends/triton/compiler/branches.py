"""`if` on a condition that only the running kernel knows: both branches are evaluated, and their names joined.

    if c:                      %r:2 = branch %c {
        x = x + 1                  ... yield %x1, %y1
        y = a            ──►   } else {
    else:                          ... yield %x, %y2
        y = b                  }

A name that is assigned in a branch must have one type after both, or it has no value from there on.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.types_only import is_types_only, types_only
from weft.frontends.triton.compiler.calls import to_condition
from weft.frontends.triton.compiler.carried import (
    assigned,
    handles_of,
    joined,
    last_assignment,
    rebuild,
    rebuild_all,
    settled,
    type_of,
)
from weft.frontends.triton.compiler.evaluation import Evaluation, describe
from weft.frontends.triton.compiler.scopes import ABSENT, Scope
from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language.constants import base_type, constexpr_type
from weft.frontends.triton.language.values import tensor

Execute = Callable[[Evaluation, list[ast.stmt]], Any]


@dataclass(frozen=True)
class _Joined:
    """A name that has a value after the branches, its type, and its handles where only types are of interest."""

    name: str
    type: base_type
    handles: list[Any]


def branch(run: Evaluation, node: ast.If, test: tensor, execute: Execute) -> None:
    """Evaluate an `if` without `return` in it."""
    condition = _condition(run, node, test)
    names = assigned([*node.body, *node.orelse])
    kept: list[_Joined] = []
    if any(name in run.scope.values for name in names) or set(assigned(node.body)) & set(assigned(node.orelse)):
        scopes = [_scope_after(run, body, execute) for body in (node.body, node.orelse)]
        kept, lost = _join(run, node, names, scopes)
    else:
        lost = {name: _one_branch(node) for name in names}

    def evaluate(body: list[ast.stmt]) -> list[Any]:
        outer, run.scope = run.scope, run.scope.copy()
        try:
            execute(run, body)
            return [handle for each in kept for handle in handles_of(_settled_as(each, run.scope))]
        finally:
            run.scope = outer

    if kept and is_types_only():
        handles = [handle for each in kept for handle in each.handles]
    else:
        run.at(node)
        handles = builder.current.get().branch(
            condition.handle, lambda: evaluate(node.body), lambda: evaluate(node.orelse)
        )
    for each, value in zip(kept, rebuild_all([each.type for each in kept], handles), strict=True):
        run.scope.set(each.name, value)
    for name, why in lost.items():
        run.scope.lose(name, why)


def _condition(run: Evaluation, node: ast.If, test: tensor) -> tensor:
    try:
        return to_condition(test, "the condition of `if`")
    except KernelTypeError as error:
        run.placed(error, node.test)
        raise


def _scope_after(run: Evaluation, body: list[ast.stmt], execute: Execute) -> Scope:
    """The names after one branch, with their types but without values."""
    outer, run.scope = run.scope, run.scope.copy()
    try:
        with types_only():
            execute(run, body)
        return run.scope
    finally:
        run.scope = outer


def _join(run: Evaluation, node: ast.If, names: list[str], scopes: list[Scope]) -> tuple[list[_Joined], dict[str, str]]:
    kept: list[_Joined] = []
    lost: dict[str, str] = {}
    for name in names:
        one, other = (scope.values.get(name, ABSENT) for scope in scopes)
        if one is ABSENT or other is ABSENT:
            lost[name] = _one_branch(node)
            continue
        with types_only():
            one, other = joined(one, other)
        if type_of(one) == type_of(other):
            kept.append(_Joined(name, type_of(one), handles_of(one)))
            continue
        lost[name] = (
            f"it is {describe(one)} after one branch of the `if` at line {node.lineno}, "
            f"and {describe(other)} after the other"
        )
        if name in run.scope.values:
            raise run.placed(*_changed(run, node, name, one, other))
    return kept, lost


def _changed(run: Evaluation, node: ast.If, name: str, one: Any, other: Any) -> tuple[KernelTypeError, ast.AST]:
    """The error for a name that the branches leave with different types."""
    before = run.scope.values[name]
    error = KernelTypeError(
        f"the type of {name} depends on the branch taken: {describe(one)} if the condition at line {node.lineno} "
        f"holds, else {describe(other)}; before it was {describe(before)}",
        hint=f"convert in the branch, for instance with .to({name}.dtype), or use another name",
    )
    place = last_assignment(name, node.body) or last_assignment(name, node.orelse) or node
    return error, place


def _one_branch(node: ast.If) -> str:
    return f"it is assigned in only one branch of the `if` at line {node.lineno}"


def _settled_as(each: _Joined, scope: Scope) -> Any:
    value = scope.values[each.name]
    return value if type_of(value) == each.type else settled(value)


def branch_and_return(run: Evaluation, node: ast.If, test: tensor, finish: Callable[[list[ast.stmt]], Any]) -> Any:
    """Evaluate an `if` with a `return` in it, and the rest of the function in each branch: gives what is returned."""
    condition = _condition(run, node, test)
    types: list[base_type] = []

    def evaluate(body: list[ast.stmt]) -> list[Any]:
        outer, run.scope = run.scope, run.scope.copy()
        try:
            result = finish(body)
            value = None if result is None else settled(result.value)
            types.append(type_of(value))
            if types[-1] != types[0]:
                where = node if result is None or result.node is None else result.node
                raise run.placed(_inconsistent(types), where)
            return handles_of(value)
        finally:
            run.scope = outer

    run.at(node)
    handles = builder.current.get().branch(condition.handle, lambda: evaluate(node.body), lambda: evaluate(node.orelse))
    return None if types[0] == _NOTHING else rebuild(types[0], handles)


_NOTHING = constexpr_type(None)


def _inconsistent(types: list[base_type]) -> KernelTypeError:
    shown = ["nothing" if type_ == _NOTHING else str(type_) for type_ in (types[0], types[-1])]
    return KernelTypeError(
        f"Inconsistent return types: {shown[0]} and {shown[1]}",
        hint="every way through a function returns the same type: convert with .to(...), or return at the end as well",
    )
