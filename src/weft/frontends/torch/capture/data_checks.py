"""Conditions on data as an operator of captured graphs, `weft::check_data`, where torch's functions look at their data.

A graph that looked at data would end there; with the operator it goes on, and the program raises when it has run.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from weft.errors import DataError, DataValueError


class FactorError(DataError, torch.linalg.LinAlgError):  # pyright: ignore[reportUntypedBaseClass, reportPrivateImportUsage]
    """A matrix that has no such factors, as torch calls it, too."""


_NAME = "weft::check_data"
_ERRORS: dict[str, type[DataError]] = {"data": DataError, "value": DataValueError, "factor": FactorError}

_library = torch.library.Library("weft", "FRAGMENT")
_library.define("check_data(Tensor wrong, str kind, str message) -> Tensor")


def _check(wrong: Tensor, kind: str, message: str) -> Tensor:
    if bool(wrong.any()):
        raise _ERRORS[kind](message)
    return wrong.clone()


def _condition(wrong: Tensor, kind: str, message: str) -> Tensor:
    return wrong.clone()


def _batched(info: Any, in_dims: Any, wrong: Tensor, kind: str, message: str) -> Any:
    return check_data(wrong, kind, message), in_dims[0]


_library.impl("check_data", _check, "CompositeExplicitAutograd")
torch.library.register_fake(_NAME, _condition)
torch.library.register_vmap(_NAME, _batched)
check_data: Any = torch.ops.weft.check_data
"""Takes what must not be, what kind of error that is, and what it says; gives the condition again."""
has_side_effect(check_data.default)
