"""Keeps what a compiled graph is called with, for `weft reduce`: some failures come with the inputs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from weft.frontends.torch.execution.reference import to_array
from weft.frontends.torch.importer.complex_numbers import resolved
from weft.frontends.torch.importer.imported_graph import Calling
from weft.runtime.record import CompilationRecord


@dataclass
class ObservedCall:
    """A graph whose record keeps what it is called with: the first time, or when that fails."""

    graph: Callable[[list[Any]], list[Any]]
    calling: Calling
    constants: tuple[torch.Tensor, ...]
    record: CompilationRecord
    _boxed_call: bool = True

    def __call__(self, arguments: list[Any]) -> list[Any]:
        tensors = [*(arguments[position] for position in self.calling.arguments), *self.constants]
        for position in self.calling.resolved_arguments:
            tensors[position] = resolved(tensors[position])
        given = [to_array(tensor).copy() for tensor in tensors]
        self.record.checks = [f"{check.message} at {check.line}" for check in self.calling.checks]
        try:
            results = self.graph(arguments)
        except Exception:
            self.record.inputs = given
            raise
        self.record.inputs = self.record.inputs or given
        return results
