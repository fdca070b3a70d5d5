"""A graph and its weights → an artifact: `weft compile`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from weft import __version__
from weft.artifact.compile_native import compile_native, describe_code
from weft.artifact.container import write_members
from weft.artifact.digests import digest_of
from weft.artifact.element_types import numpy_type
from weft.artifact.manifest import (
    FORMAT,
    GRAPH,
    MANIFEST,
    MOST_TOLD,
    PREPARED,
    SIGNATURES,
    WEIGHTS,
    Argument,
    CpuCode,
    DeviceProgram,
    Digest,
    Manifest,
    Mistake,
    Range,
    Result,
    is_result_name,
    to_text,
)
from weft.artifact.processors import HOST
from weft.artifact.safetensors import to_pieces
from weft.artifact.trust import Signatures, seal, signed
from weft.artifact.whole_files import whole_file
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.errors import ArtifactError, DTypeError, ShapeError
from weft.frontends.text import read_function
from weft.ir.types import Tensor, tensor_of
from weft.ops.graph import FuncOp
from weft.pipelines import compile_nvidia
from weft.runtime.signature import Signature
from weft.runtime.stored_programs import encode_program
from weft.tile.text import print_program

CODE = "code"


@dataclass(frozen=True)
class Source:
    """A model as it comes from a front end: the text of its graph, and its weights by the names of arguments."""

    text: str
    weights: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    function: str | None = None
    name: str = ""
    mistakes: tuple[tuple[str, str], ...] = ()
    """Kinds and texts. The last result says which of them, counted from 1, the data has, or 0: nobody gets it."""


@dataclass(frozen=True)
class Request:
    """What to make of it."""

    targets: tuple[str, ...] = (HOST,)
    license: str = ""
    sign: Path | None = None
    quantize: str = ""

    @property
    def config(self) -> Config:
        return Config(strict=True, freeze=True, quantize=self.quantize)


def write_artifact(path: Path, source: Source, request: Request | None = None) -> Manifest:
    """Compile a model for each target and write it to a file, all of it or nothing."""
    request = request or Request()
    function, signature = read_function(source.text, source.function, source.weights)
    weights = checked_weights(source, signature)
    text = print_program(function)
    prepared: dict[str, np.ndarray] = {}
    contents: dict[str, Sequence[bytes | memoryview]] = {GRAPH: [text.encode()]}
    processors: list[CpuCode] = []
    devices: list[DeviceProgram] = []
    for name in dict.fromkeys(request.targets):
        again, _ = read_function(text)
        if name.startswith("sm_"):
            devices.append(_compile_device(again, signature, name, request, contents))
            continue
        code = compile_native(again, name, request.config)
        member = f"{CODE}/{name}.so"
        processors.append(describe_code(code, member, signature, weights, prepared))
        contents[member] = [code.shared_object()]
    contents[WEIGHTS] = to_pieces(weights)
    contents[PREPARED] = to_pieces(prepared)
    manifest = Manifest(
        FORMAT,
        __version__,
        source.name or signature.name,
        request.license,
        signature.name,
        request.quantize,
        {name: _digest(pieces) for name, pieces in contents.items()},
        _arguments(signature),
        results_of(function),
        tuple(Mistake(kind, message[:MOST_TOLD]) for kind, message in source.mistakes),
        tuple(Range(*each) for each in signature.ranges),
        tuple(processors),
        tuple(devices),
    )
    stated = to_text(manifest)
    signatures = Signatures(seal(stated), *(signed(stated, request.sign) if request.sign else ()))
    ordered = [(MANIFEST, [stated]), *contents.items(), (SIGNATURES, [json.dumps(asdict(signatures)).encode()])]
    with whole_file(path) as file:
        write_members(file, ordered)
    return manifest


def checked_weights(source: Source, signature: Signature) -> dict[str, np.ndarray]:
    """The weights of a model, each of the type and shape that the graph states, row by row."""
    names = [signature.names[place] for place in signature.constants]
    if missing := [name for name in names if name not in source.weights]:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ArtifactError(
            f"{signature.name} has the constant {missing[0]}{more}, whose values are not given",
            hint="give an .npz or .safetensors file by --weights",
        )
    found: dict[str, np.ndarray] = {}
    for place, name in zip(signature.constants, names, strict=True):
        array, stated = np.asarray(source.weights[name]), signature.arguments[place]
        if array.dtype != numpy_type(stated.dtype.name):
            raise DTypeError(f"the weight {name} is of type {stated.dtype}, got {array.dtype}")
        if tuple(array.shape) != tuple(stated.shape):
            raise ShapeError(f"the weight {name} has the shape {tuple(map(str, stated.shape))}, got {array.shape}")
        found[name] = np.ascontiguousarray(array).reshape(array.shape)
    return found


def results_of(function: FuncOp) -> tuple[Result, ...]:
    """What a function gives."""
    last = function.block.last_op
    assert last is not None
    described = [_described(tensor_of(value.type)) for value in last.operands]
    return tuple(Result(*each, name) for each, name in zip(described, result_names(function), strict=True))


def result_names(function: FuncOp) -> list[str]:
    """What results are called: as the model says, or by their numbers."""
    stated = [] if function.result_names is None else [each.data for each in function.result_names]
    found: list[str] = []
    for number in range(len(function.returned.operands)):
        own = stated[number] if number < len(stated) else ""
        found.append(own if is_result_name(own) and stated.count(own) == 1 else _free_name(number, stated))
    return found


def _free_name(number: int, stated: Sequence[str]) -> str:
    name = f"result{number}"
    while name in stated:
        name += "_"
    return name


def _arguments(signature: Signature) -> tuple[Argument, ...]:
    return tuple(
        Argument(name, *_described(tensor), place in signature.constants, place in signature.replaced)
        for place, (name, tensor) in enumerate(zip(signature.names, signature.arguments, strict=True))
    )


def _described(tensor: Tensor) -> tuple[str, tuple[int | str, ...]]:
    return tensor.dtype.name, tuple(size if isinstance(size, int) else str(size) for size in tensor.shape)


def _compile_device(
    function: FuncOp,
    signature: Signature,
    name: str,
    request: Request,
    contents: dict[str, Sequence[bytes | memoryview]],
) -> DeviceProgram:
    """Kernels for a GPU that need not be there, as PTX, which its driver assembles."""
    compiled = compile_nvidia(function, request.config, target_named(name))
    meta, blobs = encode_program(compiled.plan, compiled.code, signature)
    plan, code = f"{CODE}/{name}.json", f"{CODE}/{name}.ptx.json"
    contents[plan] = [json.dumps(meta, allow_nan=False).encode()]
    contents[code] = [json.dumps({kernel: ptx.decode() for kernel, ptx in blobs.items()}).encode()]
    return DeviceProgram(name, plan, code)


def _digest(pieces: Sequence[bytes | memoryview]) -> Digest:
    # A member is digested in one piece: what of it is large is joined once.
    whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return Digest(len(whole), digest_of(whole))
