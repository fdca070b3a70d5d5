"""The host side of programs as machine code: one function that runs a tape of steps, with no Python between kernels.

A tape is an array of 64-bit words, written when the sizes of a call are known; addresses of buffers stand in a table
beside it, which a call fills. The launcher is the same for all programs: it is compiled once in a process. Kernels with
enough work run on the OpenMP pool that the framework already has, or on a pool of the launcher's own (`thread_pool`)
where there is none; small ones run in the calling thread.

    head:    how many steps there are, and how long the table is: behind it lies the launcher's scratch
    kernel:  0, function, programs, parallel, n, then n places in the table; the arguments are gathered to `scratch`
    product: 1, routine, wide, m, n, k, transpose a, transpose b, lda, ldb, ldc,
             then place and offset in bytes of a, b and c, then the batch: count, and the steps of a, b and c in bytes
    address: 2, place, buffer, bytes: the address so far behind a buffer's goes to a place in the table
    loop:    3, tape, turns (-1: without bound), place of the condition (-1: none), n, then n times a place in the
             table and by how many bytes the address there moves on after a turn
    branch:  4, place of the condition, the tape that runs if it holds, and the one that runs if it does not
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from weft.backends.cpu.thread_pool import PARALLEL, thread_pool
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V, i64

LAUNCHER = "weft_run"
KERNEL, PRODUCT, ADDRESS, LOOP, BRANCH = 0, 1, 2, 3, 4
HEAD_WORDS = 2
PRODUCT_WORDS, ADDRESS_WORDS, LOOP_WORDS, BRANCH_WORDS = 22, 4, 5, 4
_WORKER = "weft_worker"
_ROW_MAJOR = 101


def launcher_module(triple: str, *, own_pool: bool = False) -> str:
    """The LLVM IR of `void weft_run(ptr tape, ptr table, i64 threads)`, with a pool of its own or for OpenMP's."""
    module = Module(triple)
    b = Function(module, LAUNCHER, [("ptr", "tape"), ("ptr", "table"), ("i64", "threads")])
    tape, table, threads = b.args
    head = _Reader(b, tape, i64(0))
    steps, scratch = head.word(0), b.gep(table, head.word(1), "i64")
    cursor = b.alloca("i64", 1, 8)
    b.store(i64(HEAD_WORDS), cursor, 8)
    with b.loop(i64(0), steps, i64(1)):
        reader = _Reader(b, tape, b.load("i64", cursor, 8))
        with _either(b, b.icmp("eq", reader.word(0), i64(KERNEL))) as otherwise:
            used = _kernel(b, reader, table, scratch, threads, own_pool)
            b.store(b.add(reader.start, used), cursor, 8)
            otherwise()
            with _either(b, b.icmp("eq", reader.word(0), i64(PRODUCT))) as or_else:
                _product(b, reader, table)
                b.store(b.add(reader.start, i64(PRODUCT_WORDS)), cursor, 8)
                or_else()
                with _either(b, b.icmp("eq", reader.word(0), i64(ADDRESS))) as or_control:
                    _address(b, reader, table)
                    b.store(b.add(reader.start, i64(ADDRESS_WORDS)), cursor, 8)
                    or_control()
                    with _either(b, b.icmp("eq", reader.word(0), i64(LOOP))) as or_branch:
                        _loop(b, reader, table, threads)
                        b.store(b.add(reader.start, b.add(b.mul(reader.word(4), i64(2)), i64(LOOP_WORDS))), cursor, 8)
                        or_branch()
                        _branch(b, reader, table, threads)
                        b.store(b.add(reader.start, i64(BRANCH_WORDS)), cursor, 8)
    b.finish()
    _worker(module, own_pool)
    return str(module) + (thread_pool(triple) if own_pool else "")


class _Reader:
    """The words of one step."""

    def __init__(self, b: Function, tape: V, start: V) -> None:
        self.b, self.tape, self.start = b, tape, start

    def word(self, position: int | V) -> V:
        offset = self.b.add(self.start, i64(position) if isinstance(position, int) else position)
        return self.b.load("i64", self.b.gep(self.tape, offset, "i64"), 8)

    def pointer(self, position: int) -> V:
        return self.b.emit("ptr", f"inttoptr {self.word(position)} to ptr")


@contextmanager
def _either(b: Function, condition: V) -> Generator[Callable[[], None], None, None]:
    """`if ... else ...`: what is emitted before the yielded function is called belongs to the first branch."""
    yes, no, after = b.label("then"), b.label("else"), b.label("after")
    b.branch_if(condition, yes, no)
    b.start(yes)

    def otherwise() -> None:
        b.branch(after)
        b.start(no)

    yield otherwise
    b.branch(after)
    b.start(after)


def _kernel(b: Function, step: _Reader, table: V, scratch: V, threads: V, own_pool: bool) -> V:
    """Gather a kernel's arguments and run it; returns the number of words of the step."""
    function, count, parallel, arguments = step.pointer(1), step.word(2), step.word(3), step.word(4)
    with b.loop(i64(0), arguments, i64(1)) as i:
        place = step.word(b.add(i, i64(5)))
        value = b.load("i64", b.gep(table, place, "i64"), 8)
        b.store(value, b.gep(scratch, i, "i64"), 8)
    several = b.binary("and", b.icmp("sgt", threads, i64(1)), b.icmp("ne", parallel, i64(0)))
    with _either(b, several) as otherwise:
        context = b.alloca("i64", 3, 8)
        b.store(function, context, 8)
        b.store(scratch, b.gep(context, i64(1), "i64"), 8)
        b.store(count, b.gep(context, i64(2), "i64"), 8)
        worker = V("ptr", f"@{_WORKER}")
        if own_pool:
            b.do(f"call void @{PARALLEL}({worker}, {context}, {threads})")
        else:
            # Always all threads: GNU's pool ends those that a smaller team has no use for, and has to make them anew.
            b.call("GOMP_parallel", "void", worker, context, b.convert("trunc", threads, "i32"), V("i32", "0"))
        otherwise()
        b.do(f"call void {function.name}({scratch}, {i64(0)}, {count})")
    return b.add(arguments, i64(5))


