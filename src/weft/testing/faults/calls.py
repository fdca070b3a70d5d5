"""Faults of compiled functions: many threads, forks, calls within calls, interrupts, little memory."""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
import gc
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from weft.forks import COMPILING
from weft.testing.faults.children import GOOD, WRONG, Outcome, in_child
from weft.testing.faults.programs import FUNCTIONS, Program, Tensors, difference

SWITCH_SECONDS = 1e-4
"""How long a thread runs before another may: the less, the more ways they meet."""


def _trouble(compiled: Callable[..., Any], function: Callable[..., Any], arguments: Tensors, name: str) -> str | None:
    others = [argument.clone() for argument in arguments]
    with torch.no_grad():
        given, expected = compiled(*arguments), function(*others)  # eager alone would hang in a forked child
    several = [[x] if isinstance(x, torch.Tensor) else list(x) for x in (given, expected)]
    return difference([*several[0], *arguments], [*several[1], *others], name)


def _functions(**options: Any) -> list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[[], Tensors]]]:
    made: list[Any] = []
    for name, (function, draw) in FUNCTIONS.items():
        compiled = torch.compile(function, backend="weft", options=options or None)
        with torch.no_grad():
            compiled(*draw())
        made.append((name, compiled, function, draw))
    return made


def _several_sizes(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 2, -1).cumsum(0)


def threads(programs: Sequence[Program], draw: random.Random, count: int = 8) -> Iterator[Outcome]:
    """Threads that call the same functions, of known and of symbolic sizes, and compile others meanwhile."""
    import sys

    functions = _functions()
    sized = torch.compile(_several_sizes, backend="weft", dynamic=True)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        while True:
            troubles: list[str] = []
            until = time.monotonic() + 5

            def work(seed: int, until: float = until, troubles: list[str] = troubles) -> None:
                mine = random.Random(seed)
                try:
                    while time.monotonic() < until and not troubles:
                        if mine.randrange(40) == 0:
                            program = mine.choice(programs)
                            trouble = program.trouble(program.compiled(cache=bool(mine.randrange(2))))
                        elif mine.randrange(4) == 0:
                            x = torch.randn(mine.randint(2, 30), mine.randint(2, 60))
                            trouble = _trouble(sized, _several_sizes, [x], "several sizes")
                        else:
                            name, compiled, function, make = mine.choice(functions)
                            trouble = _trouble(compiled, function, make(), name)
                        if trouble is not None:
                            troubles.append(trouble)
                except Exception as error:  # it is what the run is for
                    troubles.append(f"raised {error!r:.300}")

            workers = [threading.Thread(target=work, args=[draw.randrange(1 << 30)]) for _ in range(count)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join(120)
            if any(worker.is_alive() for worker in workers):
                troubles.append("a thread hangs")
            yield Outcome(WRONG, troubles[0]) if troubles else Outcome(GOOD)
    finally:
        sys.setswitchinterval(switch)


def forks(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """Children that are forked while other threads compile and call: they compile and call, too."""
    functions = _functions()
    while True:
        done = threading.Event()
        troubles: list[str] = []

        def work(seed: int, done: threading.Event = done, troubles: list[str] = troubles) -> None:
            mine = random.Random(seed)
            while not done.is_set():
                name, compiled, function, make = mine.choice(functions)
                trouble = _trouble(compiled, function, make(), name)
                if trouble is None and mine.randrange(30) == 0:
                    program = mine.choice(programs)
                    trouble = program.trouble(program.compiled(cache=False))
                if trouble is not None:
                    troubles.append(trouble)
                    return

        workers = [threading.Thread(target=work, args=[draw.randrange(1 << 30)], daemon=True) for _ in range(3)]
        for worker in workers:
            worker.start()

        def child() -> str | None:
            for name, compiled, function, make in functions:
                if (trouble := _trouble(compiled, function, make(), name)) is not None:
                    return trouble
            program = draw.choice(programs)
            return program.trouble(program.compiled(cache=False))

        try:
            for _ in range(4):
                time.sleep(draw.uniform(0, 0.05))
                yield in_child(child, 120)
        finally:
            done.set()
            for worker in workers:
                worker.join(60)
        if troubles:
            yield Outcome(WRONG, troubles[0])


def calls_within(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """Calls in the middle of calls: from hooks, finalisers, signal handlers and backward passes."""
    functions = _functions()

    def check() -> str | None:
        name, compiled, function, make = draw.choice(functions)
        return _trouble(compiled, function, make(), name)

    def hooks() -> str | None:
        module = torch.nn.Linear(16, 16)
        compiled = torch.compile(module, backend="weft")
        said: list[str | None] = []

        def hook(*_: Any) -> None:
            said.append(check())

        module.register_forward_hook(hook)
        x = torch.randn(5, 16, requires_grad=True)
        x.register_hook(hook)
        result = compiled(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (said.append(check()), t)[1], lambda t: t):
            compiled(x).sum().backward()
        return next(filter(None, said), None) or difference([result], [module(x)], "a hooked module")

    def finaliser() -> str | None:
        said: list[str | None] = []

        class Dropped:
            def __del__(self) -> None:
                said.append(check())

        for _ in range(20):
            cycle: list[Any] = [Dropped()]
            cycle.append(cycle)
            del cycle
            said.append(check())
        gc.collect()
        return next(filter(None, said), None)

    def signalled() -> str | None:
        said: list[str | None] = []

        def handler(*_: object) -> None:
            said.append(check())

        before = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(20):
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, 2e-3))
                program = draw.choice(programs)
                said.append(check() if draw.randrange(4) else program.trouble(program.compiled(cache=False)))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return next(filter(None, said), None)

    while True:
        for deed in (hooks, finaliser, signalled):
            try:
                trouble = deed()
            except Exception as error:  # it is what the run is for
                trouble = f"raised {error!r:.300}"
            yield Outcome(WRONG, f"{deed.__name__}: {trouble}") if trouble else Outcome(GOOD)


class _Interrupt(BaseException):
    """What Ctrl-C is in other words."""


def interrupts(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """Exceptions that come from outside at any moment of compiling and calling; the next call is as if none had."""
    functions = _functions()

    def interrupted(deed: Callable[[], Any], longest: float, by_thread: bool) -> None:
        ident, done = threading.get_ident(), threading.Event()

        def raise_there() -> None:
            done.wait(draw.uniform(0, longest))
            if not done.is_set():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(_Interrupt))

        def handler(*_: object) -> None:
            raise _Interrupt

        before = signal.signal(signal.SIGALRM, handler)
        other = threading.Thread(target=raise_there) if by_thread else None
        try:
            if other is not None:
                other.start()
            else:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-5, longest))
            deed()
            done.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
            if other is not None:
                other.join()
            for _ in range(100):  # one that was sent too late comes here
                pass
        finally:
            done.set()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    while True:
        program = draw.choice(programs)
        name, compiled, function, make = draw.choice(functions)
        arguments = make()
        compiling = draw.randrange(3) == 0

        def compile_one(program: Program = program) -> None:
            program.compiled(cache=bool(draw.randrange(2)))

        def call_often(compiled: Callable[..., Any] = compiled, arguments: Tensors = arguments) -> None:
            for _ in range(20):
                compiled(*arguments)

        try:
            longest = 0.3 if compiling else 2e-3
            interrupted(compile_one if compiling else call_often, longest, bool(draw.randrange(2)))
        except _Interrupt:
            pass
        except Exception as error:
            yield Outcome(WRONG, f"an interrupt became {error!r:.300}")
            continue
        try:
            yield _state_after() or _good(_trouble(compiled, function, make(), name), program)
        except _Interrupt:
            yield Outcome(GOOD, "")


