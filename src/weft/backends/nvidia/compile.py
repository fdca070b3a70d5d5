"""Tile kernels → PTX, a module each, and how each is launched."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from weft.backends.llvm.builder import Module
from weft.backends.llvm.debug_lines import DebugLines, keep_lines
from weft.backends.nvidia.code import AwaitedModules, DeviceCode, Launch
from weft.backends.nvidia.emit.block import SHARED_SYMBOL
from weft.backends.nvidia.emit.messages import VPRINTF
from weft.backends.nvidia.ir.dialect import APART, LAUNCH, launch_of, set_launch
from weft.backends.nvidia.ir.kernel_passes import KernelPass, PassNote, run_passes
from weft.backends.nvidia.ir.mma import AHEAD
from weft.backends.nvidia.ir.op_costs import cost_of
from weft.backends.nvidia.ir.programmatic_launch import asked_early, written_by
from weft.backends.nvidia.ir.trace_passes import PassTrace
from weft.backends.nvidia.target import TRIPLE, NvidiaTarget, llvm_to_ptx
from weft.backends.nvidia.workers.kernel_bytes import from_bytes, to_bytes
from weft.backends.nvidia.workers.pool import FAILED, PTX, REFUSED, WRITTEN, Workers, ready_workers
from weft.errors import LoweringError
from weft.forks import BACKGROUND, COMPILING
from weft.ir.locations import inherit_locations
from weft.tile import dialect as tile

log = logging.getLogger("weft")

Loads: TypeAlias = Callable[[str, str, Launch], None]
"""Takes a kernel's name, its PTX, and how it is launched."""

_SWITCH_SECONDS = 2e-4
"""How long the thread that writes kernels keeps the others waiting for Python's lock, which they need for moments
between one call of LLVM's or the driver's and the next."""
_WORTH_SENDING = 4
"""Kernels: fewer are written here before workers have read them."""


def annotate(
    kernel: tile.KernelOp, target: NvidiaTarget, passes: Sequence[KernelPass], notes: list[PassNote] | None = None
) -> tuple[tile.KernelOp, Launch]:
    """A copy of a kernel with roles, layouts, conversions, shared memory and barriers, and how it is launched.

    `passes` are those of `nvidia_kernel_passes`; `notes` takes what came of each of them. A kernel that
    has a launch already has all that, too.
    """
    annotated = kernel.clone()
    return annotated, annotate_in_place(annotated, target, passes, notes)


def annotate_in_place(
    kernel: tile.KernelOp, target: NvidiaTarget, passes: Sequence[KernelPass], notes: list[PassNote] | None = None
) -> Launch:
    """As `annotate`, where nobody needs the kernel as it was."""
    written = written_by(kernel)
    if LAUNCH not in kernel.attributes:
        refused = run_passes(kernel, passes, target, [] if notes is None else notes)
        if refused is not None:
            raise LoweringError(refused.reason, hint=refused.hint)
        set_launch(kernel, _whole_launch(kernel, target, written))
    elif APART in kernel.attributes:  # it was made of annotated kernels
        set_launch(kernel, _whole_launch(kernel, target, written))
    return launch_of(kernel)


def _whole_launch(kernel: tile.KernelOp, target: NvidiaTarget, written: tuple[int, ...]) -> Launch:
    """The launch of an annotated kernel with what it asks for before the kernel ahead has ended, and what it wrote."""
    launch, programmatic = launch_of(kernel), target.has_programmatic_launch
    asked = asked_early(kernel, launch) if programmatic else ()
    return replace(launch, programmatic=programmatic, asked=asked, written=written, ahead=_widens_ahead(kernel))


def _widens_ahead(kernel: tile.KernelOp) -> bool:
    """Whether threads widen codes that they have asked for iterations before: wider operands lost by half of the
    memory.
    """
    ops = list(kernel.walk())
    return any(AHEAD in op.attributes for op in ops) and any(isinstance(op, tile.DequantizeOp) for op in ops)


def emit_llvm(
    kernel: tile.KernelOp,
    target: NvidiaTarget,
    passes: Sequence[KernelPass],
    notes: list[PassNote] | None = None,
    *,
    debug_lines: bool = False,
) -> tuple[str, Launch]:
    """A kernel as the text of an LLVM module, and how it is launched."""
    annotated, launch = annotate(kernel, target, passes, notes)
    return llvm_of(annotated, launch, target, debug_lines=debug_lines), launch


