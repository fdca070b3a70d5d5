"""Programs as machine code: compiled once, found again in the disk cache by their text, and called on tensors."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from weft.backends.target import Target, require_capabilities
from weft.config import Config
from weft.forks import COMPILING
from weft.frontends.torch.compiled_graph import CompiledGraph
from weft.frontends.torch.devices import target_on
from weft.frontends.torch.executors import LaterExecutor, executor_for, load_graph
from weft.frontends.torch.func.claim_row_sums import claim_row_sums
from weft.frontends.torch.func.lower_offloads import lower_offloads
from weft.frontends.torch.func.program import Program
from weft.frontends.torch.importer.complex_numbers import resolved
from weft.frontends.torch.importer.imported_graph import Calling, ImportedGraph, Returned
from weft.frontends.torch.importer.sizes import SymbolReader
from weft.passes.transform.inline_custom import inline_custom
from weft.runtime.blas import blas_symbols
from weft.runtime.cache import cache_key
from weft.runtime.collection import without_collection
from weft.runtime.record import compilation
from weft.runtime.sources import source_digest, versions
from weft.tile.text import print_program

_SEEDS = torch.iinfo(torch.int64)


class Call:
    """A compiled program: a callable of the tensors that a call gives, for the tensors that the program returns."""

    __slots__ = ("_program", "_run")

    def __init__(self, program: Program, run: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._program, self._run = program, run

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        program = self._program
        return self.of_all([*tensors, *(program.held if program.seed is None else drawn(program))])

    def of_all(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What it returns for all arguments of its function, held ones too."""
        return list(self._run([_row_by_row(each) for each in tensors]))


def compile_program(program: Program, config: Config) -> Call:
    """The program as machine code."""
    return Call(program, _boxed(program, config))


def _row_by_row(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as graphs take it: of complex numbers, parts alternate."""
    tensor = resolved(tensor)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def drawn(program: Program) -> list[torch.Tensor]:
    """The constants of a program for one call: with a seed of its own, where it draws random numbers."""
    held = list(program.held)
    if program.seed is not None:
        held[program.seed] = torch.randint(_SEEDS.min, _SEEDS.max, (1,), dtype=torch.int64, device=program.device)
    return held


def _boxed(program: Program, config: Config) -> Callable[[list[Any]], Sequence[Any]]:
    function, device = program.function.clone(), program.device
    inline_custom(function.block)
    calling = Calling(
        arguments=tuple(range(len(function.block.args))),
        constants=(),
        symbols=SymbolReader(()),
        outputs=tuple(Returned(number) for number in range(len(program.results))),
        mutated=(),
        fallbacks=(),
        checks=program.checks,
    )
    objects = dict(program.objects)
    target = target_on(device, config)
    lower_offloads(function, device, target.costs, objects)
    if _has_sorted_sums(target, config):
        claim_row_sums(function, objects)
    imported = ImportedGraph(function, calling, (), objects)
    with COMPILING, compilation(function.sym_name.data) as record, without_collection():
        record.config = config
        key = _key(program, config, target.cache_key()) if config.cache and target.cache_key() else None
        nothing = fx.GraphModule({}, fx.Graph())
        loaded = load_graph(key, nothing, {}, record, config, device) if key and imported.cacheable else None
        if loaded is not None:
            return loaded.shortest()
        require_capabilities(function, target)
        executor = executor_for(imported, config, key, {}, target, device)
        if isinstance(executor, LaterExecutor):
            executor = executor.load()
        return CompiledGraph(calling, (), executor).shortest()


def _has_sorted_sums(target: Target, config: Config) -> bool:
    """Whether rows are added by torch's kernels, which sort what is added to one row: those of a GPU."""
    return target.capabilities.library_first and not config.strict


def _key(program: Program, config: Config, target: str) -> str:
    text = print_program(program.function, locations=config.debug_lines)
    checks = tuple(map(str, program.checks))
    made_with = (*versions(), torch.__version__, f"blas {sorted(blas_symbols())}", source_digest())
    return cache_key("torch function", text, checks, config.key(), made_with, target)
