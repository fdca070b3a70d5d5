"""What became of a random program: one word, a reason, and a signature by which failures are told apart."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal[
    "right",  # as eager, or within the bound
    "refused",  # eager raises, and so does the compiled program
    "wrong",
    "raises",  # where eager does not
    "crashes",
    "hangs",
    "uncompiled",  # right, but the compiler failed inside and torch ran it
    "accepts",  # eager raises, the compiled program does not
    "torch",  # the identity backend fails the same way
    "undecided",  # a rounding error more or less anywhere changes the result as much
]
FAILURES: frozenset[Status] = frozenset(("wrong", "raises", "crashes", "hangs", "uncompiled"))


@dataclass(frozen=True)
class Verdict:
    """The verdict on one program."""

    status: Status
    reason: str = ""
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.status in FAILURES

    @property
    def signature(self) -> str:
        """Equal for failures that are probably one: the words of the reason, without numbers and names."""
        words = re.sub(r"0x[0-9a-f]+|\d+(\.\d+)?(e[+-]?\d+)?|'[^']*'|\"[^\"]*\"", "", self.reason.partition("\n")[0])
        return f"{self.status}: {' '.join(re.findall(r'[A-Za-z_]{2,}', words)[:14])}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
