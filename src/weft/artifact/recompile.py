"""Artifacts whose machine code does not run here, or may not: their graph is compiled anew, once it is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from xdsl.ir import Operation

from weft.artifact.checked_json import parse_json
from weft.artifact.manifest import GRAPH, Argument
from weft.artifact.opened import Artifact
from weft.config import Config
from weft.errors import ArtifactTrustError, CorruptArtifactError, WeftError
from weft.frontends.text import compile_text, load_program, read_function
from weft.ir.expr import product, symbols_of
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import GraphOp
from weft.ops.control import ControlOp
from weft.ops.graph import FuncOp, LaunchOp, OpaqueOp, ReturnOp, YieldOp
from weft.ops.matmul.dot import TiledDot
from weft.ops.size_checks import SizeChecks, states_strides, tensors_of
from weft.ops.windows.convolution import BY_WEIGHTS
from weft.runtime.array_function import ArrayFunction
from weft.runtime.stored_programs import BAD_ENTRY

MOST_TEXT = 64 << 20
_MOST_DEPTH = 64
_STATED = frozenset(
    (
        "sym_name",
        "arg_names",
        "result_names",
        "symbols",
        "constants",
        "replaced",
        "mutated",
        "arg_strides",
        "result_strides",
    )
)
"""What front ends say of a function. All else is noted by passes, which believe each other."""
# What parsers, verifiers and passes raise for a program that no front end would make.
_BAD_PROGRAM = (*BAD_ENTRY, AssertionError, NotImplementedError, StopIteration)


class Recompiled:
    """A graph that was compiled in this process, called as machine code of an artifact is."""

    def __init__(self, function: ArrayFunction[Any]) -> None:
        self.function = function

    def __call__(self, given: Sequence[Any], named: Mapping[str, Any], threads: int | None) -> tuple[Any, ...]:
        return self.function(*given, **named)


def recompiled(artifact: Artifact, device: str, threads: int | None, *, trusted: bool = False) -> Recompiled:
    """Compile the graph of an artifact for a device of this machine."""
    text = graph_text(artifact)
    config = Config(strict=True, freeze=True, quantize=artifact.manifest.quantize)
    try:
        check_graph(artifact, text, trusted=trusted)
        return Recompiled(compile_text(text, constants=artifact.weights, config=config, device=device, threads=threads))
    except WeftError:
        raise
    except _BAD_PROGRAM as error:
        said = str(error).splitlines()
        raise CorruptArtifactError(
            f"{artifact.path}: its graph cannot be compiled: {said[0][:160] if said else repr(error)}",
            hint="fetch the file again; if it is as it was made, report it",
        ) from error


def graph_text(artifact: Artifact) -> str:
    """The text of an artifact's graph."""
    if artifact.members[GRAPH].size > MOST_TEXT:
        raise CorruptArtifactError(f"{artifact.path} has a graph of {artifact.members[GRAPH].size} bytes")
    try:
        text = artifact.member(GRAPH).decode()
    except UnicodeDecodeError:
        raise CorruptArtifactError(f"{artifact.path}: its graph is not text") from None
    depth = deepest = 0
    for piece in text.split("({")[1:]:
        depth += 1
        deepest = max(deepest, depth)
        depth -= piece.count("})")
    if deepest > _MOST_DEPTH:
        raise CorruptArtifactError(f"{artifact.path}: its graph has regions in regions, {deepest} deep")
    return text


def check_graph(artifact: Artifact, text: str, *, trusted: bool) -> None:
    """Parse and verify the graph; it takes what the manifest says, and no value of it is larger than the memory.

    Unless it is `trusted` it has nothing in it that could write outside of its own values.
    """
    function, signature = read_function(text)
    if not trusted:
        _require_plain(artifact, function)
    own = [(name, _described(tensor)) for name, tensor in zip(signature.names, signature.arguments, strict=True)]
    stated = [(each.name, _stated(each)) for each in artifact.manifest.arguments]
    places = [place for place, each in enumerate(artifact.manifest.arguments) if each.constant]
    if own != stated or list(signature.constants) != places:
        raise CorruptArtifactError(f"{artifact.path}: its graph takes other arguments than its manifest says")
    given = [_described(tensor_of(value.type)) for value in function.returned.operands]
    if given != [(each.dtype, each.shape) for each in artifact.manifest.results]:
        raise CorruptArtifactError(f"{artifact.path}: its graph gives other results than its manifest says")
    checks = SizeChecks(function)
    if not any(symbols_of(size) for tensor in tensors_of(function) for size in tensor.shape):
        checks({})
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for tensor in tensors_of(function):
        size = product(tensor.shape)
        if isinstance(size, int) and size * tensor.dtype.bytes > memory:
            raise CorruptArtifactError(
                f"{artifact.path}: its graph has a value of {size * tensor.dtype.bytes} bytes, a {tensor}",
                hint="this machine has not so much memory",
            )


def _require_plain(artifact: Artifact, function: FuncOp) -> None:
    """Refuse kernels that someone wrote, and what only passes may say: where kernels lie, and what they write over."""
    for op in function.walk():
        if isinstance(op, LaunchOp):
            raise ArtifactTrustError(
                f"{artifact.path} has a kernel that somebody wrote, which could do anything",
                hint="list the key that it is signed with, or say that you trust the file: `trust=True`, `--trust`",
            )
        if not _is_plain(op, function):
            raise CorruptArtifactError(f"{artifact.path}: its graph has a {op.name} as only the compiler writes it")


def _is_plain(op: Operation, function: FuncOp) -> bool:
    if isinstance(op, FuncOp):
        return op is function and op.attributes.keys() <= _STATED
    # A pass makes tiled matmuls, and works out of data where their kernels write.
    if isinstance(op, TiledDot) or states_strides(op):
        return False
    if isinstance(op, ControlOp):
        return not op.names
    if isinstance(op, GraphOp):
        return all("." not in key or key == BY_WEIGHTS for key in op.attributes)
    return isinstance(op, ReturnOp | YieldOp | OpaqueOp)


def on_device(artifact: Artifact, device: str) -> tuple[Recompiled, str] | None:
    """The program for a GPU of this machine, if the artifact has one."""
    from weft.targets.nvidia import Nvidia

    _, _, number = device.partition(":")
    gpu = Nvidia.here(Config(), int(number) if number.isdecimal() else 0).gpu
    for program in artifact.manifest.devices:
        if program.name == gpu.arch:
            meta = parse_json(artifact.member(program.plan), program.plan)
            texts = parse_json(artifact.member(program.code), program.code)
            try:
                blobs = {str(name): str(ptx).encode() for name, ptx in texts.items()}
                return Recompiled(load_program(meta, blobs, artifact.weights, device)), f"kernels for {gpu.arch}"
            except WeftError:
                raise
            except BAD_ENTRY as error:
                raise CorruptArtifactError(f"{artifact.path}: {program.name} cannot be loaded: {error!r}") from error
    return None


def _described(tensor: Tensor) -> tuple[str, tuple[int | str, ...]]:
    return tensor.dtype.name, tuple(size if isinstance(size, int) else str(size) for size in tensor.shape)


def _stated(argument: Argument) -> tuple[str, tuple[int | str, ...]]:
    return argument.dtype, argument.shape
