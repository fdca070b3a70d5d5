"""`weft.onnx.load`: a model file as a function of arrays."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from weft.config import Config
from weft.diagnostics import nearest
from weft.errors import GuardError, ModelError, ShapeError, UnsupportedError, WeftError
from weft.frontends.onnx import operators as operators  # fills the table of converters
from weft.frontends.onnx.dtypes import STRINGS
from weft.frontends.onnx.import_nodes import LARGEST
from weft.frontends.onnx.model import Model, ModelInput, ValueType
from weft.frontends.onnx.quick_calls import QuickCall
from weft.frontends.onnx.read import read_model
from weft.frontends.onnx.require_operators import require_operators
from weft.frontends.onnx.stages import StagedProgram
from weft.frontends.onnx.steps import State, Step
from weft.frontends.onnx.values import Absent, Items, Slot, Value
from weft.frontends.text import program_key
from weft.runtime.array_address import forms_of
from weft.runtime.array_function import types_and_shapes
from weft.runtime.cores import checked_threads
from weft.runtime.dlpack import lent

_MOST_QUICK = 256
"""Kinds of calls that are remembered."""


def load(
    source: str | Path | bytes | Any,
    *,
    folder: str | Path | None = None,
    config: Config | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> OnnxFunction:
    """A model from a path, from bytes or from a `ModelProto`, as a function of arrays.

    Weights that lie in other files are read from the model's folder, or from `folder`, and from nowhere else. If all
    input shapes are stated the model is compiled now, otherwise when shapes are first met; operators that are not
    supported are told now in both cases. The `device` is `cpu`, or a
    GPU: `cuda`, `cuda:1`. Without a number of `threads`, which is 1 or more, a call takes as many as there are cores.
    """
    config, threads = config or Config.from_options(), checked_threads(threads)
    if device != "cpu":
        program_key("", (), config, device)  # asks for the device: that there is none is told before a file is read
    model = read_model(source, folder, defer=True)
    require_operators(model)
    function = OnnxFunction(model, config, device, threads)
    function.compile_known_shapes()
    return function


class OnnxFunction:
    """A loaded model: arrays in, by position or by name, and a tuple of arrays out. Sequences are lists.

    `inputs` and `outputs` have names, element types and shapes, where a size that is open is a name or None.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        device: str = "cpu",
        threads: int | None = None,
        program: StagedProgram | None = None,
    ) -> None:
        self.name = model.graph.name
        self.inputs = tuple(each for each in model.graph.inputs if each.name not in model.graph.initializers)
        self.outputs = model.graph.outputs
        self.metadata = model.metadata
        # Inputs with an initializer have a default: a call may give them by name.
        self.defaults = tuple(each for each in model.graph.inputs if each.name in model.graph.initializers)
        self._program = program or StagedProgram(model, config, device, threads)
        numbers = all(each.type.kind == "tensor" and each.type.dtype != STRINGS for each in self.inputs)
        self._names = tuple(each.name for each in self.inputs) if numbers else None
        """The names of inputs, where each is one array."""
        self._quick: OrderedDict[Any, QuickCall] = OrderedDict()
        """Calls that are one launch, by the types, shapes and strides of their arrays."""
        self._maps = tuple(place for place, each in enumerate(self.outputs) if _is_maps(each.type))

    def __call__(self, *arrays: Any, **named: Any) -> tuple[Any, ...]:
        return tuple(self.run(arrays, named))

    def run(self, arrays: Sequence[Any], named: Mapping[str, Any] | None = None) -> list[Any]:
        """As a call; names of inputs need not be Python's."""
        names = self._names
        if names is not None and len(arrays) + (len(named) if named else 0) == len(names):
            try:
                given = [named[name] for name in names[len(arrays) :]] if named else []
            except KeyError:
                given = None
            if given is not None:
                return self._run_plain([*arrays, *given])
        named = named or {}
        rest = [each.name for each in self.inputs[len(arrays) :]]
        optional = {each.name for each in self.defaults}
        open_ends = {each.name for each in self.inputs if each.type.kind == "optional"}
        missing = [name for name in rest if name not in named and name not in open_ends]
        unknown = [name for name in named if name not in rest and name not in optional]
        if missing or unknown or len(arrays) > len(self.inputs):
            raise GuardError(_wrong_names(missing, unknown), hint=f"the model takes {self.signature}")
        given = {**dict(zip((each.name for each in self.inputs), arrays, strict=False)), **named}
        slots: list[np.ndarray] = []
        sizes: dict[str, int] = {}
        values = {
            each.name: self._value(each, each.type, given.get(each.name), slots, sizes)
            for each in (*self.inputs, *self.defaults)
            if each.name in given or each.name not in optional
        }
        return self._results(self._program.start(values), slots)

    def _run_plain(self, arrays: Sequence[Any]) -> list[Any]:
        """A call with an array for each input."""
        key = forms_of(arrays)
        quick = self._quick.get(key) if key is not None else None
        if quick is not None and (found := quick(arrays)) is not None:
            return found
        start = self._plain_start
        known = types_and_shapes(arrays) if not start.by_value else None
        if known is not None and (step := start.steps.get((known, ()))) is not None:
            found = self._results(start, list(arrays), step)  # arrays like these have been looked at
            if quick is None and key is not None and (quick := QuickCall.of(step)) is not None:
                self._quick[key] = quick
                while len(self._quick) > _MOST_QUICK:
                    self._quick.popitem(last=False)
            return found
        sizes: dict[str, int] = {}
        slots = [self._array(each, each.type, array, sizes) for each, array in zip(self.inputs, arrays, strict=True)]
        return self._results(start, slots)

    def _results(self, start: State, slots: list[np.ndarray], step: Step | None = None) -> list[Any]:
        found = self._program.run(start, slots, step)
        for place in self._maps:
            maps = found[place]
            if not (isinstance(maps, np.ndarray) and maps.dtype == object and maps.ndim == 1):
                name, given = self.outputs[place].name, self.outputs[place].type
                raise ModelError(f"output {name!r} is declared as {given}, which is not what the model makes")
            found[place] = maps.tolist()
        return found

    @cached_property
    def _plain_start(self) -> State:
        slots = {each.name: Slot(place, np.dtype(np.void), ()) for place, each in enumerate(self.inputs)}
        return self._program.start(slots)

    @property
    def signature(self) -> str:
        """The inputs and outputs in one line."""
        shown = [", ".join(f"{each.name}: {each.type}" for each in side) for side in (self.inputs, self.outputs)]
        return f"({shown[0]}) -> ({shown[1]})"

    def compile_known_shapes(self) -> None:
        """Compile for the shapes that the model states, if it states them all."""
        slots: list[np.ndarray] = []
        for each in self.inputs:
            shape, dtype = each.type.shape, each.type.dtype
            if dtype is None or dtype == STRINGS or shape is None or not all(isinstance(size, int) for size in shape):
                return
            sizes = [size for size in shape if isinstance(size, int)]
            if prod(max(size, 1) for size in sizes) > LARGEST:
                raise ShapeError(
                    f"input {each.name!r} is {each.type}, which is too large: expected {LARGEST} elements at most"
                )
            # An array without memory of its own: only its type is looked at, unless elements are asked for.
            slots.append(np.broadcast_to(np.zeros((), dtype), sizes))
        self._program.prepare(self._plain_start, slots)

    def _value(
        self, given: ModelInput, type_: ValueType, value: Any, slots: list[np.ndarray], sizes: dict[str, int]
    ) -> Value:
        """An argument as a value: its arrays become slots."""
        if type_.kind == "optional":
            if value is None:
                return Absent()
            return self._value(given, type_.element or ValueType("tensor"), value, slots, sizes)
        if type_.kind == "map" or _is_maps(type_):
            raise UnsupportedError(f"input {given.name!r} is {type_}: maps come out of models, and do not go in")
        if type_.kind == "sequence":
            if not isinstance(value, list | tuple):
                raise self._wrong(given, f"a {type(value).__name__}")
            element = type_.element or ValueType("tensor")
            several: Sequence[Any] = value
            return Items(tuple(self._value(given, element, each, slots, {}) for each in several))
        array = self._array(given, type_, value, sizes)
        slots.append(array)
        return Slot(len(slots) - 1, np.dtype(np.void), ())

    def _array(self, given: ModelInput, type_: ValueType, value: Any, sizes: dict[str, int]) -> np.ndarray:
        try:
            array = _on_host(value, type_)
        # no order in it, not to be lent, numbers that the type has not
        except (ArithmeticError, BufferError, RuntimeError, TypeError, ValueError, WeftError) as error:
            raise self._wrong(given, f"a {type(value).__name__} that cannot be read ({str(error)[:200]})") from error
        if type_.dtype is not None and array.dtype != type_.dtype:
            order = "" if array.dtype.isnative else " in the byte order of other machines"
            raise self._wrong(given, f"{array.dtype}{list(array.shape)}{order}")
        if type_.shape is not None:
            if len(type_.shape) != array.ndim:
                raise self._wrong(given, f"{array.dtype}{list(array.shape)}")
            for size, actual in zip(type_.shape, array.shape, strict=True):
                expected = sizes.setdefault(size, actual) if isinstance(size, str) else size
                if expected is not None and expected != actual:
                    raise self._wrong(given, f"{array.dtype}{list(array.shape)}")
        return array

    def _wrong(self, given: ModelInput, found: str) -> GuardError:
        return GuardError(
            f"input {given.name!r} is {found}, expected {given.type}", hint=f"the model takes {self.signature}"
        )


