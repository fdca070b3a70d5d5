"""Tells of functions that are traced again and again, and why: one warning for each function and cause."""

from __future__ import annotations

from typing import Any

from weft.diagnostics import warn

_MANY = 8
"""Traces of a function after which it is told why there are so many."""
_TRACES: dict[tuple[str, str], list[tuple[int, tuple[Any, ...]]]] = {}
"""The last traces, by the line of a function and the transformation: whose they were, and of which types."""


def tell_of_retracing(transformed: Any, key: tuple[Any, ...]) -> None:
    """Note that a transformed function is traced for arguments of some types; warn where that is often."""
    place = _place(transformed)
    if place is None:
        return
    traces = _TRACES.setdefault((place, type(transformed).__name__), [])
    traces.append((id(transformed), key))
    if len(traces) < _MANY:
        return
    cause, advice = _cause(traces)
    traces.clear()
    what = f"{type(transformed).__name__.lower()} of the function at {place} was traced {_MANY} times"
    warn("tracing", what, cause, advice, cause=f"{place} {cause}")


def _cause(traces: list[tuple[int, tuple[Any, ...]]]) -> tuple[str, str]:
    keys = [key for _, key in traces]
    if len({owner for owner, _ in traces}) == len(traces) and len(set(keys)) < len(keys) / 2:
        return (
            "for a new function each time, or one that reads other values",
            "define it outside of the loop, and give it what changes as arguments",
        )
    if len({len(key) for key in keys}) == 1:
        parts = [set(each) for each in zip(*keys, strict=True)]
        if any(len(each) > 1 and not _is_tensor(next(iter(each))) for each in parts):
            return "for new numbers of Python", "give numbers that change as tensors: torch.tensor(n)"
        return "for tensors of new sizes or types", "pad to a few sizes; each is compiled by itself"
    return "for trees of new structures", "each is compiled by itself"


def _is_tensor(entry: Any) -> bool:
    return isinstance(entry, tuple) and len(entry) == 3 and not isinstance(entry[0], type)  # pyright: ignore[reportUnknownArgumentType]


def _place(transformed: Any) -> str | None:
    """The line of the innermost function."""
    while (inner := getattr(transformed, "inner", None)) is not None:
        transformed = inner
    function = getattr(transformed, "function", None)
    code = getattr(getattr(function, "forward", function), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
