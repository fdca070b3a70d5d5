"""An ONNX model that is one graph, as its text and its weights: what an artifact is made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.onnx import operators as operators  # fills the table of converters
from weft.frontends.onnx.dtypes import STRINGS
from weft.frontends.onnx.model import ModelInput
from weft.frontends.onnx.read import read_model
from weft.frontends.onnx.stage_functions import StageFunction
from weft.frontends.onnx.stages import StagedProgram, Step
from weft.frontends.onnx.values import Slot, Value
from weft.frontends.text import read_function
from weft.ir.attributes import to_attribute
from weft.ops.graph import FuncOp
from weft.tile.text import print_program

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,99}")
_OWN = re.compile(r"[cx]\d+")
"""Names that stages give to constants and inputs."""


class GraphTexts(StagedProgram):
    """A model whose stages are written down and not compiled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts: list[tuple[str, Mapping[str, np.ndarray]]] = []

    def _function(self, text: str, constants: Mapping[str, np.ndarray], function: FuncOp) -> StageFunction:
        self.texts.append((text, constants))
        return StageFunction(text, text, constants)


def read_one_graph(path: Path, sizes: Mapping[str, int]) -> tuple[str, dict[str, np.ndarray]]:
    """The text and the weights of a model; `sizes` are those that it leaves open, by name."""
    return _read(path, sizes, checked=False)[:2]


def read_checked_graph(path: Path, sizes: Mapping[str, int]) -> tuple[str, dict[str, np.ndarray], bool]:
    """The text and the weights of a model, and whether its last result is a verdict on its data."""
    return _read(path, sizes, checked=True)


def _read(path: Path, sizes: Mapping[str, int], *, checked: bool) -> tuple[str, dict[str, np.ndarray], bool]:
    model = read_model(path, None)
    inputs = [each for each in model.graph.inputs if each.name not in model.graph.initializers]
    program = GraphTexts(model, Config(strict=True, freeze=True), checked=checked, whole=True)
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
    names = [inputs[place].name for place in step.arguments]
    return _named(text, names), dict(constants), step.verdict is not None


def _example(given: ModelInput, sizes: Mapping[str, int]) -> np.ndarray:
    """An array of the type of an input, without memory of its own."""
    dtype, shape = given.type.dtype, given.type.shape
    if given.type.kind != "tensor" or dtype is None or dtype == STRINGS or shape is None:
        raise UnsupportedError(
            f"the input {given.name!r} is {given.type}",
            hint="an artifact takes tensors of numbers, whose rank is stated",
        )
    known: list[int] = []
    for size in shape:
        value = sizes.get(size) if isinstance(size, str) else size
        if value is None:
            raise UnsupportedError(
                f"the input {given.name!r} is {given.type}, whose size {size or '?'} is open",
                hint=f"say how large it is: --size {size or 'NAME'}=1",
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
            "the model gives an input, a constant or one value twice as its results", hint="let it give new tensors"
        )


def _named(text: str, names: list[str]) -> str:
    """The text with the model's own names for inputs, where they are plain ones."""
    function, signature = read_function(text)
    free = [place for place, name in enumerate(signature.names) if name.startswith("x")]
    stated = list(signature.names)
    for place, name in zip(free, names, strict=True):
        if _PLAIN.fullmatch(name) and not _OWN.fullmatch(name) and name not in stated:
            stated[place] = name
    function.attributes["arg_names"] = to_attribute(tuple(stated))
    return print_program(function)
