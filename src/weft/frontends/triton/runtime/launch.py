"""The way from a call `kernel[grid](...)` to running code: arguments bound, classified, the compiled kernel found.

What was compiled is kept by the key that the arguments give (`specialise.py`); a launch that finds its kernel touches
nothing else.
"""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import struct
from collections.abc import Hashable, Iterable, Iterator, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.frontends.triton.compiler.source import Scope
from weft.frontends.triton.errors import KernelTypeError, KernelValueError, OptionError, ReadOnlyError
from weft.frontends.triton.language.constants import unwrap
from weft.frontends.triton.runtime.binding import make_bind, make_classify, make_launch, with_options
from weft.frontends.triton.runtime.hooks import COMPILED, compiling_facts
from weft.frontends.triton.runtime.ignored_options import tell_ignored
from weft.frontends.triton.runtime.jit import COUNTS, OPTIONS, Grid, JITCallable, JITFunction, is_count, python_frames
from weft.frontends.triton.runtime.kernel_handle import Origin
from weft.frontends.triton.runtime.memory_places import device_of
from weft.frontends.triton.runtime.specialise import Described, Words, describe
from weft.ir.types import DType

if TYPE_CHECKING:
    from weft.frontends.triton.runtime.compiled import CompiledKernel
    from weft.frontends.triton.runtime.device_compiled import DeviceKernel
    from weft.tile.dialect import KernelOp

Key: TypeAlias = "tuple[Hashable, ...]"

_LONGEST_SIDE, _MOST_PROGRAMS = (1 << 31) - 1, (1 << 63) - 1
_EASY_SIDE = 1 << 20
"""Three sides of this length are not too large."""
_LARGEST_FLOAT = 3.4028234663852886e38
"""Of 32 bits."""


class Launcher:
    """Launches one kernel, and keeps what was compiled of it by key."""

    def __init__(self, function: JITFunction) -> None:
        self.function = function
        self.bind = make_bind(function)
        self._classify = make_classify(function)
        self.kernels: dict[Key, CompiledKernel | DeviceKernel] = {}
        self.tiles: dict[str, tuple[KernelOp, tuple[tuple[str, str], ...]]] = {}
        """Tile IR that was made for graphs of torch: the kernel, and the messages of its checks."""
        self._used: list[tuple[Scope, str, Any]] = []
        parts = self.kernels, self._used, triple, self._launch
        self.launch = make_launch(function, *parts, watched=True)
        """Launch over a grid: takes the grid, then what the kernel takes."""
        self.run = make_launch(function, *parts, watched=False)
        """The same where it is known that compiled code is to run."""

    def _launch(
        self, grid: Grid, key: Key, words: Words, values: Sequence[Any], options: dict[str, Any]
    ) -> CompiledKernel | DeviceKernel:
        """A launch that is out of the ordinary: it compiles, or there are options, or a mistake."""
        if any(scope.get(name) is not value for scope, name, value in self._used):
            self._forget()
        self._check_options(options, on_gpu=self._is_on_gpu(key))
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self._compile(values, options, key)
        try:
            kernel.launch(self._grid(grid, values), words)
        except (OverflowError, struct.error):
            self._check_ranges(kernel, values)
            raise
        return kernel

    def compiled(self, args: Sequence[Any], keywords: dict[str, Any]) -> CompiledKernel | DeviceKernel:
        """The kernel compiled for arguments like these."""
        key, _, values, options = self._classify(*args, **keywords)
        if any(scope.get(name) is not value for scope, name, value in self._used):
            self._forget()
        self._check_options(options, on_gpu=self._is_on_gpu(key))
        key = with_options(key, options)
        return self.kernels.get(key) or self._compile(values, options, key)

    def describe(self, args: Sequence[Any], keywords: dict[str, Any]) -> tuple[list[Described], Any]:
        """What a kernel is compiled for by arguments like these: each in full, and which tensors share memory."""
        key, _, values, _ = self._classify(*args, **keywords)
        return self._describe(values, key), key[-1]

    def interpret(self, args: Sequence[Any], grid: Grid, keywords: dict[str, Any]) -> None:
        """Call the Python function itself for each program of the grid."""
        from weft.frontends.triton.runtime.interpret_launch import interpret_launch

        values, options = self.bind(*args, **keywords)
        self._check_options(options, on_gpu=False)
        constants = {parameter.name for parameter in self.function.params if parameter.is_constexpr}
        given = {
            name: unwrap(value) if name in constants else value for name, value in zip(self.names, values, strict=True)
        }
        token = python_frames.set(True)
        try:
            interpret_launch(self.function.fn, self._grid(grid, values), given, constants)
        finally:
            python_frames.reset(token)

    @property
    def names(self) -> list[str]:
        return self.function.arg_names

    def _forget(self) -> None:
        """A global that the kernel uses has changed: what was compiled does not hold any more."""
        self.kernels.clear()
        self._used.clear()

    def _grid(self, grid: Grid, values: Sequence[Any]) -> tuple[int, int, int]:
        if callable(grid):
            grid = grid({name: unwrap(value) for name, value in zip(self.names, values, strict=True)})
        return triple(grid)

    def _is_on_gpu(self, key: Key) -> bool:
        return device_of(key[: len(self.names)]) is not None

    def _check_options(self, options: dict[str, Any], *, on_gpu: bool) -> None:
        for name in options:
            if name not in OPTIONS:
                raise OptionError(
                    f"Keyword argument {name} was specified but unrecognised by {self.function.__name__}",
                    hint=f"its parameters are {', '.join(self.names)}",
                )
        for name in COUNTS.keys() & options.keys():
            if not is_count(name, options[name]):
                raise KernelValueError(
                    f"{name} of {self.function.__name__} is {COUNTS[name]}, not {options[name]!r}",
                )
        tell_ignored(options, self.function.__name__, on_gpu=on_gpu)

    def _check_ranges(self, kernel: CompiledKernel | DeviceKernel, values: Sequence[Any]) -> None:
        """Say which number does not fit into the type of its parameter."""
        arguments = iter(kernel.code.arguments)
        for parameter, value in zip(self.function.params, values, strict=True):
            words: Words = []
            parameter.classifier(value)(value, words, [])
            for word, argument in zip(words, arguments, strict=False):
                if not argument.pointer and not _fits(word, argument.dtype):
                    raise KernelTypeError(f"argument {parameter.name}: {word} does not fit into {argument.dtype.name}")

    def _compile(self, values: Sequence[Any], options: dict[str, Any], key: Key) -> CompiledKernel | DeviceKernel:
        groups: Any = key[-1]
        described = self._describe(values, key)
        device = device_of(key[: len(self.names)])
        if device is None:
            from weft.frontends.triton.runtime.compiling import compile_for

            kernel = compile_for(self.function, described, groups, bool(options.get("debug", self.function.debug)))
            self._check_written(described, kernel.code.written)
        else:
            from weft.frontends.triton.runtime.device_compiling import compile_for_device

            kernel = compile_for_device(self.function, described, groups, device, options)
        kernel.origin = Origin(self.function, described, groups, dict(options))
        self.kernels[key] = kernel
        if COMPILED.calls:
            COMPILED(**compiling_facts(self.function, described, options))
        self._watch([self.function, *values])
        return kernel

    def _check_written(self, described: Sequence[Described], written: Sequence[int]) -> None:
        """Refuse a kernel that writes to memory which must not be written to."""
        words = ((name, word) for name, each in zip(self.names, described, strict=True) for word in each.words)
        for number, (name, word) in enumerate(words):
            if word.read_only and number in written:
                raise ReadOnlyError(
                    f"{self.function.__name__} writes to its argument {name}, whose memory is read-only",
                    hint="pass a copy, or memory that may be written to",
                )

    def _watch(self, values: Sequence[Any]) -> None:
        """Have later launches see when a name is bound anew that the kernel, or a function given to it, uses."""
        known = {(id(scope), name) for scope, name, _ in self._used}
        for scope, name, value in used_by(values):
            if (id(scope), name) not in known:
                known.add((id(scope), name))
                self._used.append((scope, name, value))

    def _describe(self, values: Sequence[Any], key: Key) -> list[Described]:
        return [
            describe(parameter, value, part)
            for parameter, value, part in zip(self.function.params, values, key, strict=False)
        ]


