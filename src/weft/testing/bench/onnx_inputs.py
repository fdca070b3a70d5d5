"""What an ONNX model is measured on: arrays from files, or random ones of shapes that are stated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import GuardError
from weft.frontends.onnx.model import ModelInput


@dataclass(frozen=True)
class InputRules:
    """Sizes by name, and for inputs by name: their shapes, and what they hold, a number or a file of an array."""

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    contents: Mapping[str, str] = field(default_factory=dict[str, str])

    def arrays(self, inputs: Sequence[ModelInput]) -> dict[str, np.ndarray]:
        """An array for each input; the same in every process."""
        rng = np.random.default_rng(0)
        known = {each.name for each in inputs}
        if unknown := [name for name in (*self.shapes, *self.contents) if name not in known]:
            raise GuardError(f"no input is called {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}")
        return {each.name: self._array(each, rng) for each in inputs}

    def _array(self, given: ModelInput, rng: np.random.Generator) -> np.ndarray:
        dtype: Any = given.type.dtype
        if given.type.kind != "tensor" or dtype is None or dtype.kind not in "biuf":
            raise GuardError(f"input {given.name!r} is {given.type}: only tensors of numbers can be drawn")
        held = self.contents.get(given.name)
        if held is not None and not _is_number(held):
            return np.load(Path(held), allow_pickle=False)
        shape = self._shape(given)
        if held is not None:
            return np.full(shape, float(held)).astype(dtype)
        if dtype.kind == "f":
            return np.asarray(rng.standard_normal(shape)).astype(dtype)
        return np.asarray(rng.integers(0, 2, shape)).astype(dtype)

    def _shape(self, given: ModelInput) -> list[int]:
        if given.name in self.shapes:
            return list(self.shapes[given.name])
        sizes: Sequence[int | str | None] = given.type.shape or ()
        if given.type.shape is None or any(size is None and not self.sizes for size in sizes):
            hint = f"state its shape: --shape {given.name}=1x3x224x224"
            raise GuardError(f"input {given.name!r} is {given.type}, which leaves its shape open", hint=hint)
        # A size that is only named, most often that of a batch, is one unless it is stated.
        return [size if isinstance(size, int) else self.sizes.get(size or "", 1) for size in sizes]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
