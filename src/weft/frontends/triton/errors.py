"""What an author of a kernel can get wrong: errors that name the line, the types seen, and what to write instead.

An operation of the language that is refused raises one of these without a place. Whoever evaluates the author's text
adds it on the way out, with `add_frame`: first the line of the mistake, then those of the calls that led there.
The names that Triton gives to errors are here too: users catch them.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import DTypeError, ShapeError, UnsupportedError, WeftError


@dataclass(frozen=True)
class Frame:
    """A place in the text of a kernel: columns count from 0, and `end` is the first column after the marked part."""

    file: str
    line: int
    column: int
    end: int
    text: str
    function: str

    def __str__(self) -> str:
        indent = len(self.text) - len(self.text.lstrip())
        width = max(1, min(self.end, len(self.text)) - self.column)
        marks = " " * max(0, self.column - indent) + "^" * width
        return (
            f"{self.file}:{self.line}:{self.column + 1}, in {self.function}\n      {self.text.strip()}\n      {marks}"
        )


class TritonError(WeftError):
    """Base of the errors that Triton's users know by name."""


class KernelError(TritonError):
    """A kernel that cannot be compiled or run as it is written."""

    def __init__(self, message: str, *, location: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, location=location, hint=hint)
        self.frames: list[Frame] = []
        self.types: dict[str, str] = {}
        self.owner = 0  # which evaluation added the last frame

    @property
    def error_message(self) -> str:
        """The name that Triton gives to the message without its place."""
        return self.message

    @property
    def line(self) -> int | None:
        """The line of the mistake in the author's file."""
        return self.frames[0].line if self.frames else None

    def add_frame(self, frame: Frame, types: dict[str, str] | None = None) -> None:
        """Say where this happened, or, if that is said already, from where it was called."""
        if not self.frames:
            self.types = types or {}
            self.location = f"{frame.file}:{frame.line}:{frame.column + 1}"
        self.frames.append(frame)

    def __str__(self) -> str:
        parts = [self.message]
        if self.frames:
            parts.append(f"  at {self.frames[0]}")
        elif self.location:
            parts.append(f"  at {self.location}")
        parts += [f"    {name}: {shown}" for name, shown in self.types.items()]
        parts += [f"  called from {frame}" for frame in self.frames[1:]]
        if self.hint:
            parts.append(f"  hint: {self.hint}")
        return "\n".join(parts)


class CompilationError(KernelError):
    """A kernel that cannot be compiled."""


class KernelTypeError(CompilationError, DTypeError, TypeError):
    """A value of a type that the operation does not take."""


class KernelShapeError(CompilationError, ShapeError, ValueError):
    """Tiles whose shapes do not fit together, or a shape that is none."""


class KernelValueError(CompilationError, ValueError):
    """An argument outside of what the operation takes."""


class KernelNameError(CompilationError, NameError):
    """A name that is not defined, or that a kernel must not see."""


class KernelUnsupportedError(CompilationError, UnsupportedError):
    """Something that the language or this target cannot do."""


class CompileTimeAssertionFailure(CompilationError, AssertionError):
    """A `tl.static_assert` whose condition does not hold."""


class MemoryAccessError(KernelError, IndexError):
    """An access outside of the tensor that the pointer belongs to, or to memory that nothing was written to."""


class ReadOnlyError(KernelError, ValueError):
    """A kernel that writes to an argument whose memory is read-only."""


class RaceError(KernelError):
    """Two programs that write to the same place, with nothing that says which comes first."""


class LaunchError(KernelError, RuntimeError):
    """A kernel called, or launched, in a way that it cannot be."""


class ArgumentError(WeftError, TypeError):
    """Arguments that do not fit the parameters of a kernel."""


class OptionError(WeftError, KeyError):
    """A keyword of a launch that is neither a parameter nor an option."""

    __str__ = Exception.__str__  # KeyError would show the text as a string in quotes


class DeviceAssertError(KernelError, AssertionError):
    """A `tl.device_assert` whose condition does not hold."""


class OutOfResources(TritonError):
    """A kernel that needs more of something than the target has."""

    def __init__(self, required: int, limit: int, name: str) -> None:
        super().__init__(
            f"out of resource: {name}, Required: {required}, Hardware limit: {limit}",
            hint="smaller tiles or fewer stages need less",
        )
        self.required = required
        self.limit = limit
        self.name = name

    def __reduce__(self) -> tuple[type[OutOfResources], tuple[int, int, str]]:
        return type(self), (self.required, self.limit, self.name)


class PTXASError(TritonError):
    """The assembler of NVIDIA refused a kernel."""


class AutotunerError(TritonError):
    """No configuration of a kernel could be run."""


# Triton's names. It tells compiled from interpreted kernels by the error; here the same mistake is the same error.
InterpreterError = KernelError
UnsupportedLanguageConstruct = KernelUnsupportedError


def from_exception(error: Exception) -> KernelError:
    """The error to show for one that was not raised as a kernel's: Python's own, or one from below the language."""
    if isinstance(error, KernelError):
        return error
    if isinstance(error, WeftError):
        message, hint = error.message, error.hint
    else:
        message, hint = str(error) or type(error).__name__, None
    for python, kind in _KINDS:
        if isinstance(error, python):
            return kind(message, hint=hint)
    known = isinstance(error, WeftError)
    return CompilationError(message if known else f"{type(error).__name__}: {message}", hint=hint)


_KINDS: tuple[tuple[type[Exception], type[CompilationError]], ...] = (
    (ShapeError, KernelShapeError),
    (UnsupportedError, KernelUnsupportedError),
    (NotImplementedError, KernelUnsupportedError),
    (TypeError, KernelTypeError),
    (DTypeError, KernelTypeError),
    (NameError, KernelNameError),
    (AttributeError, KernelTypeError),
    (ValueError, KernelValueError),
    (ArithmeticError, KernelValueError),
    (LookupError, KernelValueError),
)
