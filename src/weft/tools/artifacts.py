"""`weft compile`, `weft run` and `weft inspect`: models to files, and what is in them."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZipFile

import numpy as np

from weft.artifact.manifest import Manifest
from weft.artifact.opened import Artifact, open_artifact
from weft.artifact.processors import runs_here
from weft.artifact.read import load
from weft.artifact.signature import Signature, described, most_of
from weft.tools.terminal import Terminal, UsageError, scaled

if TYPE_CHECKING:
    from weft.artifact.manifest import Result


@dataclass(frozen=True)
class CompileOptions:
    """What `weft compile` is asked for."""

    output: Path
    targets: tuple[str, ...] = ("host",)
    weights: Path | None = None
    function: str | None = None
    license: str = ""
    sign: Path | None = None
    quantize: str = ""
    emit: str = "artifact"
    sizes: tuple[str, ...] = ()


def compile_model(terminal: Terminal, model: Path, asked: CompileOptions) -> None:
    """Write an artifact, or a shared object with its header."""
    from weft.artifact.sources import read_source
    from weft.artifact.write import Request, write_artifact

    if asked.emit not in ("artifact", "object"):
        raise UsageError(f"nothing is called {asked.emit!r} that could be written", hint="`artifact` or `object`")
    start = time.perf_counter()
    source = read_source(model, asked.weights, asked.function, _sizes(asked.sizes))
    request = Request(asked.targets, asked.license, asked.sign, asked.quantize)
    if asked.emit == "object":
        from weft.artifact.emit_object import emit_object

        written = [str(path) for path in emit_object(asked.output, source, request)]
        terminal.text(f"{' and '.join(written)}, {time.perf_counter() - start:.1f} s")
        terminal.finish({"ok": True, "files": written})
    manifest = write_artifact(asked.output, source, request)
    size = asked.output.stat().st_size
    terminal.text(f"{asked.output}: {scaled(size, 'B')}, {time.perf_counter() - start:.1f} s")
    terminal.text(str(Signature(manifest)))
    terminal.finish({"ok": True, "file": str(asked.output), "bytes": size, "targets": list(asked.targets)})


def _sizes(texts: Sequence[str]) -> dict[str, int | tuple[int, int | None]]:
    """Sizes by name: `batch=1` is a number, `batch=2..64` one that stays open, as is `batch=2..` without an end."""
    found: dict[str, int | tuple[int, int | None]] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        least, dots, most = number.partition("..")
        if not name or not least.isdecimal() or not (most.isdecimal() or not most):
            raise UsageError(f"{text} states no size", hint="--size batch=1, or --size batch=2..64 to keep it open")
        found[name] = (int(least), int(most) if most else None) if dots else int(least)
    return found


@dataclass(frozen=True)
class RunOptions:
    """What `weft run` is asked for."""

    inputs: tuple[str, ...] = ()
    output: Path | None = None
    trust: bool = False
    device: str = "cpu"
    threads: int | None = None


def run_model(terminal: Terminal, path: Path, asked: RunOptions) -> None:
    """Run an artifact on arrays from files."""
    model = load(path, trust=asked.trust, device=asked.device, threads=asked.threads)
    given, named = _inputs(asked.inputs)
    results = [_on_host(each) for each in model(*given, **named)]
    names = [each.name for each in model.outputs]
    if asked.output is not None:
        _save(asked.output, dict(zip(names, results, strict=True)))
    for name, array in zip(names, results, strict=True):
        shown = np.array2string(array.reshape(-1)[:6], threshold=6, precision=5, separator=" ")
        terminal.text(f"{name} {array.dtype}{list(array.shape)} {shown[:-1]}{' …' if array.size > 6 else ''}]")
    described = [
        {"name": n, "dtype": str(a.dtype), "shape": list(a.shape)} for n, a in zip(names, results, strict=True)
    ]
    terminal.finish({"ok": True, "how": model.how, "results": described, "output": asked.output and str(asked.output)})


def _on_host(array: Any) -> np.ndarray:
    return array.numpy() if hasattr(array, "numpy") else np.asarray(array)


def _inputs(texts: Sequence[str]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    given: list[np.ndarray] = []
    named: dict[str, np.ndarray] = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if equals and not Path(text).exists():
            named[name] = _array(Path(file))
        elif named:
            raise UsageError(f"{text} has no name and comes behind inputs that have", hint="name=FILE")
        else:
            given.append(_array(Path(text)))
    return given, named


def _array(path: Path) -> np.ndarray:
    try:
        found: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} is not an array: {error}", hint="`np.save` writes such files") from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{path} holds several arrays", hint="give one --input for each: name=FILE.npy")
    return found  # pyright: ignore[reportUnknownVariableType]


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    try:
        with open(path, "wb") as file, ZipFile(file, "w") as archive:
            for name, array in arrays.items():  # `np.savez` takes no array that is called `file`
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def inspect_artifact(terminal: Terminal, path: Path, ir: bool = False) -> None:
    """Say what is in an artifact, every byte of which is checked."""
    artifact = open_artifact(path)
    if ir:
        from weft.artifact.recompile import graph_text

        terminal.text(graph_text(artifact))
    else:
        _describe(terminal, artifact)
    terminal.finish({"ok": True} | _facts(artifact))


def _describe(terminal: Terminal, artifact: Artifact) -> None:
    manifest = artifact.manifest
    terminal.text(f"{artifact.path}: {scaled(artifact.size, 'B')}, format {manifest.format}, by Weft {manifest.weft}")
    taken = ", ".join(map(described, Signature(manifest).free))
    terminal.text(f"model     {manifest.name}({taken}) -> {', '.join(map(_result, _visible(manifest)))}")
    for each in manifest.ranges:
        terminal.text(f"size      {each.symbol} from {each.least} to {most_of(each)}")
    terminal.text(f"license   {manifest.license or 'none stated'}")
    weights = [argument for argument in manifest.arguments if argument.constant]
    terminal.text(f"weights   {len(weights)} tensors, {scaled(artifact.members['weights.safetensors'].size, 'B')}")
    here = artifact.code_for_here()
    for code in manifest.processors:
        able = "runs here" if runs_here(code.triple, code.requires) else "does not run here"
        chosen = ", the best here" if code is here else ""
        terminal.text(
            f"code      {code.name}: {code.cpu}, {scaled(artifact.members[code.code].size, 'B')}, {able}{chosen}"
        )
    for device in manifest.devices:
        terminal.text(f"code      {device.name}: PTX, {scaled(artifact.members[device.code].size, 'B')}")
    signed = f"signed by {artifact.signatures.key}" if artifact.signatures.key else "not signed"
    terminal.text(f"trust     {_trust(artifact.vouched)}; {signed}")


def _trust(vouched: str) -> str:
    if vouched == "machine":
        return "you made it on this machine: its code runs"
    if vouched:
        return f"signed by a key that you trust ({vouched[4:20]}…): its code runs"
    return "unknown: its graph is compiled anew, unless you say --trust"


def _visible(manifest: Manifest) -> tuple[Result, ...]:
    return manifest.results[:-1] if manifest.mistakes else manifest.results


def _result(result: Result) -> str:
    return f"{result.name} {result.dtype}[{', '.join(map(str, result.shape))}]"


def _facts(artifact: Artifact) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(json.dumps(asdict(artifact.manifest)))
    here = artifact.code_for_here()
    return facts | {"trusted": artifact.vouched, "signed_by": artifact.signatures.key, "runs": here and here.name}
