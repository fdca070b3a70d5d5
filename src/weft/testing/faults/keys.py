"""Whether keys of the cache are complete: what one state compiles is loaded, or not, under another, and right.

A state is what a function's arguments are like, and what the process is set to. All states of a function share one
cache, in random order, so that any two whose keys are equal and whose programs differ come to light.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from weft.testing.faults.children import GOOD, Outcome, in_child
from weft.testing.faults.programs import Program, difference, use_cache
from weft.testing.faults.storage import folder

Pair = tuple[torch.Tensor, torch.Tensor]


def _complex() -> torch.Tensor:
    return torch.complex(torch.randn(4, 6), torch.randn(4, 6))


def _memory() -> torch.Tensor:
    return torch.randn(120)


def _in_one(first: int, second: int) -> Callable[[], Pair]:
    def make() -> Pair:
        memory = _memory()
        return memory[first : first + 24].view(4, 6), memory[second : second + 24].view(4, 6)

    return make


ARGUMENTS: dict[str, Callable[[], Pair]] = {
    "plain": lambda: (torch.randn(4, 6), torch.randn(4, 6)),
    "negated": lambda: (_complex().conj().imag, torch.randn(4, 6)),
    "parts": lambda: (_complex().imag, torch.randn(4, 6)),
    "complex": lambda: (_complex(), _complex()),
    "conjugated": lambda: (_complex().conj(), _complex()),
    "both conjugated": lambda: (_complex().conj(), _complex().conj()),
    "in one memory": _in_one(0, 24),
    "overlapping": _in_one(0, 12),
    "the second first": _in_one(30, 6),
    "from the second element": lambda: (_memory()[1:25].view(4, 6), torch.randn(4, 6)),
    "turned": lambda: (torch.randn(6, 4).t(), torch.randn(4, 6)),
    "spread": lambda: (torch.randn(4, 12)[:, ::2], torch.randn(4, 6)),
    "expanded": lambda: (torch.randn(4, 1).expand(4, 6), torch.randn(6).expand(4, 6)),
    "double": lambda: (torch.randn(4, 6).double(), torch.randn(4, 6).double()),
    "half": lambda: (torch.randn(4, 6).half(), torch.randn(4, 6).half()),
    "mixed": lambda: (torch.randn(4, 6), torch.randn(4, 6).double()),
    "whole": lambda: (torch.randint(-3, 4, (4, 6)), torch.randint(-3, 4, (4, 6))),
    "trained": lambda: (torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)),
    "the other trained": lambda: (torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)),
    "parameter": lambda: (torch.nn.Parameter(torch.randn(4, 6)), torch.randn(4, 6)),
}


@contextmanager
def _set(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Generator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


SETTINGS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "as it is": contextlib.nullcontext,
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "doubles": lambda: _set(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: _set(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "one thread": lambda: _set(torch.get_num_threads, torch.set_num_threads, 1),
    "medium products": lambda: _set(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "no library": lambda: _set(
        lambda: torch.backends.mkldnn.enabled, lambda on: setattr(torch.backends.mkldnn, "enabled", on), False
    ),
}


def _viewed(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return b.reshape(3, 8), a.clone(), a.contiguous()[1:], a * 2 + b


def _created(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    numbers = torch.where(a.real > 0, 0.5, 2.0) / 3
    return numbers, torch.linspace(0, 1, 5), torch.full((2,), 0.1), (b.to(a.dtype) + a).sum(0)


def _multiplied(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (a.real.double() @ b.real.double().t(), a.abs() + 1)


FUNCTIONS = (_viewed, _created, _multiplied)


def keys(programs: Sequence[Program], draw: random.Random) -> Iterator[Outcome]:
    """Each function in each state, in random order over one cache; each process has a part of them."""
    while True:
        with folder() as root:
            function = draw.choice(FUNCTIONS)
            states = [(name, "as it is") for name in ARGUMENTS] + [
                (draw.choice(["plain", "trained", "whole"]), setting) for setting in SETTINGS
            ]
            draw.shuffle(states)
            for start in range(0, len(states), 10):
                part = states[start : start + 10]
                outcome = in_child(partial(_right, function, part, str(root)), 600)
                yield from [Outcome(GOOD)] * (len(part) - 1)
                yield outcome


def _right(function: Callable[..., Any], states: Sequence[tuple[str, str]], root: str) -> str | None:
    use_cache(root)
    for arguments, setting in states:
        torch.compiler.reset()
        given = ARGUMENTS[arguments]()
        with SETTINGS[setting]():
            try:
                expected = function(*given)
            except RuntimeError:
                continue  # eager has no such op for these
            found = torch.compile(function, backend="weft")(*given)
        name = f"{function.__name__} of {arguments} arguments, {setting}"
        for one, other in zip(found, expected, strict=True):
            if (one.dtype, one.shape, one.requires_grad) != (other.dtype, other.shape, other.requires_grad):
                return f"{name}: {one.dtype} {one.shape} {one.requires_grad}, expected {other.dtype} {other.shape}"
        rounding = setting in ("autocast", "medium products") or arguments == "half"
        exact = [(one.detach(), other.detach()) for one, other in zip(found, expected, strict=True)]
        if rounding:
            exact = [(one.float(), other.float()) for one, other in exact if not one.is_complex()]
            if all(torch.allclose(one, other, rtol=2e-2, atol=2e-2) for one, other in exact):
                continue
        trouble = difference([one for one, _ in exact], [other for _, other in exact], name)
        if trouble is not None:
            return trouble
    return None
