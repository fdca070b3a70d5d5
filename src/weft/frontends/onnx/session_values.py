"""What a session tells of its model, in ONNX Runtime's words: names, types and shapes of inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

from weft.frontends.onnx.dtypes import STRINGS
from weft.frontends.onnx.model import Dimension, ModelInput, ValueType

_WORDS = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output: a size that is open is a name or None; of a sequence or an optional the shape is empty."""

    name: str
    shape: list[Dimension]
    type: str

    @classmethod
    def of(cls, given: ModelInput) -> NodeArg:
        return cls(given.name, list(given.type.shape or ()), type_name(given.type))


def type_name(type_: ValueType) -> str:
    """A type as ONNX writes it: `tensor(float)`, `seq(tensor(int64))`."""
    if type_.kind == "tensor":
        name = "" if type_.dtype is None else "string" if type_.dtype == STRINGS else type_.dtype.name
        return f"tensor({_WORDS.get(name, name)})"
    kind = {"sequence": "seq"}.get(type_.kind, type_.kind)
    return f"{kind}({'' if type_.element is None else type_name(type_.element)})"
