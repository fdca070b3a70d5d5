"""Shrinks a graph function that fails to a small one that fails the same way, greedily.

    def interesting(function: FuncOp) -> bool: ...
    small = reduce_function(function, interesting)

Moves, from coarse to fine, until none succeeds: keep fewer outputs; keep fewer ops, what they need of others comes in
as arguments; put an operand in the place of a result; use one argument for two; drop strides; make symbols numbers,
sizes small and types f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from weft.errors import WeftError
from weft.ir.expr import Expr, Size, substitute, symbols_of
from weft.ir.types import DType, Tensor, f32
from weft.ops.graph import FuncOp
from weft.testing.reduce.editable import Program, build, function_of, program_of

Interesting = Callable[[FuncOp], bool]
"""Whether a candidate still fails the same way. A `WeftError` says that it is no program at all."""
Progress = Callable[[int, int], None]
"""Called with the number of ops that are left and the number of candidates that were tried."""


def reduce_function(function: FuncOp, interesting: Interesting, progress: Progress | None = None) -> FuncOp:
    """The smallest function found that is still interesting; the function itself must be."""
    return _Reducer(program_of(function), interesting, progress or (lambda ops, tried: None)).run()


@dataclass
class _Reducer:
    program: Program
    interesting: Interesting
    progress: Progress
    tried: int = 0

    def run(self) -> FuncOp:
        if not self._fails(self.program):
            raise WeftError("the program does not fail", hint="it may need other inputs: try another --seed")
        moves = (_fewer_outputs, _fewer_nodes, _operands_for_results, _shared_arguments, _plain_strides, _sizes, _types)
        shrunk = True
        while shrunk:
            shrunk = any([self._exhaust(move) for move in moves])
        return function_of(self.program)

    def _exhaust(self, move: Callable[[Program, dict[int, Tensor]], Iterator[Program]]) -> bool:
        """Apply a move as long as it succeeds; whether it ever did."""
        once = False
        while (smaller := self._first(move)) is not None:
            self.program, once = smaller, True
        return once

    def _first(self, move: Callable[[Program, dict[int, Tensor]], Iterator[Program]]) -> Program | None:
        _, types = build(self.program)
        for candidate in move(self.program, types):
            if candidate.outputs and self._fails(candidate):
                return candidate
        return None

    def _fails(self, candidate: Program) -> bool:
        self.tried += 1
        self.progress(len(self.program.nodes), self.tried)
        try:
            return self.interesting(function_of(candidate))
        except WeftError:
            return False


def _fewer_outputs(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    outputs = program.outputs
    if len(outputs) > 2:
        half = len(outputs) // 2
        yield replace(program, outputs=outputs[:half]).live()
        yield replace(program, outputs=outputs[half:]).live()
    if len(outputs) > 1:
        for position in range(len(outputs)):
            yield replace(program, outputs=(*outputs[:position], *outputs[position + 1 :])).live()


def _fewer_nodes(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    """Leave out runs of nodes, from half of them down to single ones."""
    count = len(program.nodes)
    width = count // 2
    while width >= 1:
        for start in range(0, count, width):
            kept = [*range(start), *range(min(start + width, count), count)]
            for expose in (False, True):
                candidate = program.keep(kept, types, expose=expose)
                if candidate is not None and len(candidate.nodes) < count:
                    yield candidate
        width //= 2


def _operands_for_results(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    for node in reversed(program.nodes):
        for result in node.results:
            for operand in dict.fromkeys(node.operands):
                if types[operand] == types[result]:
                    candidate = program.renamed(result, operand)
                    if candidate.made & set(candidate.outputs):
                        yield candidate


def _shared_arguments(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    arguments = list(program.arguments)
    for position, kept in enumerate(arguments):
        for other in arguments[position + 1 :]:
            if types[kept] == types[other] and program.arg_strides.get(kept) == program.arg_strides.get(other):
                yield program.renamed(other, kept)


def _plain_strides(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    used = [*program.arguments, *program.outputs]
    if any(program.arg_strides.get(n) for n in used) or any(program.out_strides.get(n) for n in used):
        yield replace(program, arg_strides={}, out_strides={})
    for number, strides in program.arg_strides.items():
        if strides and number in program.arguments:
            yield replace(program, arg_strides={**program.arg_strides, number: None})
    for number, strides in program.out_strides.items():
        if strides and number in program.outputs:
            yield replace(program, out_strides={**program.out_strides, number: None})


def _sizes(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    """A number for a symbol, and a smaller number for a number, wherever they stand."""
    sizes = [size for tensor in types.values() for size in tensor.shape]
    for name in sorted({name for size in sizes for name in symbols_of(size)}):
        for number in (2, 3, 5, 8):
            yield program.mapped(lambda size, name=name, number=number: substitute(size, {name: number}), _same)
    for size in sorted({size for size in sizes if isinstance(size, int) and size > 1}, reverse=True):
        smaller = dict.fromkeys(n for n in (1, 2, 3, 4, 8, 16, size // 2, size - 1) if n < size)
        for number in smaller:
            yield program.mapped(lambda old, size=size, number=number: number if _is(old, size) else old, _same)


def _types(program: Program, types: dict[int, Tensor]) -> Iterator[Program]:
    for dtype in sorted({tensor.dtype for tensor in types.values()}, key=str):
        if dtype.is_float and dtype != f32:
            yield program.mapped(lambda size: size, lambda old, dtype=dtype: f32 if old == dtype else old)


def _same(dtype: DType) -> DType:
    return dtype


def _is(size: Size, number: int) -> bool:
    return not isinstance(size, Expr) and size == number