def _product(b: Function, step: _Reader, table: V) -> None:
    """Call BLAS for every matrix of a batch; those that go to one place, or to what is to be kept, are added there."""
    routine, wide = step.pointer(1), step.word(2)
    narrow = [b.convert("trunc", step.word(position), "i32") for position in range(3, 11)]
    m, n, k, ta, tb, lda, ldb, ldc = narrow
    bases: list[V] = []
    for position in (11, 13, 15):
        address = b.load("i64", b.gep(table, step.word(position), "i64"), 8)
        bases.append(b.add(address, step.word(position + 1)))
    with b.loop(i64(0), step.word(17), i64(1)) as i:
        a, c, d = (
            b.emit("ptr", f"inttoptr {b.add(base, b.mul(i, step.word(position)))} to ptr")
            for base, position in zip(bases, (18, 19, 20), strict=True)
        )
        order = V("i32", str(_ROW_MAJOR))
        again = b.binary("and", b.icmp("sgt", i, i64(0)), b.icmp("eq", step.word(20), i64(0)))
        again = b.binary("or", again, b.icmp("ne", step.word(21), i64(0)))
        with _either(b, b.icmp("eq", wide, i64(0))) as otherwise:
            for element in ("float", "double"):
                one, zero = V(element, "1.0"), V(element, "0.0")
                kept = b.select(again, one, zero)
                arguments = (order, ta, tb, m, n, k, one, a, lda, c, ldb, kept, d, ldc)
                b.do(f"call void {routine.name}({', '.join(map(str, arguments))})")
                if element == "float":
                    otherwise()


def _address(b: Function, step: _Reader, table: V) -> None:
    base = b.load("i64", b.gep(table, step.word(2), "i64"), 8)
    b.store(b.add(base, step.word(3)), b.gep(table, step.word(1), "i64"), 8)


def _loop(b: Function, step: _Reader, table: V, threads: V) -> None:
    """Run a tape turn after turn."""
    tape, turns, condition, moves = step.pointer(1), step.word(2), step.word(3), step.word(4)
    turn = b.alloca("i64", 1, 8)
    b.store(i64(0), turn, 8)
    head, again, check, body, after = (b.label(hint) for hint in ("turn", "again", "check", "body", "done"))
    b.branch(head)
    b.start(head)
    b.branch_if(b.icmp("ne", b.load("i64", turn, 8), turns), again, after)
    b.start(again)
    b.branch_if(b.icmp("slt", condition, i64(0)), body, check)
    b.start(check)
    b.branch_if(_is_true(b, table, condition), body, after)
    b.start(body)
    b.do(f"call void @{LAUNCHER}({tape}, {table}, {threads})")
    with b.loop(i64(0), moves, i64(1)) as i:
        first = b.add(b.mul(i, i64(2)), i64(LOOP_WORDS))
        entry = b.gep(table, step.word(first), "i64")
        b.store(b.add(b.load("i64", entry, 8), step.word(b.add(first, i64(1)))), entry, 8)
    b.store(b.add(b.load("i64", turn, 8), i64(1)), turn, 8)
    b.branch(head)
    b.start(after)


def _branch(b: Function, step: _Reader, table: V, threads: V) -> None:
    """Run one of two tapes."""
    holds = _is_true(b, table, step.word(1))
    tape = b.select(holds, step.pointer(2), step.pointer(3))
    b.do(f"call void @{LAUNCHER}({tape}, {table}, {threads})")


def _is_true(b: Function, table: V, place: V) -> V:
    """Whether a buffer holds true."""
    pointer = b.emit("ptr", f"inttoptr {b.load('i64', b.gep(table, place, 'i64'), 8)} to ptr")
    return b.icmp("ne", b.load("i8", pointer, 1), V("i8", "0"))


def _worker(module: Module, own_pool: bool) -> None:
    """What each thread of the pool runs: its share of the programs. OpenMP's pool is asked which thread it is."""
    b = Function(module, _WORKER, [("ptr", "context"), *([("i64", "thread"), ("i64", "threads")] if own_pool else [])])
    context = b.args[0]
    function = b.load("ptr", context, 8)
    arguments = b.load("ptr", b.gep(context, i64(1), "i64"), 8)
    count = b.load("i64", b.gep(context, i64(2), "i64"), 8)
    if own_pool:
        _, thread, threads = b.args
    else:
        thread = b.convert("sext", b.call("omp_get_thread_num", "i32"), "i64")
        threads = b.convert("sext", b.call("omp_get_num_threads", "i32"), "i64")
    begin = b.binary("sdiv", b.mul(count, thread), threads)
    end = b.binary("sdiv", b.mul(count, b.add(thread, i64(1))), threads)
    b.do(f"call void {function.name}({arguments}, {begin}, {end})")
    b.finish()
