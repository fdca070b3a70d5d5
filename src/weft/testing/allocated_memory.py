"""The most memory that torch's allocator hands out at once on a processor, byte for byte, as its profiler notes it."""

# torch leaves its profiler without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.testing.peak_memory import give_back


def allocated_peak(call: Callable[[], Any]) -> int:
    """The most bytes that are allocated at once during a call, beyond what is before; nothing is kept from others."""
    give_back()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
