"""`weft.onnx.InferenceSession`: a loaded model by the names that users of ONNX Runtime know.

It adds nothing to `load`: options become its arguments, and calls go to the function that it gives.
"""

# NumPy leaves the types of arrays open that come in by narrowing.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from weft.config import Config
from weft.diagnostics import nearest
from weft.errors import DeviceError, DTypeError, GuardError, NoDeviceError, ShapeError, UnsupportedError
from weft.frontends.onnx.load import OnnxFunction, load
from weft.frontends.onnx.metadata import ModelMetadata
from weft.frontends.onnx.session_options import RunOptions, SessionOptions, tell_idle
from weft.frontends.onnx.session_values import NodeArg
from weft.frontends.text import program_key
from weft.ir.types import Tensor
from weft.ops.layouts import StridedLayout, lies_apart
from weft.runtime.dlpack import Lent, lent

Provider: TypeAlias = str | tuple[str, Mapping[str, Any]]
"""A provider by name, perhaps with options: `("CUDAExecutionProvider", {"device_id": 1})`."""

_DEVICES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}


def get_available_providers() -> list[str]:
    """The providers whose devices are here."""
    found: list[str] = []
    for name, device in _DEVICES.items():
        try:
            if device != "cpu":
                program_key("", (), Config.from_options(), device)  # asks for the device
            found.insert(0, name)  # GPUs come first, as they are tried first
        except DeviceError:
            continue
    return found


def get_device() -> str:
    """`GPU` where there is one that providers may name, else `CPU`."""
    return "GPU" if "CUDAExecutionProvider" in get_available_providers() else "CPU"


class InferenceSession:
    """A model, run by `run(output_names, feeds)`.

    `providers` are tried in order: the first whose device is there is taken.
    """

    def __init__(
        self,
        path_or_bytes: str | Path | bytes | Any,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Provider] | str | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self._options = sess_options or SessionOptions()
        wanted = _wanted_providers(providers, provider_options)
        tell_idle("session options", self._options.idle())
        tell_idle("provider options", (f"{name}: {key}" for name, given in wanted for key in _idle(name, given)))
        (self._provider, self._provider_options), self.function = _loaded(path_or_bytes, self._options, wanted)
        self._places = {each.name: place for place, each in enumerate(self.function.outputs)}

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None
    ) -> list[Any]:
        """The outputs with these names, or all of them, for inputs by name."""
        if run_options is not None:
            tell_idle("run options", run_options.idle())
        if output_names is None:
            return self.function.run((), input_feed)
        wanted = self._wanted(output_names)
        made = self.function.run((), input_feed)
        return [made[place] for place in wanted]

    def get_inputs(self) -> list[NodeArg]:
        """The inputs: each has a `name`, a `shape` and a `type`, as `tensor(float)`."""
        return [NodeArg.of(each) for each in self.function.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg.of(each) for each in self.function.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Inputs that have a default, which a call may give."""
        return [NodeArg.of(each) for each in self.function.defaults]

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says of itself."""
        return self.function.metadata

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_provider_options(self) -> dict[str, dict[str, Any]]:
        """The options of the provider that was taken."""
        return {self._provider: dict(self._provider_options)}

    def get_providers(self) -> list[str]:
        """The provider that was taken."""
        return [self._provider]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on the arrays of a binding; its outputs are written to where they were bound, or kept in it."""
        if run_options is not None:
            tell_idle("run options", run_options.idle())
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
        function = self._session.function
        known = [each.name for each in (*function.inputs, *function.defaults)]
        if name not in known:
            raise GuardError(
                f"the model has no input {name!r}{nearest(name, known)}", hint=f"the model is {function.signature}"
            )
        self._inputs[name] = array

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """As `bind_input`: arrays are read where they lie."""
        self.bind_input(name, array)

    def bind_output(self, name: str, array: Any = None) -> None:
        """Ask for an output: a new array, which is on the processor (`"cpu"`), or one that is written to."""
        if isinstance(array, str):
            if array != "cpu":
                raise UnsupportedError(f"an output cannot be bound to {array!r}", hint="bind an array that lies there")
            array = None
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

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """The outputs of the last run as arrays of NumPy's."""
        return [each if isinstance(each, np.ndarray) else np.array(lent(each).numpy()) for each in self._made]

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._made = []


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


def _wanted_providers(
    providers: Sequence[Provider] | str | None, options: Sequence[Mapping[str, Any]] | None
) -> list[tuple[str, Mapping[str, Any]]]:
    """Providers with their options, which stand beside them or in a list of their own."""
    named = [providers] if isinstance(providers, str) else list(providers or ("CPUExecutionProvider",))
    if options is not None and len(options) != len(named):
        raise GuardError(f"{len(options)} provider options for {len(named)} providers", hint="give each its own")
    found: list[tuple[str, Mapping[str, Any]]] = []
    for place, each in enumerate(named):
        name, own = (each, {}) if isinstance(each, str) else each
        if name not in _DEVICES:
            raise UnsupportedError(
                f"there is no provider {name!r}{nearest(name, tuple(_DEVICES))}",
                hint=f"there are {', '.join(_DEVICES)}",
            )
        found.append((name, {**own, **(options[place] if options else {})}))
    return found


def _idle(provider: str, options: Mapping[str, Any]) -> list[str]:
    """The options of a provider that do nothing here."""
    return [key for key in options if provider == "CPUExecutionProvider" or key != "device_id"]


def _loaded(
    source: Any, options: SessionOptions, providers: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[tuple[str, Mapping[str, Any]], OnnxFunction]:
    """The model on the first device that there is."""
    for n, (name, own) in enumerate(providers):
        try:
            device = _device(name, own)
            found = load(source, config=options.config, device=device, threads=options.intra_op_num_threads or None)
            return (name, own), found
        except NoDeviceError:
            if n == len(providers) - 1:
                raise
    raise UnsupportedError("no provider was named", hint=f"there are {', '.join(_DEVICES)}")


def _device(name: str, options: Mapping[str, Any]) -> str:
    place = options.get("device_id")
    return _DEVICES[name] if place is None or name == "CPUExecutionProvider" else f"{_DEVICES[name]}:{int(place)}"
