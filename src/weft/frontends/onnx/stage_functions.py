"""The compiled functions of a model's stages: each is made once, and for all sizes at which the stage says the same."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from xdsl.utils.exceptions import VerifyException

from weft.config import Config
from weft.errors import WeftError
from weft.frontends.onnx.open_sizes import Family, family_of, joined, same_constants
from weft.frontends.onnx.outlines import Outline
from weft.frontends.text import compile_function
from weft.ops.graph import FuncOp
from weft.tile.text import print_program

_LOG = logging.getLogger(__name__)
_KEPT = 256
"""Functions that are known again; the oldest goes first."""
_FAMILIES, _OUTLINES, _PROGRAMS = 16, 3, 16
"""Families of stages that are kept, and of a family imports that the next one is compared with, and programs."""

Elsewhere: TypeAlias = Callable[[], tuple[FuncOp, Mapping[str, np.ndarray]] | None]
"""Imports a stage at sizes that have nothing in common with those of a call: the function and its constants."""


@dataclass(frozen=True)
class StageFunction:
    """A compiled function, the text that it was made of, and the constants that this reads."""

    call: Any
    text: str
    constants: Mapping[str, np.ndarray]


@dataclass
class StageFunctions:
    """What a program has compiled. `open` says whether the model leaves sizes open."""

    config: Config
    device: str
    threads: int | None
    open: bool
    compiled: int = 0
    """How many functions were made."""

    _known: OrderedDict[Any, tuple[StageFunction, Mapping[str, np.ndarray]]] = field(
        default_factory=OrderedDict[Any, tuple["StageFunction", Mapping[str, np.ndarray]]]
    )
    _families: list[Family] = field(default_factory=list[Family])

    def __len__(self) -> int:
        """How many are known."""
        return len(self._known)

    def of(self, constants: Mapping[str, np.ndarray], function: FuncOp, elsewhere: Elsewhere) -> StageFunction:
        """The compiled function of a stage: that of open sizes where it is one size of them, else one of its own.

        `elsewhere` imports the stage at sizes that have nothing in common with those of the function.
        """
        found = self._of_open_sizes(constants, function, elsewhere) if self.open else None
        if found is not None:
            return found
        text = print_program(function)
        key = text, tuple((name, id(array)) for name, array in constants.items())
        if key not in self._known:
            # The constants keep their addresses, that the key has, as long as it is there.
            made = StageFunction(self._compile(function, text, constants), text, constants)
            self._known[key] = made, constants
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return self._known[key][0]

    def _compile(self, function: FuncOp, text: str, constants: Mapping[str, np.ndarray]) -> Any:
        self.compiled += 1
        return compile_function(
            function, text=text, constants=constants, config=self.config, device=self.device, threads=self.threads
        )

    def _of_open_sizes(
        self, constants: Mapping[str, np.ndarray], function: FuncOp, elsewhere: Elsewhere
    ) -> StageFunction | None:
        """A program that other sizes share; None at first sight of a stage, and where sizes change what it does."""
        outline = Outline.of(function, constants)
        if outline is None:
            return None
        constants = {name: array for name, array in constants.items() if name in outline.names}
        family = family_of(self._families, constants)
        if family is None:
            self._families.append(Family(constants, [outline]))
            del self._families[:-_FAMILIES]
            return None
        found = family.program_of(outline)
        if found is not None:
            return StageFunction(*found, constants)
        opened = family.opened(outline) or _opened(family, outline, elsewhere())
        family.imported = [outline, *family.imported[: _OUTLINES - 1]]
        if opened is None:
            return None
        graph = opened.built()
        text = print_program(graph)
        try:
            made = self._compile(graph, text, constants)
        except (
            WeftError,
            VerifyException,
            AssertionError,
            ValueError,
            ArithmeticError,
            LookupError,
            TypeError,
        ) as error:
            # With numbers it can be compiled still, and that is tried next.
            _LOG.warning("a stage is compiled for each of its sizes: %s", error)
            return None
        family.programs.append((opened, made, text))
        del family.programs[:-_PROGRAMS]
        return StageFunction(made, text, constants)


def _opened(family: Family, outline: Outline, other: tuple[FuncOp, Mapping[str, np.ndarray]] | None) -> Outline | None:
    """A stage joined with its import at other sizes: those that were met may have factors in common."""
    about = None if other is None else Outline.of(*other)
    if about is None or other is None:
        return None
    constants = {name: array for name, array in other[1].items() if name in about.names}
    return joined(outline, about) if same_constants(family.constants, constants) else None
