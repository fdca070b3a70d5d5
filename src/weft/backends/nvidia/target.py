"""The GPUs that code is made for, and LLVM's NVPTX back end, which makes it."""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false

from __future__ import annotations

import difflib
import re
import threading
from dataclasses import dataclass, replace

import llvmlite.binding as llvm

from weft.backends.llvm.threads import emit_assembly, parse, run_passes
from weft.backends.nvidia.matmul_unit import MMA, WGMMA, Home, MatmulUnit
from weft.capabilities import Capabilities
from weft.errors import WeftError
from weft.lower.machine import gpu_capabilities

TRIPLE = "nvptx64-nvidia-cuda"
SYSTEM_SHARED, _SHARED_UNIT = 1024, 128
"""Bytes of shared memory that every block has beside its own, and in what units it is given out."""
_PARTS, _REGISTER_UNIT = 4, 256
"""The parts of a multiprocessor, which have their own registers, and in what units warps get them."""


@dataclass(frozen=True)
class NvidiaTarget:
    """A GPU architecture: what LLVM is told, and the limits of a block."""

    arch: str = "sm_90a"
    ptx: int = 86
    multiprocessors: int = 132
    shared_per_block: int = 232448
    registers: int = 65536
    threads: int = 2048
    """That a multiprocessor holds at once."""
    most_blocks: int = 32
    """That it holds at once, whatever they take."""
    bandwidth: float = 4.8e12
    """Bytes a second, as the data sheet of the largest card says; so are the next two."""
    tensor_flops: float = 989e12
    """Operations a second of the tensor cores on 16-bit floats."""
    plain_flops: float = 67e12
    """Operations a second without them, in f32."""
    host_bandwidth: float = 50e9
    """Bytes a second to the host's memory, or from there, as measured of pinned memory."""

    @property
    def capability(self) -> int:
        """The compute capability as a number: 90."""
        match = re.match(r"sm_(\d+)", self.arch)
        assert match is not None
        return int(match.group(1))

    def blocks(self, threads: int, registers: int, shared: int) -> int:
        """How many blocks a multiprocessor holds at once that take so much each."""
        warps, of_warp = -(-threads // 32), -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
        by_registers = self.registers // _PARTS // of_warp * _PARTS // warps if registers else self.most_blocks
        of_block = -(-(shared + SYSTEM_SHARED) // _SHARED_UNIT) * _SHARED_UNIT
        by_shared = (self.shared_per_block + SYSTEM_SHARED) // of_block
        return min(self.most_blocks, self.threads // 32 // warps, by_registers, by_shared)

    @property
    def has_clusters(self) -> bool:
        """Whether blocks work in clusters, whose shared memory all of them reach."""
        return self.capability >= 90

    @property
    def matmul_units(self) -> tuple[MatmulUnit, ...]:
        """What multiplies tiles, the best first."""
        return _MATMUL_UNITS.get(self.arch, (MMA,))

    def matmul_unit(self, home: Home) -> MatmulUnit | None:
        """The best of them that reads both operands from registers, or from shared memory."""
        return next((unit for unit in self.matmul_units if unit.reads_from(home)), None)

    @property
    def has_tma(self) -> bool:
        """Whether TMA brings memory to shared memory, and back."""
        return self.capability >= 90

    @property
    def has_programmatic_launch(self) -> bool:
        """Whether a kernel's blocks come before the kernel ahead has ended, and wait for it themselves."""
        return self.capability >= 90

    @property
    def lacks(self) -> frozenset[str]:
        """Instructions of later architectures, in whose place others are written."""
        return frozenset(name for name, since in _SINCE.items() if self.capability < since)

    @property
    def capabilities(self) -> Capabilities:
        """What passes, lowerings and front ends ask."""
        return gpu_capabilities(clusters=self.has_clusters, fast_matmuls=self.matmul_unit("shared") is not None)


NO_BF16_ATOMICS, NO_FP8 = "bf16 atomics", "fp8"
"""What a target lacks that adds no bf16 by itself, or has no instruction to widen floats of 8 bits."""
_SINCE = {NO_BF16_ATOMICS: 90, NO_FP8: 89}
"""The compute capabilities that have instructions."""
_MATMUL_UNITS = {"sm_90a": (WGMMA, MMA)}
"""Of architectures that have others than Ampere."""
_SMALL = {"shared_per_block": 101376, "threads": 1536}
"""Of cards that are not for servers."""
_PCIE4 = 24e9
_TARGETS = {
    target.arch: target
    for target in (
        NvidiaTarget(
            "sm_80", 80, 108, 166912, bandwidth=2.0e12, tensor_flops=312e12, plain_flops=19.5e12, host_bandwidth=_PCIE4
        ),
        NvidiaTarget(
            "sm_86",
            80,
            84,
            **_SMALL,
            most_blocks=16,
            bandwidth=0.77e12,
            tensor_flops=155e12,
            plain_flops=39e12,
            host_bandwidth=_PCIE4,
        ),
        NvidiaTarget(
            "sm_89",
            81,
            128,
            **_SMALL,
            most_blocks=24,
            bandwidth=1e12,
            tensor_flops=330e12,
            plain_flops=82e12,
            host_bandwidth=_PCIE4,
        ),
        NvidiaTarget("sm_90a"),
        NvidiaTarget("sm_100a", 87, 148, bandwidth=8e12, tensor_flops=2250e12, plain_flops=80e12),
        NvidiaTarget(
            "sm_120a", 87, 188, **_SMALL, most_blocks=24, bandwidth=1.8e12, tensor_flops=5e14, plain_flops=126e12
        ),
    )
}


def target_named(arch: str, multiprocessors: int | None = None) -> NvidiaTarget:
    """A target by the name of its architecture."""
    if arch not in _TARGETS:
        close = difflib.get_close_matches(arch, _TARGETS, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise WeftError(f"there is no code for {arch}", hint=f"{meant}Weft knows {', '.join(_TARGETS)}")
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


_CODEGEN_LEVEL = 2
"""At 3 LLVM numbers values once more: a quarter of its time, for the same PTX but for a line in a thousand."""


class _Machines(threading.local):
    """The target machines of a thread."""

    def __init__(self) -> None:
        self.made: dict[NvidiaTarget, llvm.TargetMachine] = {}


_machines = _Machines()


def _machine(target: NvidiaTarget) -> llvm.TargetMachine:
    """A target machine that no other thread uses."""
    machines = _machines.made
    if target not in machines:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        found = llvm.Target.from_triple(TRIPLE)
        machines[target] = found.create_target_machine(
            cpu=target.arch, features=f"+ptx{target.ptx}", opt=_CODEGEN_LEVEL
        )
    return machines[target]


def llvm_to_ptx(text: str, target: NvidiaTarget) -> str:
    """LLVM IR → PTX. Tiles are already unrolled into registers: LLVM cleans up and selects instructions.

    What is computed twice was found as the text was written (`value_numbering`): LLVM's own numbering of values takes
    time that grows with the square of the largest kernels, and finds nothing more.

    Any number of threads may do this at once, without `COMPILING`: a fork waits for them as `BACKGROUND`.
    """
    machine = _machine(target)
    module = parse(text, llvm.create_context())
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    manager = llvm.create_new_module_pass_manager()
    manager.add_sroa_pass()
    manager.add_simplify_cfg_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    manager.add_dead_code_elimination_pass()
    run_passes(manager, module, builder)
    return _with_plain_negations(emit_assembly(machine, module))


_NEGATION = re.compile(r"^\tneg\.s32(\s+)(%r\d+), (%r\d+);", re.MULTILINE)


def _with_plain_negations(ptx: str) -> str:
    """Integers are negated by two instructions where least or greatest ones are found.

    ptxas (13.0) makes one instruction of three operands of `min(min(a, -b), c)` and loses the sign of b.
    """
    if "min.s32" not in ptx and "max.s32" not in ptx:
        return ptx
    return _NEGATION.sub(r"\tnot.b32\1\2, \3;\n\tadd.s32\1\2, \2, 1;", ptx)
