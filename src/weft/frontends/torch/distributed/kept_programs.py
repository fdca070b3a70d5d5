"""The programs that a model on many ranks has compiled, by what they were compiled for; the last used are kept."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Generic, TypeVar

from weft.diagnostics import warn
from weft.frontends.torch.distributed.function_contents import Unknown

_Program = TypeVar("_Program")

_MOST = 64
"""Programs of one model, at most: shapes, modes and losses that are used by turns."""
_ADVICE = "give tensors that change as targets= in place of a loss's closure"


@dataclass
class KeptPrograms(Generic[_Program]):
    """Programs by their keys. All ranks use them in the same order, so that they keep and drop the same ones."""

    most: int = _MOST
    programs: OrderedDict[Hashable, _Program] = field(default_factory=OrderedDict[Hashable, _Program])

    def get(self, key: Hashable, compiled: Callable[[], _Program]) -> _Program:
        """The program of a key, compiled if there is none; of more than are kept, the longest unused goes.

        Of a key that is not known nothing is kept.
        """
        if isinstance(key, Unknown):
            what = "a model on many ranks is compiled anew at every call"
            warn("cache", what, f"what its loss computes by cannot be compared: {key.why}", _ADVICE)
            return compiled()
        if key in self.programs:
            self.programs.move_to_end(key)
            return self.programs[key]
        program = self.programs[key] = compiled()
        if len(self.programs) > self.most:
            self.programs.popitem(last=False)
            warn(
                "cache",
                f"a model on many ranks was compiled for more than {self.most} kinds of calls",
                "and the longest unused is dropped",
                f"pad batches to few shapes, and {_ADVICE}",
            )
        return program

    def __len__(self) -> int:
        return len(self.programs)


def described_function(function: Any) -> str:
    """A function in words that are the same on every rank that has the same one."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{name} {hashlib.sha256(code.co_code).hexdigest()[:8]}" if isinstance(code, CodeType) else name
