"""Values across the edge of a block: what a loop carries from iteration to iteration, what a branch gives, what is
returned.

Such a value goes through the builder as handles, and is put together again by its type.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.language import values
from weft.frontends.triton.language.constants import base_type, base_value, constexpr, constexpr_type, unwrap
from weft.frontends.triton.language.promotion import to_tensor


def settled(value: Any) -> Any:
    """A value as a name holds it: numbers become tensors, in tuples too; all else stays what it is."""
    if isinstance(value, values.tuple):
        items = [settled(item) for item in value.values]
        return values.tuple(items, values.type_of_items(items, value.type.fields))
    number = unwrap(value)
    if isinstance(number, bool | int | float):
        return to_tensor(number)
    return value


def handles_of(value: Any) -> list[Handle]:
    """The handles a value consists of; what is known at compile time has none."""
    handles: list[Handle] = []
    if isinstance(value, base_value):
        value.flatten(handles)
    return handles


def type_of(value: Any) -> base_type:
    """The type of a value; what is known at compile time is its own type."""
    return value.type if isinstance(value, base_value) else constexpr_type(value)


def rebuild(type_: base_type, handles: Sequence[Handle]) -> Any:
    """A value of a type from its handles."""
    return type_.unflatten(list(handles), 0)[0]


def rebuild_all(types: Iterable[base_type], handles: Sequence[Handle]) -> list[Any]:
    """Several values from the handles of all of them."""
    cursor = 0
    rebuilt: list[Any] = []
    for type_ in types:
        value, cursor = type_.unflatten(list(handles), cursor)
        rebuilt.append(value)
    return rebuilt


def joined(one: Any, other: Any) -> tuple[Any, Any]:
    """The same name from two branches: a number that both know stays known, else it becomes a tensor in both."""
    same = isinstance(one, constexpr) and isinstance(other, constexpr) and type_of(one) == type_of(other)
    return (one, other) if same else (settled(one), settled(other))


def assigned(statements: Iterable[ast.stmt]) -> list[str]:
    """The names that statements assign, in order; those of a comprehension are its own."""
    names: dict[str, None] = {}
    waiting: list[ast.AST] = [*reversed([*statements])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[node.id] = None
        if not isinstance(node, ast.ListComp | ast.FunctionDef | ast.Lambda):
            waiting += [*ast.iter_child_nodes(node)][::-1]
    return list(names)


def last_assignment(name: str, statements: Iterable[ast.stmt]) -> ast.stmt | None:
    """The last statement that assigns a name: where its type was changed."""
    found: ast.stmt | None = None
    for statement in statements:
        for node in ast.walk(statement):
            simple = isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and name in assigned([node])
            counted = isinstance(node, ast.For) and isinstance(node.target, ast.Name) and node.target.id == name
            if isinstance(node, ast.stmt) and (simple or counted):
                found = node
    return found


def contains_return(statements: Iterable[ast.stmt]) -> ast.Return | None:
    """A `return` among statements, or in those inside of them."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Return):
                return node
    return None
