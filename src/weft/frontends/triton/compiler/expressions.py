"""What expressions mean in a kernel: Python's meaning, over tensors, tuples and values known at compile time.

A number in the text is a `constexpr`, and what is computed from such alone is one again; with a tensor among the
operands, the operator of the tensor decides.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.compiler.calls import PYTHON, BoundMethod, call, to_condition
from weft.frontends.triton.compiler.carried import handles_of, rebuild, settled
from weft.frontends.triton.compiler.evaluation import Evaluation, describe, expression, unsupported
from weft.frontends.triton.compiler.scopes import look_up
from weft.frontends.triton.errors import (
    CompileTimeAssertionFailure,
    KernelError,
    KernelTypeError,
    KernelUnsupportedError,
    KernelValueError,
)
from weft.frontends.triton.language import values
from weft.frontends.triton.language.constants import base_value, constexpr, unwrap
from weft.frontends.triton.language.known import is_known, known, static_condition
from weft.frontends.triton.language.values import tensor
from weft.frontends.triton.runtime.jit import JITFunction

_python: Any = operator  # whose annotations leave types open

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: _python.add,
    ast.Sub: _python.sub,
    ast.Mult: _python.mul,
    ast.Div: _python.truediv,
    ast.FloorDiv: _python.floordiv,
    ast.Mod: _python.mod,
    ast.Pow: _python.pow,
    ast.LShift: _python.lshift,
    ast.RShift: _python.rshift,
    ast.BitAnd: _python.and_,
    ast.BitOr: _python.or_,
    ast.BitXor: _python.xor,
}

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

_STATIC_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


@expression(ast.Constant)
def constant(run: Evaluation, node: ast.Constant) -> Any:
    return constexpr(node.value)


@expression(ast.Name)
def name(run: Evaluation, node: ast.Name) -> Any:
    return look_up(node.id, run.scope, run.around, PYTHON)


def binary(run: Evaluation, node: ast.expr | ast.stmt, kind: ast.operator, left: Any, right: Any) -> Any:
    """`left <operator> right`."""
    function = _BINARY.get(type(kind))
    if function is None:
        raise unsupported(kind)
    run.at(node)
    if isinstance(left, tensor) or isinstance(right, tensor):
        return function(unwrap(left), unwrap(right))
    return known(function(_bare(left), _bare(right)))


def _bare(value: Any) -> Any:
    """A value as Python knows it; a tuple stays one of the language, since it may hold tensors."""
    return value if isinstance(value, values.tuple) else unwrap(value)


@expression(ast.BinOp)
def binary_operator(run: Evaluation, node: ast.BinOp) -> Any:
    return binary(run, node, node.op, run.evaluate(node.left), run.evaluate(node.right))


@expression(ast.UnaryOp)
def unary_operator(run: Evaluation, node: ast.UnaryOp) -> Any:
    operand = run.evaluate(node.operand)
    run.at(node)
    if isinstance(node.op, ast.Not):
        if isinstance(operand, tensor):
            return operand.__not__()
        return constexpr(not static_condition(operand))
    if isinstance(node.op, ast.UAdd):
        return operand if isinstance(operand, tensor) else known(+unwrap(operand))
    function = operator.neg if isinstance(node.op, ast.USub) else operator.invert
    return function(operand) if isinstance(operand, tensor) else known(function(unwrap(operand)))


@expression(ast.Compare)
def comparison(run: Evaluation, node: ast.Compare) -> Any:
    """`a < b`; of a chain `a < b < c` all parts must hold."""
    left = run.evaluate(node.left)
    result: Any = None
    for kind, right_node in zip(node.ops, node.comparators, strict=True):
        right = run.evaluate(right_node)
        run.at(node)
        part = _compare(kind, left, right)
        result = part if result is None else _both(result, part)
        if not isinstance(result, tensor) and not result:
            return result
        left = right
    return result


def _compare(kind: ast.cmpop, left: Any, right: Any) -> Any:
    if type(kind) in _STATIC_COMPARISONS:
        if isinstance(kind, ast.In | ast.NotIn) and (isinstance(left, tensor) or not is_known(right)):
            raise KernelUnsupportedError(
                f"`in` is for values known at compile time, not for {describe(left)} and {describe(right)}",
                hint="compare with each item, and join the results with |",
            )
        items = [unwrap(item) for item in right] if isinstance(right, values.tuple) else unwrap(right)
        return constexpr(_STATIC_COMPARISONS[type(kind)](unwrap(left), items))
    function = _COMPARISONS[type(kind)]
    if isinstance(left, tensor) or isinstance(right, tensor):
        return function(unwrap(left), unwrap(right))
    return known(function(_bare(left), _bare(right)))


def _both(left: Any, right: Any) -> Any:
    if not isinstance(left, tensor):
        return right  # the left part is known to hold
    return left.logical_and(right) if isinstance(right, tensor) or not right else left


@expression(ast.BoolOp)
def boolean_operator(run: Evaluation, node: ast.BoolOp) -> Any:
    """`and`, `or`: what is known decides at once, as in Python; tensors are joined by element, all of them."""
    conjunction = isinstance(node.op, ast.And)
    tensors: list[tensor] = []
    value: Any = None
    for each in node.values:
        value = run.evaluate(each)
        if isinstance(value, tensor):
            tensors.append(value)
        elif bool(static_condition(value)) is not conjunction:
            return value
    if not tensors:
        return value
    run.at(node)
    result = tensors[0]
    for value in tensors[1:]:
        result = result.logical_and(value) if conjunction else result.logical_or(value)
    return result


@expression(ast.IfExp)
def conditional(run: Evaluation, node: ast.IfExp) -> Any:
    """`a if condition else b`: with a condition known at compile time the other one is not looked at."""
    test = run.evaluate(node.test)
    if not isinstance(test, tensor):
        return run.evaluate(node.body if static_condition(test) else node.orelse)
    condition = to_condition(test, "the condition of `a if condition else b`")
    types: list[Any] = []

    def one(chosen: ast.expr) -> list[Any]:
        value = settled(run.evaluate(chosen))
        types.append(value.type if isinstance(value, base_value) else value)
        if types[-1] != types[0]:
            error = KernelTypeError(
                f"the two values of a conditional expression have different types: {types[0]} and {types[-1]}",
                hint=f"convert one of them: (...).to({getattr(types[0], 'scalar', types[0])!r})",
            )
            raise run.placed(error, chosen)
        return handles_of(value)

    run.at(node)
    handles = builder.current.get().branch(condition.handle, lambda: one(node.body), lambda: one(node.orelse))
    return rebuild(types[0], handles)


@expression(ast.Tuple, ast.List)
def tuple_of(run: Evaluation, node: ast.Tuple | ast.List) -> Any:
    return values.tuple(evaluate_items(run, node.elts))


def evaluate_items(run: Evaluation, nodes: list[ast.expr]) -> list[Any]:
    """Items of a tuple or arguments of a call, `*items` among them."""
    items: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            several = run.evaluate(node.value)
            if not isinstance(several, values.tuple) and not isinstance(unwrap(several), tuple | list):
                raise KernelTypeError(f"`*` unpacks a tuple, not {describe(several)}")
            items.extend(known(item) for item in several)
        else:
            items.append(run.evaluate(node))
    return items


@expression(ast.ListComp)
def comprehension(run: Evaluation, node: ast.ListComp) -> Any:
    """`[f(x) for x in items if known]` over a tuple: a tuple."""
    if len(node.generators) != 1:
        raise KernelUnsupportedError("nested comprehensions are not supported", hint="write one inside of the other")
    (generator,) = node.generators
    items = run.evaluate(generator.iter)
    if isinstance(items, tensor) or not hasattr(unwrap(items), "__iter__"):
        raise KernelTypeError(
            f"only a tuple can be gone through here, not {describe(items)}", hint="tensors need no loop over elements"
        )
    outer, run.scope = run.scope, run.scope.copy()
    try:
        results: list[Any] = []
        for item in unwrap(items):
            bind(run, generator.target, known(item))
            if all(static_condition(run.evaluate(test)) for test in generator.ifs):
                results.append(run.evaluate(node.elt))
        return values.tuple(results)
    finally:
        run.scope = outer


def bind(run: Evaluation, target: ast.expr, value: Any) -> None:
    """Give a value to a name, or the items of a tuple to several."""
    if isinstance(target, ast.Name):
        run.scope.set(target.id, value)
    elif isinstance(target, ast.Tuple | ast.List):
        items = list(unwrap(value)) if _unpacks(value) else None
        if items is None:
            raise run.placed(KernelTypeError(f"{describe(value)} cannot be unpacked into several names"), target)
        stars = [i for i, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
        if stars:
            raise run.placed(unsupported(target.elts[stars[0]]), target.elts[stars[0]])
        if len(items) != len(target.elts):
            error = KernelValueError(f"{len(items)} values cannot be given to {len(target.elts)} names")
            raise run.placed(error, target)
        for each, item in zip(target.elts, items, strict=True):
            bind(run, each, known(item))
    else:
        what = "an attribute" if isinstance(target, ast.Attribute) else "an item"
        error = KernelUnsupportedError(
            f"{what} cannot be assigned to in a kernel: values do not change",
            hint="make a new value: tl.where for elements, tl.store for memory, a new tuple for an item",
        )
        raise run.placed(error, target)


def _unpacks(value: Any) -> bool:
    return isinstance(value, values.tuple) or isinstance(unwrap(value), tuple | list)


@expression(ast.NamedExpr)
def walrus(run: Evaluation, node: ast.NamedExpr) -> Any:
    value = settled(run.evaluate(node.value))
    bind(run, node.target, value)
    return value


@expression(ast.Slice)
def slice_of(run: Evaluation, node: ast.Slice) -> Any:
    bounds = (None if part is None else unwrap(run.evaluate(part)) for part in (node.lower, node.upper, node.step))
    return slice(*bounds)


@expression(ast.Subscript)
def subscript(run: Evaluation, node: ast.Subscript) -> Any:
    value = run.evaluate(node.value)
    index = run.evaluate(node.slice)
    run.at(node)
    if isinstance(value, tensor):
        return cast(Any, value)[tuple(map(unwrap, index)) if isinstance(index, values.tuple) else unwrap(index)]
    if isinstance(value, base_value) and not isinstance(value, constexpr | values.tuple):
        return call(run, node, _member(value, "__getitem__"), [index], {})
    return known(value[index if isinstance(value, values.tuple) else unwrap(index)])


@expression(ast.Attribute)
def attribute(run: Evaluation, node: ast.Attribute) -> Any:
    value = run.evaluate(node.value)
    if isinstance(value, constexpr) and node.attr not in ("value", "type"):
        value = value.value
    run.at(node)
    try:
        return known(_member(value, node.attr))
    except AttributeError as error:
        if node.attr == "value" and is_known(value):  # functions that Triton hands a constexpr take it out again
            return known(value)
        shown = describe(value) if isinstance(value, base_value) else getattr(value, "__name__", describe(value))
        raise KernelTypeError(f"{shown} has no attribute {node.attr!r}", hint=_close(value, node.attr)) from error


def _member(value: Any, name: str) -> Any:
    member = getattr(value, name)
    bound = isinstance(value, base_value) and isinstance(member, JITFunction)
    return BoundMethod(value, member) if bound else member


def _close(value: Any, wanted: str) -> str:
    import difflib

    close = difflib.get_close_matches(wanted, [each for each in dir(value) if not each.startswith("_")], n=3)
    return f"there is {', '.join(close)}" if close else f"see dir({getattr(value, '__name__', type(value).__name__)})"


@expression(ast.JoinedStr)
def formatted(run: Evaluation, node: ast.JoinedStr) -> Any:
    """An f-string of values known at compile time."""
    return constexpr("".join(_formatted_part(run, part) for part in node.values))


def _formatted_part(run: Evaluation, part: ast.expr) -> str:
    if not isinstance(part, ast.FormattedValue):
        return str(unwrap(run.evaluate(part)))
    value = run.evaluate(part.value)
    if not is_known(value):
        error = KernelTypeError(
            f"an f-string shows what is known at compile time, not {describe(value)}",
            hint="print values with tl.device_print('name', value)",
        )
        raise run.placed(error, part.value)
    value = unwrap(value)
    if part.conversion >= 0:
        value = {"s": str, "r": repr, "a": ascii}[chr(part.conversion)](value)
    spec = "" if part.format_spec is None else unwrap(run.evaluate(part.format_spec))
    return format(value, spec)


@expression(ast.Call)
def call_of(run: Evaluation, node: ast.Call) -> Any:
    function = unwrap(run.evaluate(node.func))
    args = evaluate_items(run, node.args)
    keywords: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise KernelUnsupportedError("`**` is not supported in a call", hint="write the arguments out")
        keywords[keyword.arg] = run.evaluate(keyword.value)
    try:
        return call(run, node, function, args, keywords)
    except KernelError as error:
        if not error.frames and not isinstance(error, CompileTimeAssertionFailure):
            # Triton's users find in the cause what the function of the language said, without the place.
            error.__cause__ = type(error)(error.message)
        raise
    except TypeError as error:
        # A wrong number of arguments: Python's words name the function as the language has it.
        raise KernelTypeError(str(error), hint=f"look at help({ast.unparse(node.func)})") from error
