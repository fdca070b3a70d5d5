"""Every error a user can meet: one hierarchy; each names a place in the user's program and says what to do."""

from __future__ import annotations

from collections.abc import Hashable


class WeftError(Exception):
    """Base of all of Weft's errors: what happened, where in the user's program, and what to do about it."""

    def __init__(self, message: str, *, location: str | None = None, hint: str | None = None) -> None:
        self.message = message
        self.location = location
        self.hint = hint
        super().__init__(self._text())

    def _text(self) -> str:
        place = [f"  at {self.location}"] if self.location else []
        return "\n".join([self.message, *place, *([f"  hint: {self.hint}"] if self.hint else [])])

    def locate(self, location: str | None) -> None:
        """Name a place in the user's program, where the error names none."""
        if self.location is None:
            self.location = location
            self.args = (self._text(),)


class ShapeError(WeftError):
    """Operand shapes that do not fit together."""


class DTypeError(WeftError):
    """An operand type that the operation does not take."""


class ParseError(WeftError):
    """Text that is not a program in one of Weft's dialects."""


class ModelError(ParseError):
    """A model file that is damaged, or that is not what its format allows."""


class UnsupportedError(WeftError):
    """Something Weft has no lowering for and could not hand to a library either."""


class ShardingError(WeftError):
    """A layout of tensors on many ranks that does not fit the tensors, the mesh or the program."""


class RankError(WeftError, RuntimeError):
    """A rank that died or does not answer; `ranks` are their numbers, where they are known."""

    def __init__(
        self, message: str, *, location: str | None = None, hint: str | None = None, ranks: tuple[int, ...] = ()
    ) -> None:
        super().__init__(message, location=location, hint=hint)
        self.ranks = ranks


class LoweringError(WeftError):
    """A kernel could not be made from a group of operations.

    `sources` are the places in the user's program that the operations come from, where they are known.
    """

    def __init__(
        self,
        message: str,
        *,
        location: str | None = None,
        hint: str | None = None,
        sources: frozenset[Hashable] = frozenset(),
    ) -> None:
        super().__init__(message, location=location, hint=hint)
        self.sources = sources


class TargetError(WeftError):
    """A target that no one provides, or that cannot be loaded."""


class CompilationError(WeftError):
    """LLVM refused a kernel; the report says how to send it in."""


class GuardError(WeftError):
    """A compiled program was called with arguments it was not compiled for."""


class PlaceError(WeftError, IndexError, RuntimeError):
    """An index in a program's data that lies outside of what it indexes.

    Eager raises an `IndexError` for indexing and embeddings, and a `RuntimeError` for `gather` and `scatter`.
    """


class DivisionError(WeftError, RuntimeError):
    """An integer in a program's data that is divided by zero."""


class CountError(WeftError, RuntimeError):
    """A number of values, in a program's data, that does not fit what it is for."""


class PowerError(WeftError, RuntimeError):
    """Integers that are raised to a negative power, which they have not."""


class DataError(WeftError, RuntimeError):
    """Data for which an operation is not defined: probabilities below zero, a range without end."""


class DataValueError(DataError, ValueError):
    """Data that torch refuses with an error of this kind: a variance below zero."""


class MissingError(WeftError, ModuleNotFoundError):
    """A package that is not installed, and that what was asked for needs."""


_EXTRAS = {
    "torch": "torch",
    "functorch": "torch",
    "onnx": "onnx",
    "jax": "jax",
    "matplotlib": "plots",
    "pyarrow": "plan",
}
"""What installs a package with Weft."""


def missing(error: ModuleNotFoundError, wanted: str) -> MissingError | None:
    """What to say of a package that is not there; None where it is not one that Weft does without."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        return None
    hint = f"`pip install weft[{_EXTRAS[package]}]`; `weft doctor` says what there is"
    return MissingError(f"{wanted} needs {package}, which is not installed", hint=hint)


class DeviceError(WeftError):
    """The GPU or its driver failed. `result` and `number` are the driver's name and number of what went wrong."""

    def __init__(self, message: str, *, result: str = "", number: int = 0, hint: str | None = None) -> None:
        self.result = result
        self.number = number
        super().__init__(f"{message} ({result}, {number})" if result else message, hint=hint)


class NoDeviceError(DeviceError):
    """There is no GPU, or no driver for one."""


class OldDriverError(DeviceError):
    """The GPU's driver is older than what the code was made for."""


class UnsupportedDeviceError(DeviceError):
    """The GPU is not one that the code, or Weft, is made for."""


class DeviceMemoryError(DeviceError):
    """The GPU has not enough memory left."""


class KernelFaultError(DeviceError):
    """A kernel did what the GPU does not allow: an illegal access, most often. The process cannot use the GPU again."""


class ArtifactError(WeftError):
    """An artifact, `model.weft`, that cannot be written, read or run."""


class CorruptArtifactError(ArtifactError):
    """A file that is not an artifact, or one that is cut off, damaged or forged."""


class ArtifactVersionError(ArtifactError):
    """An artifact in a format that this version of Weft does not know."""


class ArtifactTrustError(ArtifactError):
    """A signature that is not one, or a key that cannot be used."""
