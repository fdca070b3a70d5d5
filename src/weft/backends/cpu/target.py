"""The processor that code is made for: its name, features, vector width and object code emitter."""

# llvmlite has no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache

import llvmlite.binding as llvm

from weft.backends.cpu.plain_stores import keep_stores_plain
from weft.backends.cpu.separate_selects import separate_selects
from weft.backends.llvm import threads
from weft.backends.llvm.debug_lines import has_lines, keep_lines
from weft.capabilities import Capabilities
from weft.errors import WeftError
from weft.forks import COMPILING, release_after_fork

# llvmlite's own lock is taken wherever one of its objects is freed, under ours or not.
release_after_fork(llvm.ffi.lib._lock._lock)  # pyright: ignore[reportPrivateUsage]


@lru_cache(maxsize=1)
def _initialise() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


@dataclass(frozen=True)
class CpuTarget:
    """A processor as LLVM names it."""

    triple: str
    cpu: str
    features: str

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def vector_bits(self) -> int:
        """The width of a vector register."""
        if not self.is_x86:
            return 128
        text = _probe(self)
        return 512 if "zmm" in text else 256 if "ymm" in text else 128

    @property
    def registers(self) -> int:
        """How many vector registers there are."""
        return 16 if self.is_x86 and self.vector_bits < 512 else 32

    @property
    def multiplies_by_lane(self) -> bool:
        """Whether a multiply-add takes a factor from one lane of a register."""
        return not self.is_x86

    @property
    def multiplies_bytes(self) -> bool:
        """Whether an instruction adds up products of four 8-bit integers: SDOT, or that of x86's VNNI."""
        text = _bytes_probe(self)
        return "vpdpbusd" in text if self.is_x86 else "sdot" in text

    @property
    def multiplies_pairs(self) -> bool:
        """Whether bytes are multiplied as pairs of 16 bits, for lack of an instruction for four: x86's pmaddwd."""
        if not self.is_x86 or self.multiplies_bytes:
            return False
        register = {512: "zmm", 256: "ymm", 128: "xmm"}[self.vector_bits]
        return any("pmaddwd" in line and register in line for line in _bytes_probe(self).splitlines())

    @property
    def packs_bytes(self) -> bool:
        """Whether weights of 8 bits are packed four of K together, for products that are sums of integers."""
        return self.multiplies_bytes or self.multiplies_pairs

    @property
    def has_matrix_tiles(self) -> bool:
        """Whether there are an x86's matrix tiles (AMX), and the system lets programs use them."""
        given = self.features.split(",")
        if not self.is_x86 or any(f"-{name}" in given for name in _TILES):
            return False
        return self.cpu in _TILED or all(f"+{name}" in given for name in _TILES)

    @property
    def has_library_convolutions(self) -> bool:
        """Whether torch's library makes code for convolutions and their gradients, as it does for wide vectors."""
        return self.is_x86 or "+sve" in self.features.split(",")

    @property
    def capabilities(self) -> Capabilities:
        """What those ask who choose between kernels and the framework's library."""
        return Capabilities(
            library_matrix_tiles=self.has_matrix_tiles, library_convolutions=self.has_library_convolutions
        )

    @property
    def lacks(self) -> frozenset[str]:
        """What there are no instructions for: `f16`, its conversions; `fma`, the fused multiply-add."""
        if not self.is_x86:
            return frozenset()
        text = _probe(self)
        return frozenset(name for name, instruction in _INSTRUCTIONS.items() if instruction not in text)

    @property
    def lanes(self) -> int:
        """How many f32 a loop handles at a time: several registers' worth, so that latencies overlap."""
        return 32 if self.vector_bits == 512 else 16

    def machine(self, level: int = 2, jit: bool = True) -> llvm.TargetMachine:
        _initialise()
        target = llvm.Target.from_triple(self.triple)
        return target.create_target_machine(
            cpu=self.cpu, features=self.features, opt=level, reloc="pic", codemodel="jitdefault" if jit else "default"
        )


_TILES = ("amx-tile", "amx-bf16", "amx-int8")
_TILED = frozenset(["sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids"])
"""Processors by LLVM's names that have matrix tiles: there is no instruction to know them by."""
_INSTRUCTIONS = {"f16": "vcvtps2ph", "fma": "vfmadd"}
_PROBE = """
define void @probe(ptr %p, ptr %q) {
  %x = load <16 x float>, ptr %p, align 4
  %y = load <16 x float>, ptr %q, align 4
  %z = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %y, <16 x float> %y)
  %h = fptrunc <16 x float> %z to <16 x half>
  store <16 x half> %h, ptr %p, align 2
  %s = fadd <16 x float> %x, %y
  store <16 x float> %s, ptr %q, align 4
  ret void
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
"""


_BYTES_PROBE = """
define i32 @probe(<64 x i8> %x, <64 x i8> %y) {
  %a = EXTEND <64 x i8> %x to <64 x i32>
  %b = sext <64 x i8> %y to <64 x i32>
  %p = mul <64 x i32> %a, %b
  %s = call i32 @llvm.vector.reduce.add.v64i32(<64 x i32> %p)
  ret i32 %s
}
declare i32 @llvm.vector.reduce.add.v64i32(<64 x i32>)
"""


