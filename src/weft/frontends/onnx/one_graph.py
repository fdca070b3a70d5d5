"""An ONNX model that is one graph, as its text and its weights: what an artifact is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np
from xdsl.ir import BlockArgument, SSAValue

from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.onnx import operators as operators  # fills the table of converters
from weft.frontends.onnx.dtypes import STRINGS, kernel_dtype
from weft.frontends.onnx.import_nodes import Importer
from weft.frontends.onnx.model import ModelInput, Node
from weft.frontends.onnx.read import read_model
from weft.frontends.onnx.stage_functions import Elsewhere, StageFunction
from weft.frontends.onnx.stages import StagedProgram
from weft.frontends.onnx.steps import Step
from weft.frontends.onnx.values import Slot, Traced, Value, has_kernels
from weft.frontends.text import read_function
from weft.ir.attributes import to_attribute
from weft.ir.types import Tensor, tensor_type
from weft.ops.graph import FuncOp
from weft.tile.text import print_program

_LONGEST_NAME = 400
_OWN = re.compile(r"[cx]\d+")
"""Names that stages give to constants and inputs."""


class GraphTexts(StagedProgram):
    """A model whose stages are written down and not compiled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts: list[tuple[str, Mapping[str, np.ndarray]]] = []

    def _function(self, constants: Mapping[str, np.ndarray], function: FuncOp, elsewhere: Elsewhere) -> StageFunction:
        text = print_program(function)
        self.texts.append((text, constants))
        return StageFunction(text, text, constants)

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


def read_one_graph(path: Path, sizes: Mapping[str, int]) -> tuple[str, dict[str, np.ndarray]]:
    """The text and the weights of a model; `sizes` are those that it leaves open, by name."""
    return _read(path, sizes, checked=False)[:2]


def read_checked_graph(
    path: Path, sizes: Mapping[str, int]
) -> tuple[str, dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    """The text and the weights of a model, and of each mistake in data that its last result tells, kind and text."""
    return _read(path, sizes, checked=True)


def _read(
    path: Path, sizes: Mapping[str, int], *, checked: bool
) -> tuple[str, dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    model = read_model(path, None)
    inputs = [each for each in model.graph.inputs if each.name not in model.graph.initializers]
    program = GraphTexts(model, Config(strict=True, freeze=True), checked=checked, whole=True)
    _check_sizes(inputs, sizes)
    slots = [_example(each, sizes) for each in inputs]
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
    ((text, constants),) = program.texts
    found = () if step.verdict is None else step.verdict.mistakes
    return (
        _stated(text, inputs, model.graph.outputs, slots, step.arguments),
        dict(constants),
        tuple((each.kind, each.message) for each in found),
    )


def open_size(given: ModelInput, place: int) -> str:
    """What a size that an input leaves open is called: by the model, or by the input and the place; else nothing."""
    size = (given.type.shape or ())[place]
    return size if isinstance(size, str) else f"{given.name}.{place}" if size is None else ""


def _check_sizes(inputs: Sequence[ModelInput], sizes: Mapping[str, int]) -> None:
    """Refuse sizes that the model does not leave open."""
    names = {open_size(each, place) for each in inputs for place in range(len(each.type.shape or ()))} - {""}
    if unknown := sorted(set(sizes) - names):
        told = f"it leaves open {', '.join(sorted(names))}" if names else "it states all of its sizes"
        raise UnsupportedError(f"the model has no open size {unknown[0]}", hint=told)


def _example(given: ModelInput, sizes: Mapping[str, int]) -> np.ndarray:
    """An array of the type of an input, without memory of its own."""
    dtype, shape = given.type.dtype, given.type.shape
    if given.type.kind != "tensor" or dtype is None or dtype == STRINGS or shape is None:
        raise UnsupportedError(
            f"the input {given.name!r} is {given.type}",
            hint="an artifact takes tensors of numbers, whose rank is stated",
        )
    known: list[int] = []
    for place, size in enumerate(shape):
        name = open_size(given, place)
        value = sizes.get(name) if name else size
        if not isinstance(value, int):
            raise UnsupportedError(
                f"the input {given.name!r} is {given.type}, whose size {name} is open",
                hint=f"say how large it is: --size {name}=1",
            )
        known.append(value)
    return np.broadcast_to(np.zeros((), dtype), known)


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


def _stated(
    text: str,
    inputs: Sequence[ModelInput],
    outputs: Sequence[ModelInput],
    slots: Sequence[np.ndarray],
    read: Sequence[int],
) -> str:
    """The text with all inputs of the model, also those that nothing reads, and with the model's own names."""
    function, signature = read_function(text)
    free = [place for place, name in enumerate(signature.names) if name.startswith("x")]
    stated = list(signature.names)
    end = free[-1] + 1 if free else 0
    for number, (given, slot) in enumerate(zip(inputs, slots, strict=True)):
        place = free[number] if number < len(free) else end
        if number not in read:
            function.block.insert_arg(tensor_type(_tensor(given, slot)), place)
            free = [*free[:number], place, *(each + 1 for each in free[number:])]
            stated.insert(place, _unused(f"x{number}", stated))
            end += 1
        if _is_plain(given.name) and not _OWN.fullmatch(given.name) and given.name not in stated:
            stated[place] = given.name
    function.attributes["arg_names"] = to_attribute(tuple(stated))
    function.attributes["result_names"] = to_attribute(tuple(each.name for each in outputs))
    return print_program(function)


def _is_plain(name: str) -> bool:
    """Whether a name can be said and shown: `name=FILE` is how a command gives an input."""
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and "=" not in name


def _tensor(given: ModelInput, slot: np.ndarray) -> Tensor:
    dtype = kernel_dtype(slot.dtype)
    if dtype is None:
        raise UnsupportedError(f"the input {given.name!r} is {given.type}", hint="an artifact takes numbers of kernels")
    return Tensor(dtype, slot.shape)


def _unused(name: str, names: Sequence[str]) -> str:
    return name if name not in names else next(f"x{n}" for n in count(len(names)) if f"x{n}" not in names)
