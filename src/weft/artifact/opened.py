"""An open artifact: mapped, and every byte of it checked before anything in it is used.

the archive's frame → the manifest → the digest of every member → whose code it is
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.artifact.container import Member, read_members
from weft.artifact.digests import digest_of
from weft.artifact.element_types import numpy_type
from weft.artifact.manifest import (
    GRAPH,
    MANIFEST,
    MOST_MANIFEST,
    PREPARED,
    SIGNATURES,
    WEIGHTS,
    CpuCode,
    Manifest,
    parse_manifest,
)
from weft.artifact.processors import runs_here
from weft.artifact.safetensors import read_head, read_tensors
from weft.artifact.trust import Signatures, parse_signatures, who_vouches
from weft.errors import ArtifactError, CorruptArtifactError

_MOST_SIGNATURES = 1 << 16


@dataclass(frozen=True)
class Artifact:
    """An open artifact whose every byte was checked against its manifest; who made it is another question."""

    path: str
    manifest: Manifest
    signatures: Signatures
    vouched: str
    """Whom the user trusts for it: `machine`, `key ...`, or nobody."""
    members: Mapping[str, Member]
    heads: Mapping[str, bytes]
    """What stands before the tensors of members: read once, and checked as it was read."""
    data: memoryview
    size: int

    def member(self, name: str) -> bytes:
        """A copy of a member, checked once it is one: what happens to the file later does not matter."""
        found = self.members[name]
        copy = bytes(self.data[found.start : found.start + found.size])
        if digest_of(copy) != self.manifest.members[name].sha512:
            raise _damaged(self.path, name)
        return copy

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """The arrays of a member, where they lie in the file."""
        found = self.members[name]
        data = self.data[found.start : found.start + found.size]
        return read_tensors(data, f"{self.path}: {name}", self.heads[name])

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """The model's own weights, which have the types and shapes that the manifest says."""
        found = self.tensors(WEIGHTS)
        stated = {each.name: each for each in self.manifest.arguments if each.constant}
        if stated.keys() != found.keys():
            odd = sorted(stated.keys() ^ found.keys())[0]
            raise CorruptArtifactError(f"{self.path}: the weight {odd[:80]} is stated or stored, but not both")
        for name, argument in stated.items():
            if found[name].dtype != numpy_type(argument.dtype) or found[name].shape != argument.shape:
                raise CorruptArtifactError(f"{self.path}: the weight {name[:80]} is not what the manifest says")
        return found

    def code_for_here(self) -> CpuCode | None:
        """The best machine code that this processor runs."""
        able = [code for code in self.manifest.processors if runs_here(code.triple, code.requires)]
        return max(able, key=lambda code: len(code.requires), default=None)


def open_artifact(path: str | os.PathLike[str]) -> Artifact:
    """Map a file and check all of it."""
    where = os.fspath(path)
    data = _mapped(where)
    members = read_members(data)
    texts = [
        _text(data, members, name, most) for name, most in ((MANIFEST, MOST_MANIFEST), (SIGNATURES, _MOST_SIGNATURES))
    ]
    manifest = parse_manifest(texts[0])
    signatures = parse_signatures(texts[1])
    heads = _check_members(where, data, members, manifest)
    vouched = who_vouches(texts[0], signatures)
    return Artifact(where, manifest, signatures, vouched, members, heads, data, len(data))


def _mapped(where: str) -> memoryview:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for ever.
        file = os.open(where, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ArtifactError(f"{where} cannot be opened: {error.strerror}") from error
    except ValueError as error:  # a NUL in it
        raise ArtifactError(f"{where!r} is not a path: {error}") from error
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{where} is not a file")
        if not status.st_size:
            raise CorruptArtifactError(f"{where} is empty", hint="fetch the file again")
        return memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(file)


def _text(data: memoryview, members: Mapping[str, Member], name: str, most: int) -> bytes:
    found = members.get(name)
    if found is None or found.size > most:
        raise CorruptArtifactError(f"an artifact without {name}, or with one that is too large")
    return bytes(data[found.start : found.start + found.size])


def _check_members(where: str, data: memoryview, members: Mapping[str, Member], manifest: Manifest) -> dict[str, bytes]:
    """Compare the members with their digests; gives the heads of those that hold tensors, as they were compared."""
    stated = manifest.members
    if {*stated, MANIFEST, SIGNATURES} != set(members) or not {GRAPH, WEIGHTS, PREPARED} <= stated.keys():
        raise CorruptArtifactError(f"{where} has other members than its manifest says")
    for name, digest in stated.items():
        if digest.size != members[name].size:
            raise _damaged(where, name)
    heads: dict[str, bytes] = {}
    for name, digest in stated.items():
        found = members[name]
        content = data[found.start : found.start + found.size]
        if name in (WEIGHTS, PREPARED):
            heads[name] = read_head(content, f"{where}: {name}")
        if digest_of(content, heads.get(name, b"")) != digest.sha512:
            raise _damaged(where, name)
    return heads


def _damaged(where: str, name: str) -> CorruptArtifactError:
    return CorruptArtifactError(f"{where} is damaged: {name} is not what it was", hint="fetch the file again")
