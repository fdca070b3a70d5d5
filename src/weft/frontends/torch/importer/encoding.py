"""The argument list of an opaque call as JSON text, and back.

`#n` stands for tensor operand n. Numbers, booleans and None are themselves; everything else is an object with one key
that names its kind: `{"size": "s0*2"}`, `{"dtype": "float32"}`, `{"str": "sum"}`. What cannot be written down (the
subgraphs of control flow, generators) is kept in a table on the side under `{"object": "0"}`.
"""

# Arguments of calls are nested lists and tuples of anything.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from xdsl.ir import SSAValue

from weft.ir.expr import Expr, Size, evaluate
from weft.ir.size_text import parse_size


@dataclass(frozen=True)
class TensorArgument:
    """A tensor of the graph as the argument of a call, with its strides in eager execution where not row-major."""

    value: SSAValue
    strides: tuple[Size, ...] | None = None
    is_complex: bool = False
    """Whether the call takes a complex tensor, whose parts alternate in the last dimension of `value`."""


@dataclass(frozen=True)
class NumberArgument:
    """A 0-d tensor of the graph that is passed to a call as a number."""

    value: SSAValue


@dataclass
class Encoder:
    """Collects the operands of one call; `objects` is the graph's table of what cannot be written down."""

    objects: dict[str, Any]
    arguments: list[TensorArgument] = field(default_factory=list[TensorArgument])

    @property
    def operands(self) -> list[SSAValue]:
        return [argument.value for argument in self.arguments]

    @property
    def strides(self) -> dict[str, list[str]]:
        """The unusual strides of operands, by their position."""
        given = enumerate(argument.strides for argument in self.arguments)
        return {str(position): [str(s) for s in strides] for position, strides in given if strides is not None}

    def __call__(self, value: Any) -> Any:
        match value:
            case NumberArgument():
                return {"item": self(TensorArgument(value.value))}
            case TensorArgument():
                if value not in self.arguments:
                    self.arguments.append(value)
                operand = f"#{self.arguments.index(value)}"
                return {"as_complex": operand} if value.is_complex else operand
            case None | bool() | int():
                return value
            case float():
                return value if math.isfinite(value) else {"float": str(value)}
            case str():
                return {"str": value}
            case Expr():
                return {"size": str(value)}
            case complex():
                return {"complex": [self(value.real), self(value.imag)]}
            case list():
                return [self(item) for item in value]
            case tuple():
                return {"tuple": [self(item) for item in value]}
            case dict():
                return {"dict": [[self(key), self(item)] for key, item in value.items()]}
            case torch.dtype():
                return {"dtype": str(value).removeprefix("torch.")}
            case torch.layout():
                return {"layout": str(value).removeprefix("torch.")}
            case torch.memory_format():
                return {"memory_format": str(value).removeprefix("torch.")}
            case torch.device():
                return {"device": str(value)}
            case torch._ops.OpOverload():
                return {"op": value.name()}
            case _:
                key = str(len(self.objects))
                self.objects[key] = value
                return {"object": key}


def operator_named(name: str) -> Callable[..., Any]:
    """The overload that torch calls `aten::sum.dim_IntList`, or a higher-order operator."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found: Any = getattr(getattr(torch.ops, namespace), packet)
    return found if namespace == "higher_order" else getattr(found, overload or "default")


@dataclass(frozen=True)
class Decoder:
    """Turns encoded arguments back into those of the call."""

    operands: Sequence[torch.Tensor]
    symbols: Mapping[str, int]
    objects: Mapping[str, Any]

    def __call__(self, value: Any) -> Any:
        match value:
            case str():
                return self.operands[int(value[1:])]
            case list():
                return [self(item) for item in value]
            case dict():
                ((kind, content),) = value.items()
                return self._special(kind, content)
            case _:
                return value

    def _special(self, kind: str, content: Any) -> Any:
        match kind:
            case "as_complex":
                return torch.view_as_complex(self(content))
            case "item":
                return self(content).item()
            case "float":
                return float(content)
            case "str":
                return content
            case "size":
                return evaluate(parse_size(content), self.symbols)
            case "complex":
                return complex(self(content[0]), self(content[1]))
            case "tuple":
                return tuple(self(item) for item in content)
            case "dict":
                return {self(key): self(item) for key, item in content}
            case "dtype" | "layout" | "memory_format":
                return getattr(torch, content)
            case "device":
                return torch.device(content)
            case "op":
                return operator_named(content)
            case _:
                return self.objects[content]


def dumps(value: Any) -> str:
    """JSON that is the same text for the same value."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
