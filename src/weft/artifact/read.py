"""An artifact → a callable: `weft.load`, `weft run`. Trusted code is run, and the graph is compiled anew otherwise."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np

from weft.artifact.manifest import PREPARED, WEIGHTS, Result
from weft.artifact.mistakes import mistake, unknown_mistake
from weft.artifact.native import NativeProgram
from weft.artifact.opened import Artifact, open_artifact
from weft.artifact.signature import Signature
from weft.errors import CorruptArtifactError
from weft.runtime.cores import checked_threads

_MOST_CODE = 1 << 30


class Runs(Protocol):
    """What carries out calls."""

    def __call__(self, given: Any, named: Any, threads: int | None) -> tuple[Any, ...]: ...


class Model:
    """A loaded model: arrays in, by position or name, arrays out. It may be called from several threads at once."""

    def __init__(self, artifact: Artifact, program: Runs, how: str, threads: int | None) -> None:
        self.artifact = artifact
        self.how = how
        """What runs: `machine code for host`, or `compiled anew`."""
        self.threads = threads
        self.signature = Signature(artifact.manifest)
        self._program = program

    @property
    def name(self) -> str:
        return self.artifact.manifest.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of what a call takes."""
        return tuple(argument.name for argument in self.signature.free)

    @property
    def outputs(self) -> tuple[Result, ...]:
        """The types and shapes of what a call gives."""
        manifest = self.artifact.manifest
        return manifest.results[:-1] if manifest.mistakes else manifest.results

    def __call__(self, *arrays: Any, **named: Any) -> tuple[Any, ...]:
        results = self._program(arrays, named, self.threads)
        mistakes = self.artifact.manifest.mistakes
        if not mistakes:
            return results
        verdict = int(np.asarray(results[-1]))
        if 0 < verdict <= len(mistakes):
            raise mistake(self.name, mistakes[verdict - 1].kind, mistakes[verdict - 1].message)
        if verdict:
            raise unknown_mistake(self.name, verdict)
        return results[:-1]

    def __repr__(self) -> str:
        return f"<weft model {self.signature}, {self.how}>"


def load(
    path: str | os.PathLike[str], *, trust: bool = False, device: str = "cpu", threads: int | None = None
) -> Model:
    """Load an artifact that `weft compile` wrote.

    Its machine code runs if this user made it on this machine, if it is signed by a key that the user has listed, or if
    the caller says that the file can be trusted; and if this processor has all that the code needs. Otherwise its graph
    is compiled anew, and kept in the disk cache. The `device` is `cpu`, or a GPU: `cuda`, `cuda:1`.
    """
    threads = checked_threads(threads)
    artifact = open_artifact(path)
    may_run = trust or bool(artifact.vouched)
    if device == "cpu" and may_run and (code := artifact.code_for_here()) is not None:
        if code.code not in artifact.members or artifact.members[code.code].size > _MOST_CODE:
            raise CorruptArtifactError(f"{artifact.path} has code that is too large")
        tensors = {WEIGHTS: artifact.weights, PREPARED: artifact.tensors(PREPARED)}
        program = NativeProgram(artifact.manifest, code, artifact.member(code.code), tensors)
        return Model(artifact, program, f"machine code for {code.name}", threads)
    from weft.artifact.recompile import on_device, recompiled

    if device != "cpu" and may_run and (found := on_device(artifact, device)) is not None:
        return Model(artifact, *found, threads)
    return Model(artifact, recompiled(artifact, device, threads, trusted=may_run), "compiled anew", threads)
