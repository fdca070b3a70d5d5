"""Compiled programs on disk: a plan, its code, and how a front end calls it. Nothing that is read is trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from weft.backends.nvidia.code import DeviceCode
from weft.diagnostics import warn
from weft.errors import ParseError, WeftError
from weft.ir.types import Tensor
from weft.lower.constants import Constant
from weft.lower.packing import PackedPanels, Packing
from weft.lower.preparation import Preparation, PreparationOp
from weft.lower.steps import (
    Buffer,
    CallStep,
    DotStep,
    IfStep,
    KernelStep,
    LaunchStep,
    LoopStep,
    Place,
    Plan,
    SlicePlace,
    all_steps,
)
from weft.ops.layouts import StridedLayout
from weft.runtime.cache import DiskCache
from weft.runtime.check_plan import check_plan
from weft.runtime.codec import decode, encode, table
from weft.runtime.cuda.cubins import decode_code, encode_code

T = TypeVar("T")

_PLAN_CLASSES = table(
    *(
        Plan,
        Buffer,
        Place,
        KernelStep,
        CallStep,
        DotStep,
        LaunchStep,
        LoopStep,
        SlicePlace,
        IfStep,
        StridedLayout,
        Tensor,
        Constant,
        Packing,
        PackedPanels,
        Preparation,
        PreparationOp,
    )
)

# What decoding raises when an entry is well formed and means nothing: sizes divided by zero, text nested without end.
BAD_ENTRY = (
    WeftError,
    LookupError,
    ValueError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    TypeError,
    AttributeError,
)


@lru_cache(maxsize=1)
def disk_cache() -> DiskCache:
    """The cache of this process."""
    return DiskCache()


def load(
    key: str, kind: type[T], classes: Mapping[str, type], check: Callable[[T, Plan], None]
) -> tuple[Plan, bytes | DeviceCode, T] | None:
    """A stored program, and how it is called: a value of this kind, made of these classes, that fits the plan.

    What cannot be read, or run, is as good as not stored.
    """
    entry = disk_cache().get(key)
    if entry is None:
        return None
    try:
        return decode_program(entry.meta, entry.blobs, kind, classes, check)
    except BAD_ENTRY as error:
        warn("cache", "a cache entry is not used", str(error)[:200] or repr(error), "the graph is compiled anew")
        return None


def decode_program(
    meta: Mapping[str, Any],
    blobs: Mapping[str, bytes],
    kind: type[T],
    classes: Mapping[str, type],
    check: Callable[[T, Plan], None],
) -> tuple[Plan, bytes | DeviceCode, T]:
    """The program that `encode_program` made data of; raises one of `BAD_ENTRY` where it is none."""
    plan = decode(meta["plan"], _PLAN_CLASSES)
    calling = decode(meta["calling"], {**_PLAN_CLASSES, **classes})
    if not isinstance(plan, Plan) or not isinstance(calling, kind):
        raise ParseError("an entry without a plan")
    check_plan(plan)
    check(calling, plan)
    device = meta.get("device")
    code = blobs["code"] if device is None else decode_code(device, blobs)
    if isinstance(code, DeviceCode):
        _check_kernels(plan, code)
    return plan, code, calling


def _check_kernels(plan: Plan, code: DeviceCode) -> None:
    names = {step.function for step in all_steps(plan.steps) if isinstance(step, KernelStep)}
    if missing := names - code.launches.keys():
        raise ParseError(f"a stored program without its kernels {', '.join(sorted(missing))}")


def store(key: str, plan: Plan, code: bytes | DeviceCode, calling: object) -> None:
    """Keep a compiled program for later processes."""
    meta, blobs = encode_program(plan, code, calling)
    disk_cache().put(key, meta, blobs)


def encode_program(plan: Plan, code: bytes | DeviceCode, calling: object) -> tuple[dict[str, Any], Mapping[str, bytes]]:
    """A compiled program as JSON-able data, and blobs."""
    meta: dict[str, Any] = {"plan": encode(plan), "calling": encode(calling)}
    if not isinstance(code, DeviceCode):
        return meta, {"code": code}
    meta["device"], blobs = encode_code(code)
    return meta, blobs
