"""`tl.map_elementwise`: an author's function of single elements over tiles; and the marks of authors' builtins."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

from weft.frontends.triton.builders import builder
from weft.frontends.triton.builders.builder import Handle
from weft.frontends.triton.errors import KernelShapeError, KernelTypeError
from weft.frontends.triton.language import types
from weft.frontends.triton.language.arithmetic import where
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.language.promotion import (
    broadcast_all,
    constant,
    row_major,
    spread,
    to_tensor,
    typed,
    viewed,
)
from weft.frontends.triton.language.shapes import arange, gather, item, ravel, reshape
from weft.frontends.triton.language.values import tensor, tuple

_F = TypeVar("_F", bound=Callable[..., Any])


def map_elementwise(scalar_fn: Any, *args: Any, pack: Any = 1) -> Any:
    """A function of single elements, of every element of tiles; with `pack`, of so many neighbours at once.

    A function without branches means the same on tiles, and is called once; another one is called in a loop.
    """
    function, width = unwrap(scalar_fn), unwrap(pack)
    inputs = broadcast_all(*(to_tensor(arg) for arg in args))
    if not inputs:
        raise KernelTypeError("map_elementwise must have at least 1 input tensor")
    sides, count = inputs[0].sides, _count(inputs[0])
    if count % width:
        raise KernelShapeError(f"{count} elements cannot be taken {width} at a time")
    # Neighbours of one group become operands of their own.
    rows = [
        viewed(ravel(value) if value.sides else reshape(value, [1]), [count // width], lane, [width])
        for value in inputs
        for lane in builtins.range(width)
    ]
    if _branches(function):
        results = _one_by_one(function, rows)
    else:
        results = [spread(to_tensor(result), rows[0].sides) for result in _several(function(*rows))]
    groups = [results[i : i + width] for i in builtins.range(0, len(results), width)]
    outputs = [_woven(group, sides) for group in groups]
    return outputs[0] if len(outputs) == 1 else builtins.tuple(outputs)


def _count(value: tensor) -> int:
    count = 1
    for side in value.sides:
        count *= side
    return count


def _several(results: Any) -> list[Any]:
    if isinstance(results, (builtins.tuple, list, tuple)):
        return list(cast("Sequence[Any]", results))
    return [results]


def _woven(group: Sequence[tensor], sides: Sequence[int]) -> tensor:
    """Tiles of every n-th element as one tile."""
    width, length = len(group), group[0].sides[0]
    wide = [viewed(value, [length, width], 0, [1, 0]) for value in group]
    lane = viewed(arange(0, width), [length, width], 0, [0, 1])
    result = wide[0]
    for number in builtins.range(1, width):
        result = where(lane == number, wide[number], result)
    return viewed(result, sides, 0, row_major(sides)) if sides else item(result)


def _one_by_one(function: Callable[..., Any], rows: Sequence[tensor]) -> list[tensor]:
    primitives = builder.current.get()
    length = rows[0].sides[0]
    places = arange(0, length)

    def elements(place: tensor) -> list[tensor]:
        return [item(gather(row, spread(place, [1]), 0)) for row in rows]

    first = [to_tensor(result) for result in _several(function(*elements(constant(0, types.int32))))]
    started = [spread(result, [length]) for result in first]

    def turn(number: Handle, carried: list[Handle]) -> list[Handle]:
        place = typed(number, types.int32, ())
        results = [to_tensor(result) for result in _several(function(*elements(place)))]
        tiles = [typed(handle, tile.dtype, [length]) for handle, tile in zip(carried, started, strict=True)]
        return [where(places == place, new, tile).handle for new, tile in zip(results, tiles, strict=True)]

    bounds = [constant(bound, types.int32).handle for bound in (1, length, 1)]
    handles = primitives.for_loop(
        bounds[0], bounds[1], bounds[2], types.int32.stored, [tile.handle for tile in started], turn
    )
    return [typed(handle, tile.dtype, [length]) for handle, tile in zip(handles, started, strict=True)]


def _branches(function: Any) -> bool:
    """May a function do one thing for one element and another for the next? What it calls counts as well."""
    source = textwrap.dedent(inspect.getsource(getattr(function, "fn", function)))
    decides = (ast.If, ast.IfExp, ast.While, ast.For, ast.BoolOp, ast.Call)
    return any(isinstance(node, decides) for node in _body(ast.parse(source)))


def _body(tree: ast.AST) -> list[ast.AST]:
    """The nodes of a function but for its decorators."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            parts = node.body if isinstance(node.body, list) else [node.body]
            nodes += [inner for part in parts for inner in ast.walk(part)]
    return nodes


def builtin(fn: _F) -> _F:
    """Mark a function as one of the language: in a kernel it is called as it is."""

    @wraps(fn)
    def call(*args: Any, **keywords: Any) -> Any:
        return fn(*args, **keywords)

    call.__triton_builtin__ = True  # pyright: ignore[reportAttributeAccessIssue]
    return call  # pyright: ignore[reportReturnType]


def is_builtin(fn: Any) -> bool:
    """Was a function marked as one of the language?"""
    return getattr(fn, "__triton_builtin__", False)


def must_use_result(x: Any, s: Any = True) -> Any:
    """Mark a function whose result must be used: without it, a call does nothing."""
    if isinstance(x, str):
        return partial(must_use_result, s=x)
    x._must_use_result = s
    return x