def _is_maps(type_: ValueType) -> bool:
    """Whether values are sequences of maps."""
    return type_.kind == "sequence" and type_.element is not None and type_.element.kind == "map"


def _on_host(value: Any, type_: ValueType) -> np.ndarray:
    """Any library's array as one of NumPy's, on the same memory where that can be; lists become arrays of the type."""
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack__"):
        found = lent(value)
        if found.device is not None:
            raise UnsupportedError(f"it is on the GPU {found.device}", hint="copy it to the CPU")
        return found.numpy()
    if type_.dtype == STRINGS:
        return _strings(np.asarray(value, object))
    if isinstance(value, np.ndarray | np.generic) or type_.dtype is None:
        return np.asarray(value)
    plain = np.asarray(value)
    # A list has no type of its own: numbers become what the model takes, where nothing of them is lost.
    orders = _ORDER.get(plain.dtype.kind), _ORDER.get(type_.dtype.kind)
    fits = None not in orders and (orders[0] or 0) <= (orders[1] or 0)
    return np.asarray(value, type_.dtype) if fits or not plain.size else plain


_ORDER = {"b": 0, "i": 1, "u": 1, "f": 2, "V": 2, "c": 3}


def _strings(array: np.ndarray) -> np.ndarray:
    for place, each in enumerate(array.reshape(-1)):
        if not isinstance(each, str):
            where = [int(n) for n in np.unravel_index(place, array.shape)]
            raise TypeError(f"its element {where} is a {type(each).__name__}, expected a string")
    return array


def _wrong_names(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """What is wrong with the names of a call."""
    told = [f"{', '.join(map(repr, missing))} {'is' if len(missing) == 1 else 'are'} missing"] if missing else []
    guesses = [f"{name!r}{nearest(name, missing)}" for name in unknown]
    told += [f"{', '.join(guesses)} {'is not one' if len(unknown) == 1 else 'are none'}"] if unknown else []
    return f"wrong inputs: {'; '.join(told) or 'too many'}"
