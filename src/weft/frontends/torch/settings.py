"""What users ask of the backend, checked when `torch.compile` is called, and what Dynamo keeps from it, told.

Torch hands `mode` and `options` to a backend with the first graph, long after the line that has the mistake, and tells
it nothing of functions that it leaves to eager (those with an LSTM, for example). Both are seen here, from the two
places that every `torch.compile` passes: where Dynamo looks the backend up, and where it has finished with a function.
"""

# Dynamo has no public interface to either.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import Unsupported

from weft.backends.target import find_target
from weft.config import Config
from weft.diagnostics import calling_line, warn
from weft.frontends.torch.locations import is_of_torch


def settings(options: Mapping[str, Any] | None = None, mode: str | None = None) -> Config:
    """The configuration that `torch.compile(mode=, options=)` asks for; what is wrong with it is an error."""
    config = Config.from_options(options, mode)
    found = find_target(config.target)
    if found.device == "cpu":  # others may not be there before a tensor is
        found.here(config)
    return config


def watch(backend: Callable[..., Any]) -> None:
    """Check what a backend is asked for when it is looked up, and tell of functions that Dynamo leaves to eager."""
    look_up = getattr(eval_frame, "get_compiler_fn", None)
    if look_up is None or hasattr(look_up, "_weft_watched"):
        return  # then the first call has to do

    @wraps(look_up)
    def checked(asked: Any) -> Any:
        if isinstance(asked, torch._TorchCompileWrapper) and asked.compiler_fn is backend:
            settings(**asked.kwargs)
            if _tell not in callback_handler.end_callbacks:  # which torch.compiler.reset() empties
                callback_handler.register_end_callback(_tell)
        return look_up(asked)

    checked._weft_watched = True  # pyright: ignore[reportAttributeAccessIssue]
    eval_frame.get_compiler_fn = checked


def _tell(_: Any) -> None:
    """Tell of a function that Dynamo has just given up on, if it was to be compiled by Weft."""
    error = sys.exc_info()[1]
    if not isinstance(error, Unsupported) or (asked := _asked(error.__traceback__)) is None:
        return
    options: Any = asked.kwargs.get("options")
    if (options or {}).get("fallback", os.environ.get("WEFT_FALLBACK")) == "quiet":
        return
    own = [frame for frame in error.real_stack if not is_of_torch(frame.filename)]
    line = f"{own[-1].filename}:{own[-1].lineno}" if own else calling_line()
    reason, _, context = str(error).strip().partition("Developer debug context:")
    kind = next((name for name in ("LSTM", "GRU", "RNN") if context.strip().startswith(name)), None)
    if kind is not None:
        what, why = f"a function with a module {kind} runs in eager", "Dynamo does not trace those"
        advice = "torch._dynamo.config.allow_rnn = True lets it, or keep the module out of the compiled function"
    else:
        what, why = "a function runs in eager", f"Dynamo cannot trace it: {reason.partition(chr(10))[0]}"
        advice = "fullgraph=True makes this an error"
    warn("fallback", what, why, advice, location=line)


def _asked(trace: TracebackType | None) -> Any:
    """What Dynamo was asked for where it has raised, if Weft was to compile it and the rest may run in eager."""
    while trace is not None:
        known = trace.tb_frame.f_locals
        found = known.get("compiler_fn")
        asked = getattr(found, "_torchdynamo_orig_backend", found)
        if isinstance(asked, torch._TorchCompileWrapper) and asked.compiler_name == "weft":
            return None if known.get("one_graph") else asked
        trace = trace.tb_next
    return None
