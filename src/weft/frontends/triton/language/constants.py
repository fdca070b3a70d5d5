"""Values known at compile time: `constexpr`, and the bases of all types and values of the language."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, cast

from weft.frontends.triton.builders.builder import Handle


class base_type:
    """A type of the language. What is made of several handles says here how it is put together again."""

    name: str

    def unflatten(self, handles: list[Handle], cursor: int) -> tuple[base_value, int]:
        """A value of this type from the handles at `cursor`, and where the next one begins."""
        raise NotImplementedError(f"{type(self).__name__}.unflatten")

    def mangle(self) -> str:
        """The type in a name that has no blanks."""
        return str(self)


class base_value:
    """A value of the language: it has a type and consists of any number of handles."""

    type: Any

    def flatten(self, handles: list[Handle]) -> None:
        """Append the handles this value consists of."""
        raise NotImplementedError(f"{type(self).__name__}.flatten")


class constexpr_type(base_type):
    """The type of one value known at compile time."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, constexpr_type) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"constexpr_type[{self.value}]"

    def unflatten(self, handles: list[Handle], cursor: int) -> tuple[base_value, int]:
        return constexpr(self.value), cursor


def unwrap(value: Any) -> Any:
    """The Python value inside of a constexpr; lists and tuples of them, too. Anything else stays what it is."""
    if isinstance(value, constexpr):
        return value.value
    if isinstance(value, list):
        return [unwrap(item) for item in cast("list[Any]", value)]
    if type(value) is tuple:
        return tuple(unwrap(item) for item in cast("tuple[Any, ...]", value))
    return value


_Operator = Callable[[Any, Any], "constexpr"]


def _binary(name: str) -> _Operator:
    function: Callable[[Any, Any], Any] = getattr(operator, name)

    def apply(self: constexpr, other: Any) -> Any:
        # A tensor on the right decides for itself what happens.
        if hasattr(other, "handle"):
            return NotImplemented
        return constexpr(function(self.value, unwrap(other)))

    return apply


def _reflected(name: str) -> _Operator:
    function: Callable[[Any, Any], Any] = getattr(operator, name)
    return lambda self, other: constexpr(function(unwrap(other), self.value))


class constexpr(base_value):
    """A value known at compile time. Operators on such values give such values."""

    value: Any

    def __init__(self, value: Any) -> None:
        while isinstance(value, constexpr):
            value = value.value
        self.value = value

    @property
    def type(self) -> constexpr_type:  # pyright: ignore[reportIncompatibleVariableOverride]
        return constexpr_type(self.value)

    def flatten(self, handles: list[Handle]) -> None:
        return

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"

    def __hash__(self) -> int:
        return hash((self.value, "constexpr"))

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.value(*args, **keywords)

    def __getitem__(self, index: Any) -> Any:
        return self.value[unwrap(index)]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("value", "handle"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("truediv"), _reflected("truediv")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("mod"), _reflected("mod")
    __pow__, __rpow__ = _binary("pow"), _reflected("pow")
    __and__, __rand__ = _binary("and_"), _reflected("and_")
    __or__, __ror__ = _binary("or_"), _reflected("or_")
    __xor__, __rxor__ = _binary("xor"), _reflected("xor")
    __lshift__, __rlshift__ = _binary("lshift"), _reflected("lshift")
    __rshift__, __rrshift__ = _binary("rshift"), _reflected("rshift")
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __eq__ = cast(Any, _binary("eq"))
    __ne__ = cast(Any, _binary("ne"))

    def __neg__(self) -> constexpr:
        return constexpr(-self.value)

    def __pos__(self) -> constexpr:
        return constexpr(+self.value)

    def __invert__(self) -> constexpr:
        return constexpr(~self.value)

    def __not__(self) -> constexpr:
        return constexpr(not self.value)

    def logical_and(self, other: Any) -> constexpr:
        return constexpr(self.value and unwrap(other))

    def logical_or(self, other: Any) -> constexpr:
        return constexpr(self.value or unwrap(other))
