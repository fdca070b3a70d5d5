"""`@constexpr_function`: a Python function that kernels call while they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.frontends.triton.builders import builder
from weft.frontends.triton.language.constants import base_value, constexpr, unwrap
from weft.frontends.triton.runtime import jit
from weft.frontends.triton.runtime.jit import JITCallable, python_frames


class ConstexprFunction(JITCallable):
    """A function that kernels call while they are compiled: on known values, with a known value as the result."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else BoundConstexprFunction(instance, self)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if jit.is_traced():
            return self.fn(*args, **keywords)
        if not keywords and builder.current.get(None) is None:
            return self.fn(*[value if type(value) is int else unwrap(value) for value in args])
        keywords.pop("_semantic", None)
        given = {name: unwrap(value) for name, value in keywords.items()}
        result = self.fn(*map(unwrap, args), **given)
        inside = builder.current.get(None) is not None and not python_frames.get()
        return constexpr(result) if inside and not isinstance(result, base_value) else result


class BoundConstexprFunction(JITCallable):
    """A constexpr function that is a method, of an object."""

    def __init__(self, instance: Any, function: ConstexprFunction) -> None:
        super().__init__(function.fn)
        self.__self__, self.__func__ = instance, function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.__func__(self.__self__, *args, **keywords)


def constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    """Let kernels call a Python function while they are compiled."""
    return ConstexprFunction(fn)
