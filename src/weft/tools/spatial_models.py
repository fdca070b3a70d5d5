"""Models for `weft spatial`: graphs of 8-bit integers as they are, and graphs of floats, which are quantized first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from xdsl.context import Context

from weft.backends.target import argument_names
from weft.errors import UnsupportedError
from weft.ir.types import tensor_of
from weft.ops.graph import FuncOp
from weft.passes.attention.recognize_attention import RecognizeAttention
from weft.spatial.quantize.quantize_graph import quantize_graph
from weft.spatial.quantize.quantized_graph import QuantizedGraph
from weft.spatial.read_files import read_arrays
from weft.tile.text import functions_of, parse_program
from weft.tools.opt.opt import read_source
from weft.tools.terminal import UsageError


@dataclass(frozen=True)
class SpatialModel:
    """A graph of 8-bit integers; `quantized` says how it stands for floats, where it does."""

    function: FuncOp
    constants: dict[str, np.ndarray] | None = None
    quantized: QuantizedGraph | None = None


def read_spatial_model(file: str, seed: int) -> SpatialModel:
    """A graph as text, a program that torch.export saved (.pt2), or an ONNX model.

    What is in floats is quantized, with scales from a run on random numbers.
    """
    path = Path(file)
    if path.suffix == ".pt2":
        from weft.frontends.torch.exported import read_exported

        text, weights, _ = read_exported(path)
    elif path.suffix == ".onnx":
        from weft.frontends.onnx.one_graph import read_one_graph

        text, weights = read_one_graph(path, {})
    else:
        text, name = read_source(file)
        return SpatialModel(_only(text, name))
    return quantized_model(text, weights, seed)


def read_with_constants(file: str, constants: Path | None, seed: int) -> tuple[FuncOp, dict[str, np.ndarray]]:
    """A graph of integers and its constants; what is in floats is quantized."""
    model = read_spatial_model(file, seed)
    known = model.constants if model.constants is not None else _constants(model.function, constants, seed)
    return model.function, known


def _constants(function: FuncOp, path: Path | None, seed: int) -> dict[str, np.ndarray]:
    """Constants of a file; without one, all arguments but the first are random."""
    names = argument_names(function)
    if path is not None:
        if not path.is_file():
            raise UsageError(f"there is no file {path}", hint="--constants takes an .npz with arrays by argument")
        return {name: array for name, array in read_arrays(path).items() if name in names}
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, value in list(zip(names, function.block.args, strict=True))[1:]:
        tensor = tensor_of(value.type)
        shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
        small = tensor.dtype.is_integer
        made[name] = (rng.integers(-128, 128, shape) if small else rng.uniform(0.001, 0.01, shape)).astype(
            tensor.dtype.numpy
        )
    return made


def quantized_model(text: str, weights: dict[str, np.ndarray], seed: int) -> SpatialModel:
    """A graph of floats as one of integers."""
    module = parse_program(text, "the model")
    RecognizeAttention().apply(Context(), module)
    (function,) = functions_of(module)
    _check_sizes(function)
    rng = np.random.default_rng(seed)
    samples: dict[str, np.ndarray] = {}
    for name, value in zip(argument_names(function), function.block.args, strict=True):
        if name not in weights:
            tensor = tensor_of(value.type)
            shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
            samples[name] = rng.normal(size=shape).astype(tensor.dtype.numpy)
    quantized = quantize_graph(function, weights, samples)
    return SpatialModel(quantized.function, quantized.constants, quantized)


def _only(text: str, name: str) -> FuncOp:
    found = functions_of(parse_program(text, name))
    if len(found) != 1:
        raise UsageError(f"{name} has {len(found)} functions", hint="give a file with one")
    _check_sizes(found[0])
    return found[0]


def _check_sizes(function: FuncOp) -> None:
    """Refuse sizes that are not numbers: a schedule is for one size of everything."""
    for name, value in zip(argument_names(function), function.block.args, strict=True):
        if unknown := [size for size in tensor_of(value.type).shape if not isinstance(size, int)]:
            raise UnsupportedError(
                f"the argument {name} has a size {unknown[0]}, and schedules are for sizes that are known",
                hint="export the model without dynamic shapes, or write numbers in the graph",
            )
