"""The base of Weft's operations, and who reads what they make."""

from __future__ import annotations

from abc import ABCMeta

from xdsl.dialects.builtin import UNKNOWN_LOC
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation

from weft.ir.locations import CURRENT


class _OpClass(ABCMeta):
    """The class of op classes. xDSL's are abstract classes, of which `isinstance` asks a register of subclasses, in
    twice the time; no op is in one, and compiling a model asks some hundred thousand times."""

    __instancecheck__ = type.__instancecheck__


class WeftOp(IRDLOperation, metaclass=_OpClass):
    """An operation of one of Weft's dialects. Made without a location, it comes from where `sourced` says."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if CURRENT.location is not None and self.location is UNKNOWN_LOC:
            self.location = CURRENT.location


def users_of(value: SSAValue) -> list[Operation]:
    """The operations that read a value, each once."""
    return list(dict.fromkeys(use.operation for use in value.uses))
