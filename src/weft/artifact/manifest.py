"""The manifest of an artifact: what the file holds and how the model is called, as plain data, checked when read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

from weft.artifact.checked_json import parse_json
from weft.artifact.element_types import is_element_type
from weft.artifact.mistakes import KINDS
from weft.errors import ArtifactVersionError, CorruptArtifactError, ParseError
from weft.ir.expr import Size
from weft.ir.size_text import parse_size

FORMAT = 3
MANIFEST, GRAPH, WEIGHTS, PREPARED, SIGNATURES = (
    *("manifest.json", "graph.mlir", "weights.safetensors", "prepared.safetensors", "signatures.json"),
)
MOST_MANIFEST = 8 << 20
_MOST_SIZE_TEXT, _MOST_NUMBER = 400, 1 << 62
_MOST_NAME = 400
MOST_TOLD = 400
_T = TypeVar("_T")


@dataclass(frozen=True)
class Digest:
    """The length of a member and the digest of its content (`digests.digest_of`)."""

    size: int
    sha512: str


@dataclass(frozen=True)
class Argument:
    """What the model takes: a size is a number, a symbol, or an expression of symbols."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    constant: bool = False
    """Its value is among the weights: callers leave it out."""
    replaced: bool = False
    """It is written over, and a result is its new value."""


@dataclass(frozen=True)
class Result:
    """What the model gives."""

    dtype: str
    shape: tuple[int | str, ...]
    name: str


@dataclass(frozen=True)
class Range:
    """The least and the greatest value of a size that is a symbol."""

    symbol: str
    least: int
    most: int | None = None


@dataclass(frozen=True)
class Packing:
    """How a weight is laid out for kernels: matrices at `strides` from `offset` on, as panels of `NR` columns."""

    K: int
    N: int
    NR: int
    batch: tuple[int, ...]
    together: int
    unit: int
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Constant:
    """An array that code takes in every call: a tensor of a member, packed or with these strides."""

    member: str
    tensor: str
    strides: tuple[int, ...] | None = None
    packing: Packing | None = None


@dataclass(frozen=True)
class Output:
    """Where a result comes from: a new array (`output`) by its number, an `input` that is copied, one that was
    `replaced`, or a `constant`."""

    kind: str
    index: int


@dataclass(frozen=True)
class NewArray:
    """An array that a caller brings for results: its strides are in elements."""

    dtype: str
    shape: tuple[int | str, ...]
    strides: tuple[int | str, ...]


@dataclass(frozen=True)
class CpuCode:
    """Machine code for processors that have all of `requires`, and how it is called."""

    name: str
    triple: str
    cpu: str
    requires: tuple[str, ...]
    code: str
    """The member that is the shared object."""
    symbols: tuple[str, ...]
    inputs: tuple[tuple[int | str, ...], ...]
    """The strides of every argument that is not constant."""
    outputs: tuple[NewArray, ...]
    results: tuple[Output, ...]
    constants: tuple[Constant, ...]


@dataclass(frozen=True)
class DeviceProgram:
    """Kernels for a GPU: the member that has the plan and how kernels are launched, and that with their PTX."""

    name: str
    plan: str
    code: str


@dataclass(frozen=True)
class Mistake:
    """What is wrong with data where a check of the model finds something; the kinds are those of `mistakes.py`."""

    kind: str
    message: str


@dataclass(frozen=True)
class Manifest:
    """All that is said of an artifact, but for its signatures."""

    format: int
    weft: str
    name: str
    license: str
    function: str
    quantize: str
    members: Mapping[str, Digest]
    arguments: tuple[Argument, ...]
    results: tuple[Result, ...]
    mistakes: tuple[Mistake, ...]
    """The last result says which of them, counted from 1, the data has, or 0: callers do not get it."""
    ranges: tuple[Range, ...]
    processors: tuple[CpuCode, ...] = ()
    devices: tuple[DeviceProgram, ...] = ()


def to_text(manifest: Manifest) -> bytes:
    """The manifest as the file has it: equal manifests are equal bytes."""
    return json.dumps(asdict(manifest), indent=1, allow_nan=False).encode()


def parse_manifest(text: bytes) -> Manifest:
    """Read back a manifest; everything in it has the type that its class says, and names what there is."""
    given = parse_json(text, MANIFEST)
    version = given.get("format")
    if type(version) is not int or version != FORMAT:
        raise ArtifactVersionError(
            f"an artifact of the format {str(version)[:20]}, and this is Weft for format {FORMAT}",
            hint="compile the model again, or install the Weft that wrote it: `weft inspect` says which",
        )
    manifest: Manifest = _built(Manifest, given, MANIFEST)
    _check(manifest)
    return manifest


