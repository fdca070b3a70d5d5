"""The host side of a program as machine code: one function per run of steps that calls kernel after kernel.

It reads everything from one table of 64-bit words (pointers of the buffers, then sizes, then the number of threads), so a
call from Python fills the table and makes one call. Kernels with enough work run on the OpenMP pool that the framework
already has; small ones run in the calling thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.cpu.blas import emit_blas
from weft.backends.llvm.builder import Function, Module, V, i64
from weft.ir.expr import Size
from weft.lower.plan import DotStep, KernelStep, Plan, Step

PARALLEL_FROM_NS = 30_000
_WORKER = "weft.worker"


def table_index(plan: Plan, symbol: str) -> int:
    """Where a size stands in the table."""
    return len(plan.buffers) + plan.symbols.index(symbol)


def threads_index(plan: Plan) -> int:
    """Where the number of threads stands in the table."""
    return len(plan.buffers) + len(plan.symbols)


def emit_launcher(module: Module, plan: Plan, name: str, steps: Sequence[Step]) -> None:
    """Add `void name(ptr table)`, which runs kernel and BLAS steps."""
    b = Function(module, name, [("ptr", "table")])
    table = b.args[0]
    symbols = {s: b.load("i64", b.gep(table, i64(table_index(plan, s)), "i64"), 8) for s in plan.symbols}
    threads = b.load("i64", b.gep(table, i64(threads_index(plan)), "i64"), 8)
    for step in steps:
        match step:
            case KernelStep():
                _emit_kernel_call(b, step, table, symbols, threads)
            case DotStep():
                emit_blas(b, step, table, symbols)
            case _:
                raise TypeError(step)
    b.finish()
    _emit_worker(module)


def _emit_kernel_call(b: Function, step: KernelStep, table: V, symbols: dict[str, V], threads: V) -> None:
    arguments = b.alloca("i64", max(1, len(step.buffers) + len(step.symbols)), 8)
    for position, number in enumerate(step.buffers):
        word = b.load("i64", b.gep(table, i64(number), "i64"), 8)
        b.store(word, b.gep(arguments, i64(position), "i64"), 8)
    for position, symbol in enumerate(step.symbols, len(step.buffers)):
        b.store(symbols[symbol], b.gep(arguments, i64(position), "i64"), 8)
    count = b.size(step.grid, symbols)
    if step.serial or _known_small(step.grid, step.work):
        b.call(step.function, "void", arguments, i64(0), count)
        return
    work = b.mul(count, i64(step.work))
    several = b.icmp("sgt", threads, i64(1))
    enough = b.binary("and", several, b.icmp("sgt", work, i64(PARALLEL_FROM_NS)))
    enough = b.binary("and", enough, b.icmp("sgt", count, i64(1)))
    parallel, serial, after = b.label("parallel"), b.label("serial"), b.label("after")
    b.branch_if(enough, parallel, serial)
    b.start(parallel)
    context = b.alloca("i64", 3, 8)
    function = b.emit("i64", f"ptrtoint ptr @{step.function} to i64")
    b.store(function, context, 8)
    b.store(b.emit("i64", f"ptrtoint {arguments} to i64"), b.gep(context, i64(1), "i64"), 8)
    b.store(count, b.gep(context, i64(2), "i64"), 8)
    wanted = b.convert("trunc", threads, "i32")
    b.call("GOMP_parallel", "void", V("ptr", f"@{_WORKER}"), context, wanted, V("i32", "0"))
    b.branch(after)
    b.start(serial)
    b.call(step.function, "void", arguments, i64(0), count)
    b.branch(after)
    b.start(after)


def _known_small(grid: Size, work: int) -> bool:
    return isinstance(grid, int) and (grid <= 1 or grid * work <= PARALLEL_FROM_NS)


def _emit_worker(module: Module) -> None:
    """What each thread of the pool runs: its share of the programs."""
    if any(f"@{_WORKER}(" in function.split("\n", 1)[0] for function in module.functions):
        return
    b = Function(module, _WORKER, [("ptr", "context")])
    context = b.args[0]
    function = b.load("ptr", context, 8)
    arguments = b.load("ptr", b.gep(context, i64(1), "i64"), 8)
    count = b.load("i64", b.gep(context, i64(2), "i64"), 8)
    thread = b.convert("sext", b.call("omp_get_thread_num", "i32"), "i64")
    threads = b.convert("sext", b.call("omp_get_num_threads", "i32"), "i64")
    begin = b.binary("sdiv", b.mul(count, thread), threads)
    end = b.binary("sdiv", b.mul(count, b.add(thread, i64(1))), threads)
    b.do(f"call void {function.name}({arguments}, {begin}, {end})")
    b.finish()
