"""Where in the user's program a node of a captured graph comes from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, LocationAttr, StringAttr, UnknownLoc

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__)
_TRACED = os.path.join(_HERE, "transforms", "dynamo_forms.py"), os.path.join(_HERE, "func", "")
"""What Dynamo traces though it is no user's: forms of torch's functions, and functions of `weft.func`."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def is_of_torch(file: str) -> bool:
    """Whether a file is torch's, or has what Dynamo traces in place of torch's."""
    return file.startswith((_TORCH, *_TRACED))


def is_of_module(file: str) -> bool:
    """Whether a file has modules of torch itself: `nn.Sequential`, `nn.BatchNorm2d`."""
    return file.startswith(os.path.join(_TORCH, "nn", "modules", ""))


def location_of(node: Any) -> LocationAttr:
    """The innermost frame of the user's program that is recorded for the node."""
    return _location(node.meta.get("stack_trace"))


@lru_cache(maxsize=1024)
def _location(stack_trace: str | None) -> LocationAttr:
    frames = _FRAME.findall(stack_trace or "")
    if not frames:
        return UnknownLoc()
    own = [frame for frame in frames if not is_of_torch(frame[0])]
    file, line = (own or frames)[-1]
    return FileLineColLoc(StringAttr(file), IntAttr(int(line)), IntAttr(0))


def user_line(location: LocationAttr | None) -> str | None:
    """A location as `file:line`, None where it is not known."""
    if not isinstance(location, FileLineColLoc):
        return None
    return f"{location.filename.data}:{location.line.data}"


def first_line(nodes: Iterable[Any]) -> str | None:
    """Where the first of some nodes that tells it comes from, as `file:line`."""
    return next((line for node in nodes if (line := user_line(location_of(node))) is not None), None)
