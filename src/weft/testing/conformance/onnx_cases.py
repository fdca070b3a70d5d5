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
    """What became of a case: `passed`, `wrong` (other numbers), `refused` (a typed refusal), or `error`.

    Two more do not pass, and are not wrong either: `random`, where the expected numbers are draws of NumPy's generator
    and all but the numbers is as expected, and `rounding`, where elements differ by less than 1e-6 of the greatest one,
    or of f16 by its last digit, but by more than the suite allows: they are sums that cancel, or what is expected was
    rounded on the way.
    """

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
                _compare(expected, found, case)
            except (AssertionError, TypeError) as error:
                return _differing(case, expected, found, _first_lines(str(error)))
    except UnsupportedError as error:
        return CaseVerdict("refused", error.message)
    except WeftError as error:
        return CaseVerdict("error", f"{type(error).__name__}: {error.message}")
    except Exception as error:
        return CaseVerdict("error", f"{type(error).__name__}: {_first_lines(str(error))}")
    return CaseVerdict("passed")


_RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomUniform", "RandomUniformLike"})


def _differing(case: Any, expected: Sequence[Any], found: Sequence[Any], said: str) -> CaseVerdict:
    """The verdict on outputs that are not as expected."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(expected, found, strict=False) if isinstance(b, np.ndarray)]
    alike = len(expected) == len(found) == len(pairs)
    alike = alike and all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)
    if alike and case.model is not None and _RANDOM & {node.op_type for node in case.model.graph.node}:
        return CaseVerdict("random", "the expected numbers are draws of NumPy's generator")
    if alike and all(_is_rounding(a, b) for a, b in pairs):
        return CaseVerdict("rounding", f"less than the last digits of the greatest element: {said}")
    return CaseVerdict("wrong", said)


def _is_rounding(expected: np.ndarray, found: np.ndarray) -> bool:
    if expected.dtype.kind not in "fc" or not np.isfinite(expected).all() or not np.isfinite(found).all():
        return np.array_equal(expected, found, equal_nan=expected.dtype.kind in "fc")
    share = max(1e-6, float(np.finfo(np.float16).eps) if expected.dtype == np.float16 else 0.0)
    difference = np.abs(expected.astype(np.complex128) - found.astype(np.complex128))
    return float(difference.max(initial=0)) <= share * float(np.abs(expected).max(initial=0))


def _compare(expected: Sequence[Any], found: Sequence[Any], case: Any) -> None:
    """Raise where outputs differ, as the suite says; the elements of sequences are compared like outputs."""
    if len(expected) != len(found):
        raise AssertionError(f"there are {len(found)} outputs, expected {len(expected)}")
    for one, other in zip(expected, found, strict=True):
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            _compare(one, other, case)
        elif one is None or other is None:
            if one is not other:
                raise AssertionError(f"an output is {other}, expected {one}")
        else:
            Runner.assert_similar_outputs([one], [other], rtol=case.rtol, atol=case.atol)


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
