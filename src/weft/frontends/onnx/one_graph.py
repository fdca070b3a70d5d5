"""An ONNX model that is one graph, as its text and its weights: what an artifact is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import DictionaryAttr
from xdsl.ir import BlockArgument, SSAValue

from weft.config import Config
from weft.errors import UnsupportedError, WeftError
from weft.frontends.onnx import operators as operators  # fills the table of converters
from weft.frontends.onnx.call import Mistake
from weft.frontends.onnx.dtypes import kernel_dtype
from weft.frontends.onnx.import_nodes import Importer
from weft.frontends.onnx.model import Model, ModelInput, Node
from weft.frontends.onnx.open_sizes import joined, same_constants
from weft.frontends.onnx.outlines import Outline
from weft.frontends.onnx.read import read_model
from weft.frontends.onnx.stages import ImportedStages
from weft.frontends.onnx.stated_sizes import (
    SizeRange,
    Stated,
    check_sizes,
    merged,
    open_size,
    places_to_check,
    places_to_join,
    symbols_for,
)
from weft.frontends.onnx.steps import Step
from weft.frontends.onnx.values import Slot, Traced, Value, has_kernels
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import Size
from weft.ir.types import Tensor, tensor_type
from weft.ops.graph import FuncOp
from weft.tile.text import print_program

_LONGEST_NAME = 400
_OWN = re.compile(r"[cx]\d+")
"""Names that stages give to constants and inputs."""


@dataclass
class WholeGraph(ImportedStages):
    """A model that is to be one graph; it is `symbolic` where sizes stay open."""

    symbolic: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._open = self.symbolic

    def _given_back(self, importer: Importer, values: Sequence[Value]) -> Sequence[Value]:
        """Copies inside, where nothing stands around the program: a loop may hand an input on as it is."""
        if not self.whole:
            return values
        made: dict[SSAValue, Value] = {}
        for value in values:
            if not has_kernels(value):
                return values  # not for an artifact
            ssa = importer.traced(value, Node("Identity", "", (), ()))
            if isinstance(ssa, BlockArgument) or ssa in made:
                ssa = importer.builder.copy(ssa)
            made[ssa] = Traced(ssa)
        return list(made.values())


@dataclass(frozen=True)
class _Import:
    """A model imported at some sizes."""

    function: FuncOp
    constants: Mapping[str, np.ndarray]
    read: tuple[int, ...]
    """The inputs that the function takes."""
    mistakes: tuple[Mistake, ...]


def read_one_graph(path: Path, sizes: Mapping[str, Stated]) -> tuple[str, dict[str, np.ndarray]]:
    """The text and the weights of a model; `sizes` are those that it leaves open, by name."""
    return _read(path, sizes, checked=False)[:2]


def read_checked_graph(
    path: Path, sizes: Mapping[str, Stated]
) -> tuple[str, dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    """The text and the weights of a model, and of each mistake in data that its last result tells, kind and text."""
    return _read(path, sizes, checked=True)


def _read(
    path: Path, sizes: Mapping[str, Stated], *, checked: bool
) -> tuple[str, dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    model = read_model(path, None, defer=True)
    inputs = [each for each in model.graph.inputs if each.name not in model.graph.initializers]
    check_sizes(inputs, sizes)
    ranges = {name: size for name, size in sizes.items() if isinstance(size, SizeRange)}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    if ranges:
        symbols = symbols_for(ranges)
        made = _joined(model, inputs, fixed, ranges, symbols, checked=checked)
    else:
        symbols = {}
        made = _imported(model, inputs, fixed, checked=checked)
    shapes = [_shape(each, {**fixed, **symbols}) for each in inputs]
    _state(made, inputs, model.graph.outputs, shapes)
    if ranges:
        bounds = {str(symbols[name]): to_attribute((each.least, each.most)) for name, each in ranges.items()}
        made.function.attributes["symbols"] = DictionaryAttr(bounds)
    return (
        print_program(made.function),
        dict(made.constants),
        tuple((each.kind, each.message) for each in made.mistakes),
    )


def _imported(
    model: Model, inputs: Sequence[ModelInput], sizes: Mapping[str, int], *, checked: bool, symbolic: bool = False
) -> _Import:
    program = WholeGraph(model, Config(strict=True, freeze=True), checked=checked, whole=True, symbolic=symbolic)
    slots = [np.broadcast_to(np.zeros((), each.type.dtype), _shape(each, sizes)) for each in inputs]
    values: dict[str, Value] = {each.name: Slot(place, np.dtype(np.void), ()) for place, each in enumerate(inputs)}
    state = program.start(values)
    program.prepare(state, slots)
    step = state.steps.get(state.key(slots))
    if step is None:
        looked_at = inputs[min(state.by_value)].name if state.by_value else "its inputs"
        raise UnsupportedError(
            f"what the model computes depends on the elements of {looked_at!r}", hint="`weft.onnx.load` runs it"
        )
    _require_whole(step)
    ((function, constants),) = program.functions
    return _Import(function, constants, step.arguments, () if step.verdict is None else step.verdict.mistakes)


def _joined(
    model: Model,
    inputs: Sequence[ModelInput],
    fixed: Mapping[str, int],
    ranges: Mapping[str, SizeRange],
    symbols: Mapping[str, Size],
    *,
    checked: bool,
) -> _Import:
    """The import of symbolic sizes that the model is at all sizes at which it is looked at."""

    def at(sizes: Mapping[str, int]) -> _Import:
        try:
            return _imported(model, inputs, {**fixed, **sizes}, checked=checked, symbolic=True)
        except WeftError as error:
            raise UnsupportedError(
                f"the model does not take {_told(sizes)}: {error.message}",
                hint=error.hint if isinstance(error, UnsupportedError) else "give a range of sizes that it takes",
            ) from error

    places = places_to_join(ranges)
    first, second = map(at, places)
    outlines = [Outline.of(each.function, each.constants) for each in (first, second)]
    names = {(places[0][name], places[1][name]): symbol for name, symbol in symbols.items()}
    whole = None if None in outlines else joined(*filter(None, outlines), symbols=names)
    kept = {} if whole is None else {name: each for name, each in first.constants.items() if name in whole.names}
    if whole is None or not _agree(whole, kept, second):
        raise _apart(places[0], places[1])
    for sizes in places_to_check(ranges):
        if not _agree(whole, kept, at(sizes)):
            raise _apart(places[0], sizes)
    mistakes = tuple(map(merged, first.mistakes, second.mistakes))
    return _Import(whole.built(), kept, first.read, mistakes)


def _agree(whole: Outline, constants: Mapping[str, np.ndarray], other: _Import) -> bool:
    """Whether a program of symbolic sizes is what the model is at some."""
    outline = Outline.of(other.function, other.constants)
    if outline is None or not whole.says(outline):
        return False
    return same_constants(constants, {name: each for name, each in other.constants.items() if name in outline.names})


def _apart(sizes: Mapping[str, int], others: Mapping[str, int]) -> UnsupportedError:
    return UnsupportedError(
        f"the model is not one program for all sizes: at {_told(others)} it does something else than at {_told(sizes)}",
        hint="give a smaller range, or one number: --size NAME=NUMBER; `weft.onnx.load` compiles for what it meets",
    )


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _shape(given: ModelInput, sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The shape of an input at some sizes."""
    shape = given.type.shape or ()
    return tuple(size if isinstance(size, int) else sizes[open_size(given, n)] for n, size in enumerate(shape))