def parsed_shape(shape: tuple[int | str, ...]) -> tuple[Size, ...]:
    """The sizes of a shape or strides."""
    try:
        return tuple(size if isinstance(size, int) else parse_size(size) for size in shape)
    except ParseError as error:
        raise CorruptArtifactError(f"{MANIFEST}: {error.message}") from None


def _built(cls: type[_T], given: Any, where: str) -> _T:
    if not isinstance(given, dict):
        raise CorruptArtifactError(f"{where} is {str(given)[:60]!r}, not an object")
    entries = cast("dict[str, Any]", given)
    hints = _hints(cls)
    known = {each.name for each in fields(cls)}  # pyright: ignore[reportArgumentType]
    if entries.keys() != known:
        odd = sorted(entries.keys() ^ known)
        raise CorruptArtifactError(f"{where} has {', '.join(each[:40] for each in odd[:4])} too much or too few")
    return cls(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in entries.items()})


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


def _value(wanted: Any, value: Any, where: str) -> Any:
    """A value of the type that an annotation states, made of what JSON has."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin is UnionType:
        if value is None and NoneType in arguments:
            return None
        for each in arguments:
            if each in (int, str) and type(value) is each:
                return value
        rest = [each for each in arguments if each not in (int, str, NoneType)]
        if rest:
            return _value(rest[0], value, where)
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_value(arguments[0], item, where) for item in cast("list[Any]", value))
    elif origin is Mapping:
        if isinstance(value, dict):
            return {k: _value(arguments[1], v, where) for k, v in cast("dict[str, Any]", value).items()}
    elif wanted in (int, str, bool):
        if type(value) is wanted and (not isinstance(value, int) or -_MOST_NUMBER < value < _MOST_NUMBER):
            return value
    else:
        return _built(wanted, value, where)
    raise CorruptArtifactError(f"{where} is {str(value)[:60]!r}")


def _check(manifest: Manifest) -> None:
    """What types do not say."""
    names = [argument.name for argument in manifest.arguments]
    _require(len(set(names)) == len(names), "arguments of one name")
    results = [result.name for result in manifest.results]
    _require(len(set(results)) == len(results), "results of one name")
    _require(all(is_result_name(name) for name in results), "a result whose name cannot be shown")
    _require(not manifest.mistakes or _is_verdict(manifest.results[-1:]), "a check without its verdict")
    _require(all(len(each.message) <= MOST_TOLD for each in manifest.mistakes), "a check with a long story")
    _require(all(each.kind in KINDS for each in manifest.mistakes), "a check of a kind that there is not")
    for described in (*manifest.arguments, *manifest.results, *(o for c in manifest.processors for o in c.outputs)):
        _require(is_element_type(described.dtype), f"the element type {described.dtype[:40]!r}")
        _check_shape(described.shape)
    for code in manifest.processors:
        _require(code.code in manifest.members, f"code in {code.code[:80]!r}, which is not there")
        free = [argument for argument in manifest.arguments if not argument.constant]
        _require(len(code.inputs) == len(free), "code that takes other arguments than the model")
        _require(all(c.member in (WEIGHTS, PREPARED) for c in code.constants), "constants from elsewhere")
        _require(all(n.least <= (n.most if n.most is not None else n.least) for n in manifest.ranges), "an empty range")
        for output in code.results:
            counts = {"output": len(code.outputs), "constant": len(code.constants)}
            counts |= dict.fromkeys(("input", "replaced"), len(free))
            _require(len(code.results) == len(manifest.results), "code that gives other results than the model")
            _require(0 <= output.index < counts.get(output.kind, 0), f"a result that is {output.kind[:20]!r}")
    for device in manifest.devices:
        _require({device.plan, device.code} <= manifest.members.keys(), f"a program for {device.name[:40]!r} in part")


def is_result_name(name: str) -> bool:
    """Whether a result may be called so: names are printed, and the terminal acts on what is not text."""
    return 0 < len(name) <= _MOST_NAME and name.isprintable()


def _is_verdict(last: tuple[Result, ...]) -> bool:
    return bool(last) and (last[0].dtype, last[0].shape) == ("i64", ())


def _check_shape(shape: tuple[int | str, ...]) -> None:
    _require(len(shape) <= 32, f"a shape of {len(shape)} sizes")
    for size in shape:
        if isinstance(size, int):
            _require(0 <= size < 1 << 48, f"the size {size}")
        else:
            _require(len(size) <= _MOST_SIZE_TEXT, "a size that is long")
    parsed_shape(shape)


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise CorruptArtifactError(f"{MANIFEST} has {otherwise}")
