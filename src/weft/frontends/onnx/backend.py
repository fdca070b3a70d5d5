"""`weft.onnx.Backend`: Weft behind the interface by which ONNX's own tests, and others, run models."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, Device, DeviceType

from weft.backends.target import target_at
from weft.config import Config
from weft.errors import WeftError
from weft.frontends.onnx.load import OnnxFunction, load


class PreparedModel(BackendRep):
    """A model that is ready to run."""

    def __init__(self, function: OnnxFunction) -> None:
        self.function = function

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, for inputs in order or by name."""
        named = inputs if isinstance(inputs, dict) else {}
        arrays: Sequence[Any] = () if isinstance(inputs, dict) else inputs
        if isinstance(inputs, np.ndarray):
            arrays = (inputs,)
        return tuple(self.function.run(arrays, named))


class Backend(OnnxBackend):
    """Prepares and runs models: `Backend.prepare(model).run(inputs)`."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether a model can be loaded."""
        try:
            load(model, device=_device(device))
        except WeftError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        return PreparedModel(load(model, device=_device(device)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """One node on arrays; the operator set is the newest, or `opset_version`."""
        given = [np.asarray(each) for each in inputs]
        names = [name for name in node.input if name]
        values = [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
            for name, each in zip(names, given, strict=True)
        ]
        results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", values, results)
        version = kwargs.get("opset_version") or onnx.defs.onnx_opset_version()
        imports = [onnx.helper.make_opsetid("", version)]
        if node.domain:
            imports.append(onnx.helper.make_opsetid(node.domain, 1))
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=imports), given, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether there is such a device: the processor always, a GPU where its driver is."""
        if Device(device).type == DeviceType.CPU:
            return True
        try:
            target_at("cuda", Config.from_options(), 0)
        except WeftError:
            return False
        return True


def _device(name: str) -> str:
    device = Device(name)
    return "cpu" if device.type == DeviceType.CPU else f"cuda:{device.device_id}"
