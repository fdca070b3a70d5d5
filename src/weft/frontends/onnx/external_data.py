"""Tensors that lie in files beside a model: read from the model's own folder and from nowhere else."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from weft.errors import ModelError
from weft.frontends.onnx.file_identity import FileIdentity

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe would block until someone writes to it.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class ExternalFiles:
    """The files of one model, each mapped once; nothing is read before its size has been compared."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._mapped: dict[str, memoryview] = {}
        self.identities: list[FileIdentity] = []
        """Of the files that were opened."""

    def read(self, tensor: str, location: str, offset: int, length: int) -> memoryview:
        """`length` bytes of a file; raises where the file is not the model's own or does not have them."""
        found = self._mapped.get(location)
        if found is None:
            found = self._mapped[location] = self._map(tensor, location)
        if offset < 0 or length < 0 or offset + length > len(found):
            raise ModelError(
                f"initializer {tensor!r} wants bytes {offset} to {offset + length} of {location!r}, "
                f"which has {len(found)}",
                hint="the file is cut off, or the model is not the one that it was written with",
            )
        return found[offset : offset + length]

    def _map(self, tensor: str, location: str) -> memoryview:
        if self._folder is None:
            raise ModelError(
                f"initializer {tensor!r} lies in the file {location!r}, but the model was given as bytes",
                hint="give the model's path, or its `folder`",
            )
        parts = location.replace("\\", "/").split("/")
        if not location or "\0" in location or location[0] in "/\\" or any(part in ("", ".", "..") for part in parts):
            raise ModelError(
                f"initializer {tensor!r} names the file {location!r}, expected one inside the model's folder",
                hint="absolute paths and `..` are refused",
            )
        opened: list[int] = []
        try:
            opened.append(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            for part in parts[:-1]:
                opened.append(os.open(part, _FOLDER, dir_fd=opened[-1]))
            opened.append(os.open(parts[-1], _FILE, dir_fd=opened[-1]))
            about = os.fstat(opened[-1])
            if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
                what = "a hard link" if stat.S_ISREG(about.st_mode) else "not a plain file"
                raise ModelError(f"initializer {tensor!r} names {location!r}, which is {what}", hint="copy the file")
            self.identities.append(FileIdentity.of(self._folder.joinpath(*parts), about))
            if not about.st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(opened[-1], 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise ModelError(
                f"initializer {tensor!r} names {location!r}, which cannot be read: {error.strerror}",
                hint="the file must be inside the model's folder; symbolic links are refused",
            ) from error
        finally:
            for descriptor in opened:
                os.close(descriptor)
