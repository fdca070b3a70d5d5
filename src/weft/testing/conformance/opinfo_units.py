"""Samples of PyTorch's operators as units of work: which there are, how they are run, and what is said of each.

`op_db` holds them; `opinfo_cases` judges one, in a child process that `opinfo_worker` drives.
"""

# torch's testing package has no types, and some of torch's own arguments have none.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import torch

Status = Literal["passed", "wrong", "error", "refused", "skipped"]
Backend = str | Callable[..., Any]

# What these return is not defined beyond shape, dtype and strides.
WITHOUT_VALUES = frozenset(
    (
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "empty_permuted",
        "resize_",
        "resize_as_",
    )
)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The verdict on one sample of one operator, and the targets of the graphs that the backend received."""

    op: str
    dtype: str
    sample: int
    status: Status
    reason: str = ""
    core: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    strides_differ: bool = False
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.op}[{self.dtype}, {self.sample}]"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> CaseResult:
        return replace(
            CaseResult(**record), core=tuple(record["core"]), opaque=tuple(record["opaque"]), seen=tuple(record["seen"])
        )


@dataclass(frozen=True, slots=True)
class CaseSettings:
    """How cases are run; strings only where a callable could not travel to another process."""

    backend: Backend
    recorder: str | None = None
    strict: bool = False
    gradients: bool = True
    samples: int = 2
    device: str = "cpu"
    transform: str = ""
    """One of `transform_cases.TRANSFORMS`, or none."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One operator of `op_db` in one dtype."""

    index: int
    op: str
    dtype: str


@cache
def operators() -> Sequence[Any]:
    """PyTorch's operator database; random operators draw from torch's generator, which every run seeds alike."""
    from torch.testing._internal import common_methods_invocations as invocations

    def draw(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    # torch's wrapper seeds inside the operator: Dynamo skips such a function, and no backend would ever see it.
    setattr(invocations, "wrapper_set_seed", draw)  # noqa: B010 - imported there, not declared
    return invocations.op_db


def units(dtypes: Sequence[str], names: Sequence[str] | None = None, device: str = "cpu") -> list[Unit]:
    """The operators that take one of the dtypes on a device, all of them or those named."""
    return [
        Unit(index, op.formatted_name, dtype)
        for dtype in dtypes
        for index, op in enumerate(operators())
        if getattr(torch, dtype) in op.supported_dtypes(device)
        and (names is None or op.name in names or op.formatted_name in names)
    ]
