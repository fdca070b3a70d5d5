"""ONNX Runtime as a contender: a module is exported when it is first called, and runs with torch's number of threads.

Export and session take no part in what is measured. What the session returns are the module's tensors, in order.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import UnsupportedError
from weft.testing.bench.onnx_session import open_session


def in_onnx_runtime(function: Callable[..., Any]) -> Callable[..., Any]:
    """A module as a callable that runs in ONNX Runtime; tensors are given by name, and always have the same sizes."""
    if not isinstance(function, nn.Module):
        raise UnsupportedError(f"ONNX Runtime takes modules, not a {type(function).__name__}")
    run: Callable[..., list[Tensor]] | None = None

    def call(**inputs: Tensor) -> list[Tensor]:
        nonlocal run
        if run is None:
            run = _session(function, inputs)
        return run(**inputs)

    return call


def _session(module: nn.Module, inputs: dict[str, Tensor]) -> Callable[..., list[Tensor]]:
    with tempfile.TemporaryDirectory(prefix="weft-onnx-") as folder:
        path = Path(folder) / "model.onnx"
        _export(module, inputs, path)
        session = open_session(path, torch.get_num_threads())
    # An input that the model does not read may be left out of the export.
    names = [each.name for each in session.get_inputs()]

    def run(**given: Tensor) -> list[Tensor]:
        arrays = session.run(None, {name: given[name].numpy() for name in names})
        return [torch.from_numpy(array) for array in arrays]

    return run


def _export(module: nn.Module, inputs: dict[str, Tensor], path: Path) -> None:
    """Write the module as ONNX; weights lie beside it, since one file holds at most 2 GB."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [each.level for each in logs]
    try:
        for each in logs:
            each.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(module, (), kwargs=inputs, dynamo=True, verbose=False)
            program.save(str(path), external_data=True)
    except Exception as error:  # the exporter's own errors are pages of advice around the one that counts
        cause = error.__cause__ or error
        said = str(cause).strip().partition("\n")[0]
        raise UnsupportedError(f"the model does not export: {type(cause).__name__}: {said}") from error
    finally:
        for each, level in zip(logs, levels, strict=True):
            each.setLevel(level)
