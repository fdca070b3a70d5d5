"""Draws random programs over the op registry: each op with the parameters of one of its samples, on what is there.

An operand is a value that the program has already, where its type fits and the sample sets no range of its own; else it
is a new argument. Sizes may be symbols: `s33` stands for 33.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.ir.expr import Size, evaluate, symbol, symbols_of
from weft.ir.types import DType, Tensor, tensor_of
from weft.ops.base import REGISTRY, Comparison, Elementwise, Movement, OpSpec
from weft.ops.graph import FuncOp
from weft.ops.samples import Input, Sample
from weft.testing.reduce.editable import Node, Program, function_of
from weft.tile.text import functions_of, parse_program, print_program

LARGEST = 20_000
# These jump where their operand changes by a rounding error, or read its bits.
STEPS = frozenset(
    (
        *("floor", "ceil", "trunc", "round", "sign", "floordiv", "truncdiv", "remainder", "fmod", "argmax", "argmin"),
        *(
            "sort",
            "topk",
            "cast",
            "bitcast",
            "nextafter",
            "max_pool_indices",
            "copysign",
            "any",
            "all",
            "isnan",
            "isinf",
        ),
        *("isfinite", "logical_and", "logical_or", "logical_xor", "logical_not", "grid_sample", "cummax", "cummin"),
    )
)
# These give what they take, or its sign turned around.
MOVING = frozenset(("max", "min", "maximum", "minimum", "relu", "neg", "abs"))
# Their results are defined by more than their operands, or they are made by passes alone.
LEFT_OUT = frozenset(
    (
        *("uniform", "dropout_rows", "tiled_dot", "scaled_dot", "dequantize", "as_strided"),
        *("attention", "attention_with_lse", "attention_with_tangent", "attention_gradients"),
        "attention_with_dropout",
    )
)


@dataclass(frozen=True)
class GraphCase:
    """A program's text, and the range of each argument's numbers by its name."""

    text: str
    ranges: dict[str, tuple[float, float]]
    seed: int = 0
    device: str = "cpu"

    def function(self) -> FuncOp:
        (function,) = functions_of(parse_program(self.text, "fuzz"))
        function.detach()
        return function

    def arrays(self, function: FuncOp) -> tuple[list[np.ndarray], dict[str, int]]:
        """Numbers for the arguments, and what symbols stand for."""
        names = [f"x{number}" for number in range(len(function.block.args))]
        names = [value.name_hint or name for value, name in zip(function.block.args, names, strict=True)]
        tensors = [tensor_of(value.type) for value in function.block.args]
        symbols = {name: int(name[1:]) for t in tensors for size in t.shape for name in symbols_of(size)}
        rng = np.random.default_rng(self.seed)
        made: list[np.ndarray] = []
        for name, tensor in zip(names, tensors, strict=True):
            low, high = self.ranges.get(name, (0.0, 2.0) if tensor.dtype.is_integer else (-4.0, 4.0))
            shape = tuple(evaluate(size, symbols) for size in tensor.shape)
            made.append(Input(shape, low, high).array(rng, tensor.dtype))
        return made, symbols

    def script(self, said: str) -> str:
        first = said.replace("\\", "/").replace('"""', "'''").splitlines()[0] if said else ""
        return (
            f'"""Found by `weft fuzz`: {first}"""\n\n'
            "from weft.testing.fuzz.graph_judge import reproduce\n\n"
            f'PROGRAM = r"""\n{self.text.strip()}\n"""\nRANGES = {self.ranges}\n\n'
            f'if __name__ == "__main__":\n    reproduce(PROGRAM, RANGES, seed={self.seed})\n'
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> GraphCase:
        ranges = {name: (float(low), float(high)) for name, (low, high) in record["ranges"].items()}
        return GraphCase(record["text"], ranges, record["seed"], record["device"])


@dataclass
class _Drawing:
    rng: random.Random
    dynamic: bool
    types: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    exact: set[int] = field(default_factory=set[int])
    plain: set[int] = field(default_factory=set[int])
    """Values that may be the operand of anything: ranges are usual ones."""
    arguments: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    nodes: list[Node] = field(default_factory=list[Node])
    next: int = 1000  # arguments are numbered from 0 on

    def draw(self, spec: OpSpec) -> None:
        sample = self.rng.choice(spec.samples)
        dtype = self.rng.choice(sample.dtypes)
        fresh: list[tuple[int, Tensor, Input]] = []
        operands: list[int] = []
        for place, source in enumerate(sample.inputs):
            found = self._known(spec, sample, place, source.dtype or dtype, operands)
            if found is None:
                number = len(self.arguments) + len(fresh)
                tensor = Tensor(source.dtype or dtype, tuple(map(self._size, source.shape)))
                fresh.append((number, tensor, source))
                found = number
            operands.append(found)
        types = {**self.types, **{number: tensor for number, tensor, _ in fresh}}
        made = self._inferred(spec, sample, [types[number] for number in operands])
        if made is None:
            return
        for number, tensor, source in fresh:
            self.types[number] = self.arguments[number] = tensor
            self.ranges[f"x{number}"] = (source.low, source.high)
            self.exact.add(number)
            if (source.low, source.high) == (-4.0, 4.0):
                self.plain.add(number)
        numbers = tuple(range(self.next, self.next + len(made)))
        self.next += len(made)
        self.types.update(zip(numbers, made, strict=True))
        moves = issubclass(spec.cls, Movement) or spec.name in MOVING
        whole = all(not self.types[number].dtype.is_float for number in operands)
        if whole or moves or spec.name in STEPS or issubclass(spec.cls, Comparison):
            self.exact.update(numbers if all(number in self.exact for number in operands) else ())
        if all(number in self.plain for number in operands) or spec.name in ("tanh", "sigmoid", "sin", "cos", "erf"):
            self.plain.update(number for number in numbers if self.types[number].dtype.is_float)
        self.nodes.append(Node(f"graph.{spec.name}", tuple(operands), dict(sample.params), numbers))

    def _size(self, size: int) -> Size:
        return symbol(f"s{size}") if self.dynamic and size > 1 else size

    def _known(self, spec: OpSpec, sample: Sample, place: int, dtype: DType, operands: Sequence[int]) -> int | None:
        """A value there is that can be this operand, or None."""
        source = sample.inputs[place]
        if self.rng.random() < 0.15 or (source.low, source.high) != (-4.0, 4.0):
            return None
        shape = tuple(map(self._size, source.shape))
        jumps = spec.name in STEPS or issubclass(spec.cls, Comparison)
        fit = [
            number
            for number, tensor in self.types.items()
            if tensor.dtype == dtype
            and number in self.plain
            and (issubclass(spec.cls, Elementwise) or tensor.shape == shape)
            and (not jumps or number in self.exact)
        ]
        return self.rng.choice(fit[-8:]) if fit else None

    @staticmethod
    def _inferred(spec: OpSpec, sample: Sample, tensors: list[Tensor]) -> tuple[Tensor, ...] | None:
        try:
            made = spec.cls.infer(*tensors, **sample.params)
        except (WeftError, TypeError, ValueError, LookupError, AssertionError):
            return None
        results = (made,) if isinstance(made, Tensor) else tuple(made)
        count = 0
        for tensor in results:
            symbols = {name: int(name[1:]) for size in tensor.shape for name in symbols_of(size)}
            count += int(np.prod([evaluate(size, symbols) for size in tensor.shape], dtype=np.int64))
        return results if count <= LARGEST else None


def draw_graph(seed: int, device: str = "cpu") -> GraphCase:
    """The program of a seed."""
    from weft.ops.dialect import Graph  # all ops register themselves

    assert Graph
    rng = random.Random(seed)
    specs = [spec for spec in REGISTRY if spec.samples and spec.name not in LEFT_OUT]
    weights = [3.0 if issubclass(spec.cls, Elementwise) else 4.0 for spec in specs]
    drawing = _Drawing(rng, rng.random() < 0.25)
    wanted, tries = rng.choice((1, 2, 4, 8, 16)), 0
    while len(drawing.nodes) < wanted and tries < 4 * wanted + 20:
        tries += 1
        drawing.draw(rng.choices(specs, weights)[0])
    made = [number for node in drawing.nodes for number in node.results]
    outputs = [number for number in made if rng.random() < 0.35] or made[-1:]
    program = Program(drawing.arguments, tuple(drawing.nodes), tuple(dict.fromkeys([*outputs, made[-1]]))).live()
    function = function_of(program, "fuzzed")
    for value, number in zip(function.block.args, program.arguments, strict=True):
        value.name_hint = f"x{number}"
    kept = {f"x{number}": drawing.ranges[f"x{number}"] for number in program.arguments}
    return GraphCase(print_program(function), kept, seed, device)
