"""ONNX Runtime's sessions as `weft bench` opens them, with no framework in sight."""

# onnxruntime has no types.
# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NEEDED = ("onnx", "onnxruntime", "onnxscript")


def missing_packages(needed: Sequence[str] = _NEEDED) -> list[str]:
    """The packages that are not installed: of those that export and session need, if none are named."""
    return [name for name in needed if importlib.util.find_spec(name) is None]


def open_session(path: Path, threads: int) -> Any:
    """A session on the processor, with so many threads."""
    import onnxruntime

    options: Any = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads wait busily, which is to its advantage, but not while others have their turn.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
