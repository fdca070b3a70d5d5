"""The GPUs that code is made for, and LLVM's NVPTX back end, which makes it."""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

import llvmlite.binding as llvm

from weft.errors import CompilationError, WeftError
from weft.forks import COMPILING

TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class NvidiaTarget:
    """A GPU architecture: what LLVM is told, and the limits of a block."""

    arch: str = "sm_90a"
    ptx: int = 86
    multiprocessors: int = 132
    shared_per_block: int = 232448
    registers: int = 65536

    @property
    def capability(self) -> int:
        """The compute capability as a number: 90."""
        match = re.match(r"sm_(\d+)", self.arch)
        assert match is not None
        return int(match.group(1))

    @property
    def has_clusters(self) -> bool:
        """Whether blocks work in clusters, whose shared memory all of them reach."""
        return self.capability >= 90

    @property
    def has_wgmma(self) -> bool:
        """Whether warp groups multiply from shared memory, which a copy engine fills: Hopper alone."""
        return self.arch == "sm_90a"


_TARGETS = {
    target.arch: target
    for target in (
        NvidiaTarget("sm_80", 80, 108, 166912),
        NvidiaTarget("sm_86", 80, 84, 101376),
        NvidiaTarget("sm_89", 81, 128, 101376),
        NvidiaTarget("sm_90a"),
        NvidiaTarget("sm_100a", 87, 148, 232448),
        NvidiaTarget("sm_120a", 87, 188, 101376),
    )
}


def target_named(arch: str, multiprocessors: int | None = None) -> NvidiaTarget:
    """A target by the name of its architecture."""
    if arch not in _TARGETS:
        raise WeftError(f"there is no code for {arch}", hint=f"Weft knows {', '.join(_TARGETS)}")
    target = _TARGETS[arch]
    return target if multiprocessors is None else replace(target, multiprocessors=multiprocessors)


def target_of_capability(major: int, minor: int, multiprocessors: int) -> NvidiaTarget:
    """The best code that a GPU of a compute capability runs."""
    capability = major * 10 + minor
    exact = [target for target in _TARGETS.values() if target.capability == capability]
    # Architectures with an `a` run nowhere else; plain ones run on all later ones.
    older = [t for t in _TARGETS.values() if t.capability <= capability and not t.arch.endswith("a")]
    if not exact and not older:
        raise WeftError(
            f"a GPU of compute capability {major}.{minor} is too old", hint="Weft needs 8.0 (Ampere) or later"
        )
    return replace((exact or older)[-1], multiprocessors=multiprocessors)


@lru_cache
def _machine(target: NvidiaTarget) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=target.arch, features=f"+ptx{target.ptx}", opt=3)


def compile_ptx(text: str, target: NvidiaTarget) -> str:
    """LLVM IR → PTX. Tiles are already unrolled into registers: LLVM cleans up and selects instructions."""
    with COMPILING:
        machine = _machine(target)
        try:
            module = llvm.parse_assembly(text)
            module.verify()
        except RuntimeError as error:
            raise CompilationError(
                f"LLVM refused a kernel: {error}", hint="report it with the output of `weft explain`"
            ) from error
        builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
        manager = llvm.create_new_module_pass_manager()
        manager.add_sroa_pass()
        manager.add_simplify_cfg_pass()
        manager.add_new_gvn_pass()
        manager.add_instruction_combine_pass()
        manager.add_simplify_cfg_pass()
        manager.add_dead_code_elimination_pass()
        manager.run(module, builder)
        return machine.emit_assembly(module)