@lru_cache
def _bytes_probe(target: CpuTarget) -> str:
    """Assembly of a sum of products of bytes, unsigned by signed for an x86."""
    return compile_assembly(_BYTES_PROBE.replace("EXTEND", "zext" if target.is_x86 else "sext"), target)


@lru_cache
def _probe(target: CpuTarget) -> str:
    """Assembly that shows the widest registers of an x86 and what it has instructions for.

    LLVM knows what each of the processors that it has names for can do, and which features override that.
    """
    return compile_assembly(_PROBE, target)


@lru_cache(maxsize=1)
def host_target() -> CpuTarget:
    """The processor this process runs on."""
    with COMPILING:
        _initialise()
        features = llvm.get_host_cpu_features()
        return _permitted(
            CpuTarget(llvm.get_process_triple(), llvm.get_host_cpu_name(), features.flatten() if features else "")
        )


_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA = 158, 0x1023, 18


def _permitted(target: CpuTarget) -> CpuTarget:
    """The processor without matrix tiles, unless the system lets this process use them: Linux wants to be asked."""
    if not target.has_matrix_tiles:
        return target
    system = ctypes.CDLL(None, use_errno=True)
    if platform.system() == "Linux" and system.syscall(_ARCH_PRCTL, _REQUEST_STATE, _TILE_DATA) == 0:
        return target
    kept = [each for each in target.features.split(",") if each.lstrip("+-") not in _TILES and each]
    return replace(target, features=",".join([*kept, *(f"-{name}" for name in _TILES)]))


def target_for(cpu: str) -> CpuTarget:
    """The processor that `Config.cpu` names: this one, or another of its family that this one can run the code of."""
    host = host_target()
    return host if cpu in ("native", host.cpu) else _permitted(checked_target(host.triple, cpu))


@lru_cache
def checked_target(triple: str, cpu: str) -> CpuTarget:
    """A processor by name; LLVM would take a name that it does not know for the plainest of the family."""
    target = CpuTarget(triple, cpu, "")
    with COMPILING:
        said = _said_by_llvm(target)
    if not cpu or "not a recognized processor" in said:
        family = triple.partition("-")[0]
        raise WeftError(
            f"LLVM knows no processor called {cpu!r} for {family}",
            hint=f"`native` is this one, {host_target().cpu}; other names are those that `clang -mcpu` takes",
        )
    return target


def _said_by_llvm(target: CpuTarget) -> str:
    """What LLVM writes to stderr as it looks a processor up: there is no call that asks whether it knows one."""
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr: nothing can be read off it
        return ""
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 2)
            target.machine()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return file.read().decode(errors="replace")


def compile_object(text: str, target: CpuTarget, level: int = 2, *, jit: bool = True) -> bytes:
    """LLVM IR → an object file. Loops are already vectors, so LLVM only cleans up, schedules and allocates.

    It is loaded into this process, unless `jit` says that a linker takes it.
    """
    with COMPILING:
        if has_lines(text):
            keep_lines()
        return compile_part(text, target, level, jit=jit)


def compile_part(text: str, target: CpuTarget, level: int = 2, *, jit: bool = True) -> bytes:
    """As `compile_object`, in any number of threads at once, while somebody holds `COMPILING`."""
    machine = target.machine(level, jit)
    return threads.emit_object(machine, _optimised(text, machine, level))


def compile_assembly(text: str, target: CpuTarget, level: int = 2) -> str:
    """LLVM IR → assembly, for reading and for tests of targets that this machine is not."""
    with COMPILING:
        if has_lines(text):
            keep_lines()
        machine = target.machine(level, jit=False)
        return threads.emit_assembly(machine, _optimised(text, machine, level))


_NEEDED = 64 << 20
"""Bytes of address space that LLVM may want for a program: a fair share more than was seen."""


def require_memory(size: int = 0) -> None:
    """Raise a `MemoryError` where LLVM would end the process, which it does when it gets no memory."""
    try:
        # Private as LLVM's own memory is: a shared mapping is a file, which other limits hold for.
        mmap.mmap(-1, _NEEDED + 4 * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError as error:
        raise MemoryError("not enough memory for the compiler") from error


def _optimised(text: str, machine: llvm.TargetMachine, level: int) -> llvm.ModuleRef:
    require_memory(16 * len(text))
    module = threads.parse(text, llvm.create_context())
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
    manager = llvm.create_new_module_pass_manager()
    # A twentieth of the time of LLVM's own pipeline, and as fast code: what that does more is done before LLVM.
    manager.add_always_inliner_pass()
    manager.add_sroa_pass()
    manager.add_simplify_cfg_pass()
    manager.add_new_gvn_pass()
    manager.add_loop_rotate_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    manager.add_dead_code_elimination_pass()
    threads.run_passes(manager, module, builder)
    if not machine.triple.startswith("x86_64"):
        return module
    made = str(module)
    kept = made
    for change in (separate_selects, keep_stores_plain):
        kept = change(kept) or kept
    return module if kept is made else threads.parse(kept, llvm.create_context())
