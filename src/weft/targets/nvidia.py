"""The target `nvidia`: PTX for a GPU, which its driver assembles and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from xdsl.passes import ModulePass

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.driver import device_facts
from weft.backends.nvidia.target import NvidiaTarget, target_of_capability
from weft.backends.target import ALONE, CostFacts, Host, result_names
from weft.capabilities import Capabilities
from weft.config import Config
from weft.errors import UnsupportedError
from weft.ops.graph import FuncOp
from weft.pipelines import Compiled, compile_nvidia, nvidia_passes
from weft.runtime.cache import DiskCache
from weft.runtime.device_program import DeviceProgram


@dataclass(frozen=True)
class NvidiaProgram:
    """A program on a GPU; the front end that owns the GPU's memory runs `program` there."""

    program: DeviceProgram
    inputs: tuple[str, ...]

    @property
    def outputs(self) -> Sequence[str]:
        return result_names(len(self.program.plan.outputs))

    def __call__(self, arrays: Sequence[Any], symbols: Mapping[str, int] | None = None) -> list[Any]:
        raise UnsupportedError("arrays of NumPy lie in no GPU", hint="call it through torch")


@dataclass(frozen=True)
class Nvidia:
    """A GPU, one of those that are there, or an architecture to make code for."""

    name: ClassVar[str] = "nvidia"
    device: ClassVar[str] = "cuda"

    gpu: NvidiaTarget
    index: int = 0

    @classmethod
    def here(cls, config: Config, index: int = 0) -> Self:
        facts = device_facts(index)
        return cls(target_of_capability(*facts.capability, facts.multiprocessors), index)

    @property
    def capabilities(self) -> Capabilities:
        return self.gpu.capabilities

    @property
    def costs(self) -> CostFacts:
        return CostFacts(self.gpu.bandwidth, self.gpu.tensor_flops, self.gpu.plain_flops, self.gpu.multiprocessors)

    def passes(self, config: Config) -> list[ModulePass]:
        return nvidia_passes(config, self.capabilities)

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> Compiled[DeviceCode]:
        return compile_nvidia(function, config, self.gpu, host.timer, host.loads)

    def load(self, compiled: Compiled[DeviceCode], config: Config, host: Host = ALONE) -> NvidiaProgram:
        cache = DiskCache() if config.cache else None
        program = DeviceProgram(compiled.plan, compiled.code, compiled.prepare, device=self.index, cache=cache)
        return NvidiaProgram(program, compiled.inputs)

    def cache_key(self) -> str:
        return repr(self.gpu)  # of a GPU its kind counts, not which of several it is