def llvm_of(annotated: tile.KernelOp, launch: Launch, target: NvidiaTarget, *, debug_lines: bool = False) -> str:
    """An annotated kernel as the text of an LLVM module.

    With `debug_lines` the module says which line of the user's program each instruction comes from.
    """
    # Sixty modules: where workers write kernels, this process needs none of them.
    from weft.backends.nvidia.emit.codegen import KernelCodegen

    module = Module(TRIPLE, target.lacks)
    module.globals[SHARED_SYMBOL] = f"@{SHARED_SYMBOL} = external addrspace(3) global [0 x i8], align 1024"
    if debug_lines:
        module.debug = DebugLines("DebugDirectivesOnly")
        inherit_locations(annotated)
    KernelCodegen(module, annotated, launch).emit()
    missing = [each for each in module.declarations if not each.startswith("llvm.") and each != VPRINTF]
    if missing:
        raise LoweringError(f"a GPU has no library for {', '.join(missing)}")
    module.declarations["#1"] = "attributes #1 = { convergent nounwind }"
    return str(module)


@dataclass
class KernelHistory:
    """How kernels came about, for those who ask, by their names."""

    keeps_kernels: bool = False
    keeps_passes: bool = False
    notes: dict[str, list[PassNote]] = field(default_factory=dict[str, "list[PassNote]"])
    """What came of each pass."""
    after_passes: dict[str, dict[str, str]] = field(default_factory=dict[str, "dict[str, str]"])
    """The text after each pass that changed it, by number and name (`05-pipeline_dots`), where that is kept."""
    annotated: dict[str, tile.KernelOp] = field(default_factory=dict[str, tile.KernelOp])
    """Kernels after all passes, in the `nvidia` dialect, where these are kept."""

    def annotate(
        self, name: str, kernel: tile.KernelOp, target: NvidiaTarget, passes: Sequence[KernelPass]
    ) -> tuple[tile.KernelOp, Launch]:
        """A kernel with roles, layouts, shared memory and barriers (`annotate`), and note how it came about."""
        notes, trace = list[PassNote](), PassTrace()
        self.notes[name] = notes
        annotated, launch = annotate(kernel, target, trace.watch(passes) if self.keeps_passes else passes, notes)
        if self.keeps_passes:
            changed = trace.changes_of(kernel, notes)
            self.after_passes[name] = {f"{number:02}-{step.name}": text for number, step, text in changed}
        if self.keeps_kernels:
            self.annotated[name] = annotated
        return annotated, launch


@dataclass
class _Sent:
    """A kernel that a worker compiles, and what it says first of it."""

    kernel: tile.KernelOp
    sources: frozenset[Hashable]
    answer: Future[tuple[Any, ...]] = field(default_factory=Future[tuple[Any, ...]])


