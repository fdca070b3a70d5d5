"""Models as they come: graph text with a file of weights, a program that torch exported, an ONNX model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from weft.artifact.safetensors import read_tensors
from weft.artifact.write import Source
from weft.errors import ArtifactError, missing
from weft.frontends.text import read_function

Sizes: TypeAlias = Mapping[str, int | tuple[int, int | None]]
"""Sizes that a model leaves open: numbers, or between which they stay open."""

_BY_NUMBER = re.compile(r"arr_(\d+)")


def read_source(
    model: Path, weights: Path | None = None, function: str | None = None, sizes: Sizes | None = None
) -> Source:
    """A model by its path, whose ending says what it is; `sizes` are those that an ONNX model leaves open."""
    reader = _READERS.get(model.suffix)
    if reader is None:
        known = ", ".join(_READERS)
        raise ArtifactError(f"{model} is none of the models that Weft reads", hint=f"their names end in {known}")
    if not model.is_file():
        raise ArtifactError(f"{model} is not a file")
    if weights is not None and model.suffix != ".mlir":
        raise ArtifactError(f"{model} has its weights inside", hint="leave --weights out")
    if sizes and model.suffix != ".onnx":
        raise ArtifactError(f"{model} states its sizes itself", hint="leave --size out")
    return reader(model, weights, function, sizes or {})


def _text(model: Path, weights: Path | None, function: str | None, sizes: Sizes) -> Source:
    try:
        text = model.read_text()
    except UnicodeDecodeError:
        raise ArtifactError(f"{model} is not text", hint="graphs are MLIR: `weft opt` reads them") from None
    if weights is None:
        return Source(text, {}, function, model.stem)
    arrays = read_weights(weights)
    if all(_BY_NUMBER.fullmatch(name) for name in arrays):
        # As `np.savez(file, *arrays)` writes them: all arguments in order, of which the constants are taken.
        _, signature = read_function(text, function)
        numbered = {int(name[4:]): array for name, array in arrays.items()}
        arrays = {signature.names[n]: numbered[n] for n in signature.constants if n in numbered}
    return Source(text, arrays, function, model.stem)


def read_weights(path: Path) -> dict[str, np.ndarray]:
    """Arrays by name, of an .npz or a .safetensors file."""
    try:
        if path.suffix == ".safetensors":
            return read_tensors(memoryview(path.read_bytes()), str(path))
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError) as error:
        raise ArtifactError(f"{path} has no weights that can be read: {error}", hint=".npz or .safetensors") from error


def _torch(model: Path, weights: Path | None, function: str | None, sizes: Sizes) -> Source:
    try:
        from weft.frontends.torch.exported import read_exported
    except ModuleNotFoundError as error:
        raise missing(error, "a .pt2 model") or error from None
    text, arrays, mistakes = read_exported(model)
    return Source(text, arrays, None, model.stem, mistakes)


def _onnx(model: Path, weights: Path | None, function: str | None, sizes: Sizes) -> Source:
    try:
        from weft.frontends.onnx.one_graph import read_checked_graph
        from weft.frontends.onnx.stated_sizes import SizeRange
    except ModuleNotFoundError as error:
        raise missing(error, "an ONNX model") or error from None
    stated = {name: size if isinstance(size, int) else SizeRange(*size) for name, size in sizes.items()}
    text, arrays, mistakes = read_checked_graph(model, stated)
    return Source(text, arrays, None, model.stem, mistakes)


_READERS: dict[str, Callable[[Path, Path | None, str | None, Sizes], Source]] = {
    ".mlir": _text,
    ".pt2": _torch,
    ".onnx": _onnx,
}
