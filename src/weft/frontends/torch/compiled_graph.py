"""What AOTAutograd calls: a compiled graph with its calling convention around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from weft.frontends.torch.execution.device_checks import Watch, raise_found
from weft.frontends.torch.execution.donated import with_own_arguments
from weft.frontends.torch.execution.returning import needs_arguments, output_of, write_back
from weft.frontends.torch.execution.torch_executor import TorchExecutor
from weft.frontends.torch.importer.checks import failure
from weft.frontends.torch.importer.complex_numbers import resolved
from weft.frontends.torch.importer.imported_graph import Calling
from weft.frontends.torch.report import record_targets as record_targets
from weft.runtime.plan_executor import WrongData

if TYPE_CHECKING:
    pass


class Executor(Protocol):
    """A compiled function: its tensors and the values of its symbols in, its results out.

    Every result is a fresh tensor with the strides that the function states, also one that is an argument unchanged.
    """

    def __call__(self, tensors: Sequence[torch.Tensor], symbols: Mapping[str, int]) -> list[torch.Tensor]: ...


@dataclass
class CompiledGraph:
    """What AOTAutograd calls: a list of arguments, which is emptied, in; the outputs out."""

    calling: Calling
    constants: tuple[torch.Tensor, ...]
    executor: Executor
    _boxed_call: bool = True

    def __post_init__(self) -> None:
        self.run: Callable[..., list[torch.Tensor]] = getattr(self.executor, "consume", self.executor)
        self.needs_arguments = needs_arguments(self.calling)
        self.watch = Watch(self.calling.checks) if self.calling.deferred and self.calling.checks else None

    def shortest(self) -> Callable[[list[Any]], list[Any]]:
        """The quickest callable: the executor's own, where arguments and results are just the program's."""
        executor, calling = self.executor, self.calling
        if not isinstance(executor, TorchExecutor):
            return self
        is_plain = not calling.resolved_arguments and not calling.symbols.rules
        direct = executor.direct(calling, self.constants, self, self.watch) if is_plain else None
        donated = [calling.arguments[place] for place in executor.donated]
        return with_own_arguments(direct or self, donated)

    def __call__(self, arguments: list[Any]) -> list[Any]:
        calling, watch = self.calling, self.watch
        if watch is not None:
            raise_found()
        symbols = calling.symbols(arguments)
        tensors = [arguments[position] for position in calling.arguments]
        tensors.extend(self.constants)
        for position in calling.resolved_arguments:
            tensors[position] = resolved(tensors[position])
        given = list(arguments) if self.needs_arguments else []
        arguments.clear()
        try:
            results = self.run(tensors, symbols)
        except WrongData as wrong:
            raise failure(calling.checks, wrong.code) from None
        if watch is not None:
            watch.note(results[-1])
        elif calling.checks and (code := int(results[-1])):
            raise failure(calling.checks, code)
        if calling.mutated:
            write_back([(given[position], results[result]) for position, result in calling.mutated])
        return [output_of(output, given, results, symbols) for output in calling.outputs]