class KernelCompiler:
    """Makes PTX of kernels: this thread writes one after the other as LLVM IR, others compile what it has written.

    Where there are workers (`weft.backends.nvidia.workers`), these do both, side by side.

        with KernelCompiler(target, passes) as compiler:
            compiler.add(kernels)
            code = compiler.code()

    With `loads`, they go on to that, for each kernel, as soon as there is PTX of it, and need not be done at the end of
    the `with`. A fork waits for them.
    """

    def __init__(
        self,
        target: NvidiaTarget,
        passes: Sequence[KernelPass],
        loads: Loads | None = None,
        *,
        debug_lines: bool = False,
        history: KernelHistory | None = None,
        beside: bool = True,
    ) -> None:
        self.target, self.passes, self._loads, self._debug_lines = target, passes, loads, debug_lines
        self._history = history or KernelHistory()
        self._beside = beside
        self.texts: dict[str, str] = {}
        """The LLVM IR of each kernel."""
        self._launches: dict[str, Launch] = {}
        self._made: dict[str, Future[str]] = {}
        self._sent: dict[str, _Sent] = {}
        self._takes_long = False
        self._work: list[Future[None]] = []
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="weft-compile")

    def __enter__(self) -> KernelCompiler:
        if self._debug_lines:
            with COMPILING:
                keep_lines()
        COMPILING.acquire()
        BACKGROUND.add(self)
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_SECONDS)
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        failed = kind is not None
        try:
            self._pool.shutdown(wait=failed or self._loads is None, cancel_futures=failed)
        finally:  # whoever interrupts the wait, others can compile
            sys.setswitchinterval(self._interval)
            COMPILING.release()

    def wait(self) -> None:
        """Return when all threads are done."""
        wait([each for each in self._work if not each.cancelled()])

    def add(
        self, kernels: Mapping[str, tile.KernelOp], sources: Mapping[str, Set[Hashable]] = MappingProxyType({})
    ) -> None:
        """Compile kernels. `sources` are what each comes from, for the error if it has no code."""
        self._made.update({name: Future() for name in kernels})
        slow = {name for name, kernel in kernels.items() if compiles_slowly(kernel)}
        self._takes_long = self._takes_long or bool(slow)
        workers = self._workers(len(kernels))
        for name in sorted(kernels, key=lambda each: each not in slow):
            known = frozenset(sources.get(name, ()))
            if workers is None or not self._send(name, kernels[name], known, workers):
                self._write(name, kernels[name], known)

    def _workers(self, count: int) -> Workers | None:
        """Those who compile so many kernels beside this process; what comes of each pass stays in the process."""
        keeps = self._debug_lines or self._history.keeps_kernels or self._history.keeps_passes
        return None if keeps or not self._beside or count < _WORTH_SENDING else ready_workers()

    def _write(self, name: str, kernel: tile.KernelOp, sources: frozenset[Hashable]) -> None:
        """Write a kernel here, and let a thread compile it."""
        try:
            self.texts[name], self._launches[name] = self._emitted(name, kernel)
        except LoweringError as error:
            raise LoweringError(f"{name}: {error.message}", hint=error.hint, sources=sources) from error
        self._work.append(self._pool.submit(self._make, name))

    def _send(self, name: str, kernel: tile.KernelOp, sources: frozenset[Hashable], workers: Workers) -> bool:
        """Let a worker write and compile a kernel; false where it holds what another process would not know."""
        try:
            data = to_bytes(kernel)
        except Exception as error:  # pickling raises many kinds
            log.debug("%s is compiled in this process: %r", name, error)
            return False
        sent = self._sent[name] = _Sent(kernel, sources)
        self._work.append(self._pool.submit(self._make_beside, name, data, sent.answer, workers))
        return True

    def _receive(self) -> None:
        """Take what workers have written, and write what they could not."""
        while self._sent:
            name, sent = next(iter(self._sent.items()))
            kind, *said = sent.answer.result()
            del self._sent[name]
            if kind == WRITTEN:
                self._launches[name], self._history.notes[name] = said
            elif kind == REFUSED:
                raise LoweringError(f"{name}: {said[0]}", hint=said[1], sources=sent.sources)
            else:
                log.debug("%s is compiled in this process: %s", name, said)
                self._write(name, sent.kernel, sent.sources)

    def code(self) -> DeviceCode:
        """The kernels that were added, in their order.

        Where there are dots among them, which take long, and their loading is taken care of, nobody waits here.
        """
        self._receive()
        launches = {name: self._launches[name] for name in self._made}
        awaited = AwaitedModules(self._made, self._loads)
        modules = awaited if self._takes_long and self._loads is not None else dict(awaited)
        return DeviceCode(self.target.arch, modules, launches)

    def _emitted(self, name: str, kernel: tile.KernelOp) -> tuple[str, Launch]:
        annotated, launch = self._history.annotate(name, kernel, self.target, self.passes)
        return llvm_of(annotated, launch, self.target, debug_lines=self._debug_lines), launch

    def _make(self, name: str) -> None:
        made = self._made[name]
        try:
            made.set_result(llvm_to_ptx(self.texts[name], self.target))
        except Exception as error:
            made.set_exception(error)
            return
        if self._loads is not None:
            self._loads(name, made.result(), self._launches[name])

    def _make_beside(self, name: str, kernel: bytes, answer: Future[tuple[Any, ...]], workers: Workers) -> None:
        made = self._made[name]
        try:
            with workers.taken() as worker:
                worker.ask(kernel, self.target, self.passes)
                first = worker.answer()
                answer.set_result(first)
                if first[0] != WRITTEN:
                    return
                second = worker.answer()
        except Exception as error:
            if not answer.done():
                answer.set_result((None, repr(error)))
                return
            first, second = answer.result(), (None, repr(error))
        try:
            made.set_result(second[1] if second[0] == PTX else self._made_here(name, kernel, second[1]))
        except Exception as error:
            made.set_exception(error)
            return
        if self._loads is not None:
            self._loads(name, made.result(), first[1])

    def _made_here(self, name: str, kernel: bytes, why: str) -> str:
        """The PTX of a kernel whose worker has died over it."""
        log.debug("%s is compiled in this process: %s", name, why)
        own = from_bytes(kernel)
        launch = annotate_in_place(own, self.target, self.passes)
        return llvm_to_ptx(llvm_of(own, launch, self.target), self.target)


@contextmanager
def telling(answer: Callable[..., None]) -> Generator[None]:
    """Tell the process that waits for a kernel why there is none: it refuses it, too, or compiles it itself."""
    try:
        yield
    except LoweringError as error:
        answer(REFUSED, error.message, error.hint)
    except Exception as error:
        answer(FAILED, repr(error))


def compiles_slowly(kernel: tile.KernelOp) -> bool:
    """Whether a kernel has a dot of tiles: such take longest to compile, and come first."""
    return any(cost_of(op).compiles_slowly for op in kernel.walk())


def compile_kernels(
    kernels: Mapping[str, tile.KernelOp],
    target: NvidiaTarget,
    passes: Sequence[KernelPass],
    *,
    debug_lines: bool = False,
) -> DeviceCode:
    """Kernels as PTX for a target."""
    with KernelCompiler(target, passes, debug_lines=debug_lines) as compiler:
        compiler.add(kernels)
        return compiler.code()
