"""`weft.onnx.InferenceSession`: a loaded model by the names that users of ONNX Runtime know.

It adds nothing to `load`: options become its arguments, and calls go to the function that it gives.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from weft.config import Config
from weft.diagnostics import nearest
from weft.errors import DTypeError, GuardError, NoDeviceError, ShapeError, UnsupportedError
from weft.frontends.onnx.load import OnnxFunction, load
from weft.frontends.onnx.model import ModelInput
from weft.ir.types import Tensor
from weft.ops.layouts import StridedLayout, lies_apart
from weft.runtime.dlpack import Lent, lent

Provider: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""A provider by name, perhaps with options: `("CUDAExecutionProvider", {"device_id": 1})`."""

_DEVICES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


@dataclass
class SessionOptions:
    """What a session may be told. The number of threads is that of a call; 0 stands for as many as there are cores."""

    intra_op_num_threads: int = 0
    config: Config | None = None


class InferenceSession:
    """A model, run by `run(output_names, feeds)`.

    `providers` are tried in order: the first whose device is there is taken.
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes | Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | None = None,
    ) -> None:
        options = sess_options or SessionOptions()
        self._provider, self.function = _loaded(path_or_bytes, options, providers or ("CPUExecutionProvider",))
        self._places = {each.name: place for place, each in enumerate(self.function.outputs)}

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: None = None
    ) -> list[Any]:
        """The outputs with these names, or all of them, for inputs by name."""
        wanted = self._wanted(output_names)
        made = self.function.run((), input_feed)
        return [made[place] for place in wanted]

    def get_inputs(self) -> list[ModelInput]:
        """The inputs: each has a `name`, and a `type` with its element type and shape."""
        return list(self.function.inputs)

    def get_outputs(self) -> list[ModelInput]:
        return list(self.function.outputs)

    def get_providers(self) -> list[str]:
        """The provider that was taken."""
        return [self._provider]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding) -> None:
        """Run on the arrays of a binding; its outputs are written to where they were bound, or kept in it."""
        binding.run()

    def _wanted(self, names: Sequence[str] | None) -> list[int]:
        if names is None or not len(names):
            return list(self._places.values())
        if unknown := [name for name in names if name not in self._places]:
            raise GuardError(
                f"the model has no output {unknown[0]!r}{nearest(unknown[0], tuple(self._places))}",
                hint=f"the model is {self.function.signature}",
            )
        return [self._places[name] for name in names]


class IOBinding:
    """Arrays of any library that knows DLPack, by the names of inputs and outputs: read and written where they lie."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._made: list[Any] = []

    def bind_input(self, name: str, array: Any) -> None:
        """Let an input be an array, as it is when the session runs."""
        self._inputs[name] = array

    def bind_output(self, name: str, array: Any = None) -> None:
        """Ask for an output: a new array, or one that is written to."""
        self._session._wanted([name])  # pyright: ignore[reportPrivateUsage]
        if array is not None:
            _check_target(name, lent(array))
        self._outputs[name] = array

    def run(self) -> None:
        names = list(self._outputs)
        self._made = self._session.run(names or None, self._inputs)
        for n, (name, target) in enumerate(self._outputs.items()):
            if target is not None:
                _write(name, target, self._made[n])
                self._made[n] = target

    def get_outputs(self) -> list[Any]:
        """The outputs of the last run, in the order in which they were bound; those that were given are these."""
        return list(self._made)


def _check_target(name: str, target: Lent) -> None:
    if target.readonly:
        raise GuardError(f"the array for the output {name!r} may not be written to", hint="bind one of your own")
    apart = lies_apart(Tensor(target.dtype, target.shape), StridedLayout(tuple(map(abs, target.strides))))
    if 0 not in target.shape and not apart:
        raise GuardError(
            f"elements of the array for the output {name!r} share memory (strides {list(target.strides)})",
            hint="bind one whose elements all have a place",
        )


def _write(name: str, target: Any, result: np.ndarray) -> None:
    view = lent(target).numpy()
    if view.dtype != result.dtype:
        raise DTypeError(f"the output {name!r} is {result.dtype}, and the array that is bound to it {view.dtype}")
    if view.shape != result.shape:
        raise ShapeError(
            f"the output {name!r} is {list(result.shape)}, and the array that is bound to it {list(view.shape)}"
        )
    np.copyto(view, result)


def _loaded(source: Any, options: SessionOptions, providers: Sequence[Provider]) -> tuple[str, OnnxFunction]:
    """The model on the first device that there is."""
    known = [_device(each) for each in providers]
    for n, (name, device) in enumerate(known):
        try:
            found = load(source, config=options.config, device=device, threads=options.intra_op_num_threads or None)
            return name, found
        except NoDeviceError:
            if n == len(known) - 1:
                raise
    raise UnsupportedError("no provider was named", hint=f"there are {', '.join(_DEVICES)}")


def _device(provider: Provider) -> tuple[str, str]:
    name, options = (provider, {}) if isinstance(provider, str) else provider
    if name not in _DEVICES:
        raise UnsupportedError(
            f"there is no provider {name!r}{nearest(name, tuple(_DEVICES))}", hint=f"there are {', '.join(_DEVICES)}"
        )
    place = options.get("device_id")
    return name, _DEVICES[name] if place is None or name == "CPUExecutionProvider" else f"{_DEVICES[name]}:{int(place)}"