def _require_whole(step: Step) -> None:
    if step.function is None or step.following is not None or step.host is not None:
        raise UnsupportedError(
            "the model is more than one graph: what it does next depends on data, or runs on the host",
            hint="`weft.onnx.load` runs it",
        )
    if list(step.results) != [("made", number) for number in range(len(step.results))]:
        raise UnsupportedError(
            "the model gives a sequence, an optional or text as one of its results", hint="`weft.onnx.load` runs it"
        )


def _state(
    made: _Import, inputs: Sequence[ModelInput], outputs: Sequence[ModelInput], shapes: Sequence[tuple[Size, ...]]
) -> None:
    """Let the function take all inputs of the model, also those that nothing reads, and have the model's own names."""
    function, read = made.function, made.read
    stated = list(cast(tuple[str, ...], from_attribute(function.attributes["arg_names"])))
    free = [place for place, name in enumerate(stated) if name.startswith("x")]
    end = free[-1] + 1 if free else 0
    for number, (given, shape) in enumerate(zip(inputs, shapes, strict=True)):
        place = free[number] if number < len(free) else end
        if number not in read:
            function.block.insert_arg(tensor_type(_tensor(given, shape)), place)
            free = [*free[:number], place, *(each + 1 for each in free[number:])]
            stated.insert(place, _unused(f"x{number}", stated))
            end += 1
        if _is_plain(given.name) and not _OWN.fullmatch(given.name) and given.name not in stated:
            stated[place] = given.name
    function.attributes["arg_names"] = to_attribute(tuple(stated))
    function.attributes["result_names"] = to_attribute(tuple(each.name for each in outputs))


def _is_plain(name: str) -> bool:
    """Whether a name can be said and shown: `name=FILE` is how a command gives an input."""
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and "=" not in name


def _tensor(given: ModelInput, shape: tuple[Size, ...]) -> Tensor:
    dtype = None if given.type.dtype is None else kernel_dtype(given.type.dtype)
    if dtype is None:
        raise UnsupportedError(f"the input {given.name!r} is {given.type}", hint="an artifact takes numbers of kernels")
    return Tensor(dtype, shape)


def _unused(name: str, names: Sequence[str]) -> str:
    return name if name not in names else next(f"x{n}" for n in count(len(names)) if f"x{n}" not in names)
