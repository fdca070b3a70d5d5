"""The target `nvidia`: PTX for a GPU, which its driver assembles and launches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from xdsl.passes import ModulePass

from weft.backends.nvidia.code import DeviceCode
from weft.backends.nvidia.driver.libcuda import device_facts
from weft.backends.nvidia.target import NvidiaTarget, target_of_capability
from weft.backends.target import ALONE, CostFacts, Host
from weft.capabilities import Capabilities
from weft.config import Config
from weft.ops.graph import FuncOp
from weft.runtime.compiled import Compiled
from weft.runtime.cuda.device_arrays import DeviceArray, DriverExecutor
from weft.runtime.cuda.device_program import DeviceProgram
from weft.runtime.stored_programs import disk_cache
from weft.targets.plan_program import PlanProgram


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
        gpu = self.gpu
        return CostFacts(gpu.bandwidth, gpu.tensor_flops, gpu.plain_flops, gpu.multiprocessors, gpu.host_bandwidth)

    def passes(self, config: Config) -> list[ModulePass]:
        from weft.pipelines import nvidia_passes  # programs that are in the cache need no passes

        return nvidia_passes(config, self.capabilities)

    def compile(self, function: FuncOp, config: Config, host: Host = ALONE) -> Compiled[DeviceCode]:
        from weft.pipelines import compile_nvidia

        return compile_nvidia(function, config, self.gpu, host.timer, host.loads)

    def load(self, compiled: Compiled[DeviceCode], config: Config, host: Host = ALONE) -> PlanProgram[DeviceArray]:
        cache = disk_cache() if config.cache else None
        program = DeviceProgram(compiled.plan, compiled.code, compiled.prepare, device=self.index, cache=cache)
        return PlanProgram(compiled.plan, DriverExecutor(program), compiled.inputs)

    def cache_key(self) -> str:
        return repr(self.gpu)  # of a GPU its kind counts, not which of several it is
