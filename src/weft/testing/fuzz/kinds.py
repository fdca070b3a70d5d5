"""The kinds of random programs: how one is drawn from a seed, judged, shrunk and written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weft.testing.fuzz.verdict import Verdict

Case = Any
"""A program of some kind: `to_json` and `script(said)` are what all have."""


@dataclass(frozen=True)
class Kind:
    """What a kind of program can do."""

    draw: Callable[[int, str], Case]
    judge: Callable[..., Verdict]
    """With `backend`, by something else than Weft's own way for the device: see `backend_of`."""
    shrink: Callable[[Case, Callable[[Case], bool], float], Case]
    read: Callable[[dict[str, Any]], Case]


NAMES = ("torch", "module", "graph", "triton", "nnsmith", "onnx")


def backend_of(kind: str, name: str) -> Any:
    """What judges a program of a kind in Weft's place: a backend's name, or what a module has for the kind.

    `package.module` has `torch_backend(graph_module, inputs)`, `run_graph(function, arrays, symbols)` and
    `launch_kernel(kernel, grid, arrays, numbers)`.
    """
    if "." not in name:
        return name
    attribute = {"graph": "run_graph", "triton": "launch_kernel"}.get(kind, "torch_backend")
    return getattr(importlib.import_module(name), attribute)


def kind_named(name: str) -> Kind:
    """A kind by its name; what it needs is imported now."""
    if name == "torch":
        from weft.testing.fuzz.shrink import shrink
        from weft.testing.fuzz.torch_case import TorchCase
        from weft.testing.fuzz.torch_judge import judge
        from weft.testing.fuzz.torch_programs import draw_case

        return Kind(draw_case, judge, shrink, TorchCase.from_json)
    if name == "module":
        from weft.testing.fuzz.module_case import ModuleCase
        from weft.testing.fuzz.module_judge import judge_module, shrink_module
        from weft.testing.fuzz.module_programs import draw_module

        return Kind(draw_module, judge_module, shrink_module, ModuleCase.from_json)
    if name == "graph":
        from weft.testing.fuzz.graph_judge import judge_graph, shrink_graph
        from weft.testing.fuzz.graph_programs import GraphCase, draw_graph

        return Kind(draw_graph, judge_graph, shrink_graph, GraphCase.from_json)
    if name == "triton":
        from weft.testing.fuzz.triton_judge import judge_kernel, shrink_kernel
        from weft.testing.fuzz.triton_programs import TritonCase, draw_kernel

        return Kind(draw_kernel, judge_kernel, shrink_kernel, TritonCase.from_json)
    if name == "nnsmith":
        from weft.testing.fuzz.nnsmith_models import NnsmithCase, draw_model, judge_model, shrink_model

        return Kind(draw_model, judge_model, shrink_model, NnsmithCase.from_json)
    if name == "onnx":
        from weft.testing.fuzz.onnx_files import OnnxFileCase, draw_file, judge_file, shrink_file

        return Kind(draw_file, judge_file, shrink_file, OnnxFileCase.from_json)
    raise ValueError(f"no kind of program is called {name}")
