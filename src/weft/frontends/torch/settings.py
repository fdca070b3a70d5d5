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
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from traceback import walk_tb
from types import FrameType
from typing import Any

import torch
from torch._dynamo import eval_frame
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import Unsupported
from torch._dynamo.output_graph import DynamoTracerOutput, OutputGraph

from weft.backends.target import find_target
from weft.config import Config
from weft.diagnostics import calling_line, warn
from weft.frontends.torch.locations import is_of_module, is_of_torch


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
    """Tell of a function or a module that Dynamo has just given up on, if it was to be compiled by Weft."""
    error = sys.exc_info()[1]
    if not isinstance(error, Unsupported):  # or one that is handled around the call
        _tell_of_break()
        return
    asked = _asked(frame for frame, _ in walk_tb(error.__traceback__))
    if asked is None or _is_quiet(asked):
        return
    own = [frame for frame in error.real_stack if not is_of_torch(frame.filename)]
    line = f"{own[-1].filename}:{own[-1].lineno}" if own else calling_line()
    reason, _, context = str(error).strip().partition("Developer debug context:")
    kind = next((name for name in ("LSTM", "GRU", "RNN") if context.strip().startswith(name)), None)
    if kind is not None:
        what, why = f"a function with a module {kind} runs in eager", "Dynamo does not trace those"
        advice = "torch._dynamo.config.allow_rnn = True lets it, or keep the module out of the compiled function"
    else:
        _, failed, cause = context.partition("Exception:")  # of AOTAutograd, which Dynamo takes for the backend's
        met = f"AOTAutograd cannot trace {cause.partition(chr(10))[0]}" if failed and "Backend" in reason else None
        what, why = "a function runs in eager", met or f"Dynamo cannot trace it: {reason.partition(chr(10))[0]}"
        advice = "fullgraph=True makes this an error"
    warn("fallback", what, why, advice, location=line)


def _tell_of_break() -> None:
    """Tell of a module of torch in which Dynamo has just broken the graph, so that all of the module runs in eager.

    Dynamo traces what is called after a break anew, frame by frame, but passes over frames of torch itself. Where the
    break is in a module of the user's, or in no module, the rest of the function is compiled, which needs no word.
    """
    traced = next((frame for frame in _outwards(sys._getframe(1)) if frame.f_code.co_name == "compile_inner"), None)
    match traced and traced.f_locals.get("result"):
        case (_, DynamoTracerOutput(output_graph=OutputGraph(compile_subgraph_reason=broken))) if broken.graph_break:
            pass
        case _:
            return
    if (asked := _asked(_outwards(traced))) is None or _is_quiet(asked):
        return
    root, called = broken.user_stack[:1], [part.filename for part in broken.user_stack[1:]]
    if not all(map(is_of_torch, called)) or not any(map(is_of_module, called)):
        return
    line = calling_line() if is_of_torch(root[0].filename) else f"{root[0].filename}:{root[0].lineno}"
    why = f"Dynamo cannot trace it: {broken.reason.strip().partition(chr(10))[0].rstrip('.')}"
    warn("fallback", "a module runs in eager", why, "fullgraph=True makes this an error", location=line)


def _is_quiet(asked: Any) -> bool:
    options: Any = asked.kwargs.get("options")
    return (options or {}).get("fallback", os.environ.get("WEFT_FALLBACK")) == "quiet"


def _asked(frames: Iterable[FrameType]) -> Any:
    """What Dynamo was asked for by the first frame that tells it, if Weft compiles and the rest may run in eager."""
    for frame in frames:
        known = frame.f_locals
        found = known.get("compiler_fn")
        asked = getattr(found, "_torchdynamo_orig_backend", found)
        if isinstance(asked, torch._TorchCompileWrapper) and asked.compiler_name == "weft":
            return None if known.get("one_graph") else asked
    return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
