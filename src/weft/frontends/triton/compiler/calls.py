"""Calls in a kernel: functions of the language, other functions of the author, and what of Python runs meanwhile."""

from __future__ import annotations

import ast
import pdb
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

from weft.frontends.triton.builders.types_only import is_types_only
from weft.frontends.triton.compiler.constexpr_function import BoundConstexprFunction, ConstexprFunction
from weft.frontends.triton.compiler.scopes import is_named_tuple
from weft.frontends.triton.errors import KernelTypeError, KernelUnsupportedError
from weft.frontends.triton.language import arithmetic, debugging, elementary, shapes, types, values
from weft.frontends.triton.language.constants import base_type, base_value, constexpr, unwrap
from weft.frontends.triton.language.known import is_known, known
from weft.frontends.triton.language.values import tensor
from weft.frontends.triton.runtime.jit import JITFunction, KernelInterface

if TYPE_CHECKING:
    from weft.frontends.triton.compiler.evaluation import Evaluation


@dataclass(frozen=True)
class BoundMethod:
    """A kernel function that is a method, of a value."""

    owner: base_value
    function: JITFunction

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.function(self.owner, *args, **keywords)


def _length(value: Any) -> int:
    if isinstance(value, tensor):
        raise KernelTypeError(f"a tensor has no length: {value.type}", hint="use x.shape[0], or x.numel")
    return len(value)


def _to_python(kind: type) -> Callable[..., Any]:
    def convert(*args: Any) -> Any:
        if args and isinstance(args[0], tensor):
            name = {int: "tl.int32", float: "tl.float32", bool: "tl.int1"}[kind]
            raise KernelTypeError(
                f"{kind.__name__}() takes what is known at compile time, not {args[0].type}",
                hint=f"convert a tensor with x.to({name})",
            )
        return kind(*args)

    convert.__name__ = kind.__name__
    return convert


def _absolute(value: Any) -> Any:
    return elementary.abs(value) if isinstance(value, tensor) else abs(value)


def _nothing(*_: Any, **__: Any) -> None:
    """`breakpoint()` in a kernel that is compiled; one that is interpreted stops there."""


PYTHON: Mapping[str, Any] = {
    "len": _length,
    "list": list,
    "tuple": tuple,
    "range": range,
    "float": _to_python(float),
    "int": _to_python(int),
    "bool": _to_python(bool),
    "str": str,
    "isinstance": isinstance,
    "getattr": getattr,
    "hasattr": hasattr,
    "type": type,
    "zip": zip,
    "enumerate": enumerate,
    "abs": _absolute,
    "min": arithmetic.builtin_min,
    "max": arithmetic.builtin_max,
    "print": debugging.device_print,
    "breakpoint": _nothing,
}
"""Python's own functions that mean something in a kernel; they get the bare values of what is known."""

_PYTHON_FUNCTIONS = {id(function) for function in PYTHON.values()}


def call(run: Evaluation, node: ast.expr, function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    """Call what the text calls."""
    if isinstance(function, BoundMethod):
        args, function = [function.owner, *args], function.function
    if isinstance(function, MethodType) and isinstance(function.__func__, JITFunction):
        args, function = [function.__self__, *args], function.__func__
    while isinstance(function, KernelInterface) and not isinstance(function, JITFunction):
        function = getattr(function, "fn", None)  # an autotuned kernel stands for the function inside of it
    if function in (pdb.set_trace, breakpoint):
        return constexpr(None)
    if isinstance(function, JITFunction):
        from weft.frontends.triton.compiler.compile_function import build_function

        _check_result_used(run, node, function)
        return build_function(function, args, keywords)
    run.at(node)
    if isinstance(function, ConstexprFunction | BoundConstexprFunction):
        return _at_compile_time(function, args, keywords)
    if function is debugging.static_print and is_types_only():
        return constexpr(None)  # it will print when the same text is evaluated for good
    if _is_of_language(function):
        _check_result_used(run, node, function)
        return known(function(*args, **keywords))
    if id(function) in _PYTHON_FUNCTIONS:
        return known(function(*map(unwrap, args), **keywords))
    if is_named_tuple(function):
        return _named_tuple(function, args, keywords)
    if not callable(function):
        raise KernelTypeError(f"{function!r} is not a function")
    return _at_compile_time(function, args, keywords)


def _at_compile_time(function: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    """A function of Python, which runs now: it can take only what is known now."""
    name = getattr(function, "__qualname__", repr(function))
    for value in [*args, *keywords.values()]:
        if not is_known(value) and not isinstance(function, ConstexprFunction | BoundConstexprFunction):
            raise KernelTypeError(
                f"{name} is a Python function, which runs at compile time: it cannot take {value.type}",
                hint=f"use a function of tl, or decorate {name} with @triton.jit",
            )
    result = function(*map(_plain, args), **{key: _plain(value) for key, value in keywords.items()})
    return result if isinstance(result, base_value) else known(result)


def _plain(value: Any) -> Any:
    """A value as Python's functions know it."""
    return tuple(map(_plain, value.values)) if isinstance(value, values.tuple) and is_known(value) else unwrap(value)


def _is_of_language(function: Any) -> bool:
    if isinstance(getattr(function, "__self__", None), base_value | base_type):
        return True
    if isinstance(function, type) and issubclass(function, base_value | base_type):
        return True
    attributes = cast(Any, function)
    module = getattr(attributes, "__module__", None) or ""
    return module.split(".")[0] in ("weft", "triton") or bool(getattr(attributes, "__triton_builtin__", False))


def _named_tuple(kind: Any, args: list[Any], keywords: dict[str, Any]) -> Any:
    made: Any = kind(*args, **keywords)
    items = [known(item) for item in made]
    return values.tuple(items, values.type_of_items(items, kind._fields))


def _check_result_used(run: Evaluation, node: ast.expr, function: Any) -> None:
    wanted = getattr(function, "_must_use_result", False)
    if wanted and getattr(node, "is_statement", False):
        extra = f" {wanted}" if isinstance(wanted, str) else ""
        raise KernelUnsupportedError(f"The result of {ast.unparse(node.func)} is not being used.{extra}")  # type: ignore


def to_condition(value: tensor, what: str) -> tensor:
    """A tensor as the condition of a branch or a loop: one boolean."""
    if value.sides and value.numel.value != 1:
        raise KernelTypeError(
            f"{what} is a tile, {value.type}: Boolean value of Tensor with more than one value is ambiguous",
            hint="choose by element with tl.where, or reduce it to one value: tl.max(condition, axis=0)",
        )
    if value.sides:
        value = shapes.item(value)
    return value if value.dtype == types.int1 else value.to(types.int1)