def used_by(values: Sequence[Any]) -> Iterator[tuple[Scope, str, Any]]:
    """The names that functions among the values use."""
    for value in map(unwrap, values):
        if isinstance(value, tuple | list):
            yield from used_by(value)
        elif isinstance(value, JITCallable):
            yield from value.fingerprint().used


def _fits(word: float, dtype: DType) -> bool:
    if dtype.is_float:
        return dtype.bits == 64 or not math.isfinite(word) or abs(word) <= _LARGEST_FLOAT
    lowest, bits = (0, dtype.bits) if dtype.name.startswith("ui") else (-(1 << (dtype.bits - 1)), dtype.bits - 1)
    return dtype.bits == 1 or lowest <= word < 1 << bits


def triple(grid: Any) -> tuple[int, int, int]:
    """The sides of a grid, all three of them."""
    match grid:
        case (int() as x,) if 0 <= x <= _LONGEST_SIDE:
            return x, 1, 1
        case (int() as x, int() as y) if 0 <= x <= _LONGEST_SIDE and 0 <= y <= _LONGEST_SIDE:
            return x, y, 1
        case (int() as x, int() as y, int() as z) if 0 <= min(x, y, z) <= max(x, y, z) <= _EASY_SIDE:
            return x, y, z
        case _:
            return _checked(unwrap(grid))


def _checked(grid: Any) -> tuple[int, int, int]:
    sides: tuple[Any, ...] = tuple(grid) if isinstance(grid, Iterable) and not isinstance(grid, str) else (grid,)
    if not 1 <= len(sides) <= 3:
        raise KernelValueError(f"a grid has one to three sides, not {len(sides)}")
    try:
        x, y, z = (index(unwrap(side)) for side in (*sides, 1, 1)[:3])
    except TypeError as error:
        raise KernelValueError(
            f"the sides of a grid are integers, not {', '.join(map(repr, sides))}",
            hint="divide sizes by triton.cdiv(n, BLOCK), or //, which give integers",
        ) from error
    if min(x, y, z) < 0:
        raise KernelValueError(f"the sides of a grid are not negative: {sides}")
    if max(x, y, z) > _LONGEST_SIDE or x * y * z > _MOST_PROGRAMS:
        raise KernelValueError(
            f"the grid {sides} is too large: a side has at most {_LONGEST_SIDE:,} programs,"
            f" as tl.program_id is an int32, and all sides together {_MOST_PROGRAMS:,}"
        )
    return x, y, z
