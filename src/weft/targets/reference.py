"""The target `reference`: graphs run on NumPy, op by op. Nothing is compiled, so every result is what an op means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from xdsl.passes import ModulePass

from weft.backends.reference.graph import run
from weft.backends.target import ALONE, CostFacts, Host, Opaque, argument_names, result_names
from weft.capabilities import Capabilities
from weft.config import Config
from weft.ops.graph import FuncOp, OpaqueOp
from weft.runtime.record import compilation


@dataclass(frozen=True)
class Interpreted:
    """A function as it was imported: it is its own code."""

    code: FuncOp


@dataclass(frozen=True)
class ReferenceProgram:
    """A function that NumPy runs."""

    function: FuncOp
    opaque: Opaque | None = None

    @property
    def inputs(self) -> Sequence[str]:
        return argument_names(self.function)

    @property
    def outputs(self) -> Sequence[str]:
        return result_names(len(self.function.returned.operands))

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> list[np.ndarray]:
        given = [np.asarray(array) for array in arrays]
        return run(self.function, given, symbols, partial(self._call, symbols or {}) if self.opaque else None)

    def _call(self, symbols: Mapping[str, int], op: OpaqueOp, operands: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        assert self.opaque is not None
        return self.opaque(op, operands, symbols)


@dataclass(frozen=True)
class Reference:
    """NumPy."""

    name: ClassVar[str] = "reference"
    device: ClassVar[str] = "cpu"
    capabilities: ClassVar[Capabilities] = Capabilities(library_convolutions=True)
    costs: ClassVar[CostFacts] = CostFacts()

    @classmethod
    def here(cls, config: Config, index: int = 0) -> Self:
        return cls()

    def passes(self, config: Config) -> list[ModulePass]:
        return []

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> Interpreted:
        with compilation(function.sym_name.data) as report:
            report.imported(function)
        return Interpreted(function)

    def load(self, compiled: Interpreted, config: Config, host: Host = ALONE) -> ReferenceProgram:
        return ReferenceProgram(compiled.code, host.opaque)

    def cache_key(self) -> str:
        return ""  # a program takes longer to read than to import
