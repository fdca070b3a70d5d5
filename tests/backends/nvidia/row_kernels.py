"""Kernels and plans of functions of bfloat16 rows, as the compiler makes them for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from weft.config import Config
from weft.frontends.torch.decompositions import decompositions
from weft.frontends.torch.importer import import_graph
from weft.lower.machine import gpu_machine
from weft.lower.plan import Planned, build_plan
from weft.pipelines import nvidia_passes
from weft.tile import dialect as tile


def row_kernel(function: Callable[..., Any], *shapes: tuple[int, ...]) -> tile.KernelOp:
    """The one kernel that a function becomes."""
    (kernel,) = planned(function, *shapes).kernels.values()
    return kernel


def planned(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Planned:
    """What a function becomes; its tensors need no memory."""
    with FakeTensorMode():
        inputs = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes]

        def results(*args: Any) -> tuple[Any, ...]:
            made = function(*args)
            return made if isinstance(made, tuple) else (made,)

        graph = make_fx(results, decompositions("cuda"))(*inputs)
    program = import_graph(graph, "main", Config(cache=False), device="cuda", tensor_cores=True).function
    module = ModuleOp([program])
    for each in nvidia_passes(Config(cache=False), tensor_cores=True):
        each.apply(Context(), module)
    return build_plan(program, machine=gpu_machine())
