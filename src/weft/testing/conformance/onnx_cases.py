"""ONNX's own backend tests through `weft.onnx.Backend`: which there are, and a verdict on each."""

# onnx leaves its test loader without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from weft.errors import UnsupportedError, WeftError
from weft.frontends.onnx.backend import Backend

SUITES = ("node", "simple", "pytorch-converted", "pytorch-operator")


@dataclass(frozen=True)
class CaseVerdict:
    """What became of a case: `passed`, `wrong` (other numbers), `refused` (a typed refusal), or `error`."""

    status: str
    said: str = ""


@cache
def cases(suite: str) -> dict[str, Any]:
    """The cases of a suite by name; those of operators are made by onnx on the spot."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in load_model_tests(kind=suite)}


def judge(suite: str, name: str, device: str = "CPU") -> CaseVerdict:
    """Run a case; its tolerances are the suite's."""
    case = cases(suite)[name]
    try:
        prepared = Backend.prepare(case.model if case.model is not None else _path(case), device)
        for inputs, expected in _data(case):
            found = prepared.run(inputs)
            try:
                Runner.assert_similar_outputs(expected, found, rtol=case.rtol, atol=case.atol)
            except (AssertionError, TypeError) as error:
                return CaseVerdict("wrong", _first_lines(str(error)))
    except UnsupportedError as error:
        return CaseVerdict("refused", error.message)
    except WeftError as error:
        return CaseVerdict("error", f"{type(error).__name__}: {error.message}")
    except Exception as error:
        return CaseVerdict("error", f"{type(error).__name__}: {_first_lines(str(error))}")
    return CaseVerdict("passed")


def _first_lines(text: str) -> str:
    return " ".join(text.split())[:300]


def _path(case: Any) -> str:
    return str(Path(case.model_dir) / "model.onnx")


def _data(case: Any) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
    """Inputs and expected outputs: from memory, or from the files beside a model."""
    if case.data_sets is not None:
        for inputs, outputs in case.data_sets:
            yield [_value(each) for each in inputs], [_value(each) for each in outputs]
        return
    graph = onnx.load(_path(case)).graph
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        yield [
            [_read(file, each.type) for n, each in enumerate(side) if (file := folder / f"{word}_{n}.pb").exists()]
            for word, side in (("input", graph.input), ("output", graph.output))
        ]  # pyright: ignore[reportReturnType]


def _read(file: Path, type_: Any) -> Any:
    messages = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}
    message: Any = messages.get(type_.WhichOneof("value"), onnx.TensorProto)()
    message.ParseFromString(file.read_bytes())
    return _value(message)


def _value(given: Any) -> Any:
    """A message as arrays; others are that already."""
    match given:
        case onnx.TensorProto():
            return numpy_helper.to_array(given)
        case onnx.SequenceProto():
            return numpy_helper.to_list(given)
        case onnx.OptionalProto():
            return numpy_helper.to_optional(given)
        case list() | tuple():
            return [_value(each) for each in given]
        case None:
            return None
        case _:
            return np.asarray(given)
