"""What statements mean in a kernel, one after the other up to a `return`.

A list of statements reaches to the end of the function: what follows an `if` whose branches may return is evaluated
inside of the branches, so that the builder needs no jumps. A loop over values known at compile time, and an `if` on
such a value, are replaced in the list by what is to be done.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from weft.frontends.triton.compiler.branches import branch, branch_and_return
from weft.frontends.triton.compiler.carried import contains_return, settled
from weft.frontends.triton.compiler.evaluation import Evaluation, describe, statement
from weft.frontends.triton.compiler.expressions import binary, bind
from weft.frontends.triton.compiler.loops import for_loop, unrolled_items, while_loop
from weft.frontends.triton.errors import KernelError, KernelNameError, KernelTypeError, KernelUnsupportedError
from weft.frontends.triton.language import debugging, values
from weft.frontends.triton.language.constants import base_type, constexpr
from weft.frontends.triton.language.known import is_known, known, static_condition
from weft.frontends.triton.language.values import tensor


@dataclass(frozen=True)
class Returned:
    """A function has come to a `return`, with this value; `node` is None at the end of the text."""

    value: Any
    node: ast.stmt | None


@dataclass(frozen=True)
class _Turn:
    """One turn of an unrolled loop begins: its variable has this value."""

    loop: ast.For
    value: Any


def execute(run: Evaluation, statements: list[ast.stmt]) -> Returned | None:
    """Do what statements say; None if they come to their end."""
    rest: list[ast.stmt | _Turn] = list(statements)
    while rest:
        first = rest.pop(0)
        if isinstance(first, _Turn):
            bind(run, first.loop.target, first.value)
            continue
        try:
            if isinstance(first, ast.Return):
                return _returned(run, first)
            if isinstance(first, ast.If):
                result = _if(run, first, rest)
                if result is not None:
                    return result
            elif isinstance(first, ast.For):
                _for(run, first, rest)
            else:
                run.perform(first)
        except KernelError as error:
            run.placed(error, first)
            raise
    return None


def _returned(run: Evaluation, node: ast.Return) -> Returned:
    if run.loops:
        raise KernelUnsupportedError(
            "Cannot have `return` statements inside `while` or `for` statements in triton",
            hint="leave the loop through its condition, or put what is left to do under an `if`",
        )
    value = None if node.value is None else run.evaluate(node.value)
    if isinstance(value, constexpr) and value.value is None:
        value = None
    return Returned(value, node)


def _if(run: Evaluation, node: ast.If, rest: list[ast.stmt | _Turn]) -> Returned | None:
    test = run.evaluate(node.test)
    if not isinstance(test, tensor):
        rest[:0] = node.body if _known_condition(run, node, test) else node.orelse
        return None
    returning = contains_return([*node.body, *node.orelse])
    if returning is None:
        branch(run, node, test, execute)
        return None
    if run.loops:
        error = KernelUnsupportedError(
            "Cannot have `return` statements inside `while` or `for` statements in triton",
            hint="leave the loop through its condition, or put what is left to do under an `if`",
        )
        raise run.placed(error, returning)
    after: list[Any] = list(rest)
    value = branch_and_return(run, node, test, lambda body: execute(run, [*body, *after]))
    return Returned(value, None)


def _known_condition(run: Evaluation, node: ast.If, test: Any) -> bool:
    if not is_known(test) and not isinstance(test, values.tuple):
        error = KernelTypeError(f"{describe(test)} is neither true nor false", hint="compare it with something")
        raise run.placed(error, node.test)
    return static_condition(test)


def _for(run: Evaluation, node: ast.For, rest: list[ast.stmt | _Turn]) -> None:
    if node.orelse:
        raise KernelUnsupportedError("`else` after a loop is not supported", hint="put it after the loop")
    items = unrolled_items(run, node)
    if items is None:
        for_loop(run, node, execute)
        return
    turns: list[ast.stmt | _Turn] = []
    for item in items:
        turns += [_Turn(node, known(item)), *node.body]
    rest[:0] = turns


@statement(ast.While)
def while_statement(run: Evaluation, node: ast.While) -> None:
    while_loop(run, node, execute)


@statement(ast.Pass)
def nothing(run: Evaluation, node: ast.Pass) -> None:
    pass


@statement(ast.Expr)
def expression_statement(run: Evaluation, node: ast.Expr) -> None:
    if not isinstance(node.value, ast.Constant):  # a text that stands alone is a comment
        vars(node.value)["is_statement"] = True
        run.evaluate(node.value)


@statement(ast.Assign)
def assignment(run: Evaluation, node: ast.Assign) -> None:
    value = _to_hold(run, node.value)
    for target in node.targets:
        bind(run, target, value)


def _to_hold(run: Evaluation, node: ast.expr) -> Any:
    value = run.evaluate(node)
    run.at(node)
    return settled(value)


@statement(ast.AnnAssign)
def annotated_assignment(run: Evaluation, node: ast.AnnAssign) -> None:
    if node.value is None:
        raise KernelUnsupportedError("an annotation without a value means nothing here", hint="assign a value")
    if not is_constexpr_annotation(node.annotation):
        bind(run, node.target, _to_hold(run, node.value))
        return
    if not isinstance(node.target, ast.Name):
        raise KernelUnsupportedError("only a name can be a constexpr")
    value = run.evaluate(node.value)
    if node.target.id in run.scope.values:
        raise KernelNameError(
            f"{node.target.id} is already defined: a constexpr cannot be reassigned", hint="use another name"
        )
    if not is_known(value):  # as in Triton, the annotation then says nothing
        run.at(node)
        bind(run, node.target, settled(value))
        return
    declared = value if isinstance(value, values.tuple | base_type) else constexpr(value)
    run.scope.declare(node.target.id, declared)  # pyright: ignore[reportArgumentType]


def is_constexpr_annotation(node: ast.expr) -> bool:
    """Does an annotation say that a name is known at compile time?"""
    text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    return isinstance(text, str) and text.split(".")[-1] == "constexpr"


@statement(ast.AugAssign)
def augmented_assignment(run: Evaluation, node: ast.AugAssign) -> None:
    """`x += y`: Python's `x = x + y`."""
    if not isinstance(node.target, ast.Name):
        bind(run, node.target, None)
    target = ast.copy_location(ast.Name(ast.unparse(node.target), ast.Load()), node.target)
    left = run.evaluate(target)
    right = run.evaluate(node.value)
    try:
        value = binary(run, node, node.op, left, right)
    except KernelError as error:
        run.placed(error, node)
        raise
    bind(run, node.target, settled(value))


@statement(ast.Assert)
def assertion(run: Evaluation, node: ast.Assert) -> None:
    test = run.evaluate(node.test)
    message = constexpr("") if node.msg is None else run.evaluate(node.msg)
    run.at(node)
    debugging.device_assert(test, message)