def _good(trouble: str | None, program: Program) -> Outcome:
    trouble = trouble or program.trouble(program.compiled(cache=False))
    return Outcome(WRONG, trouble) if trouble else Outcome(GOOD)


def _state_after() -> Outcome | None:
    """What an interrupt must leave as it was."""
    if not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        return Outcome(WRONG, "gradients are off after an interrupt")
    if not gc.isenabled():
        gc.enable()
        return Outcome(WRONG, "the garbage collector is off after an interrupt")
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(COMPILING.acquire(timeout=20) and not COMPILING.release()))
    other.start()
    other.join()
    return None if taken == [True] else Outcome(WRONG, "the compiler is locked after an interrupt")


def short_memory(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """An address space that ends soon: an error of memory or a right result, and right results afterwards."""
    while True:
        program, spare = draw.choice(programs), int(2 ** draw.uniform(10, 27))

        def limited(program: Program = program, spare: int = spare) -> str | None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGESIZE") + spare, hard))
            try:
                trouble = program.trouble(program.compiled(cache=False))
            except (MemoryError, RuntimeError, OSError) as error:
                expected = any(word in repr(error).lower() for word in ("memory", "alloc", "errno 12"))
                trouble = None if expected else f"raised {error!r:.300}"
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
            return trouble or program.trouble(program.compiled(cache=False))

        yield in_child(limited, 120)
