"""A random PyTorch program as text: lines that make its inputs, lines that compute, the calls and the mode.

    case.script() is a Python file that runs by itself:

    def inputs(draw, A, B):
        x0 = draw((A, B), torch.float32)
        x1 = x0[1:]
        return x0, x1

    def program(x0, x1):
        v0 = x1.mul(2)
        x0.add_(1)
        return v0,

Sizes are names, so that a second call can have others. `draw` makes equal numbers in each run, which are rounded to the
type they are asked for in and then widened for the float64 oracle; views and shared memory are as the lines say.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

Mode = Literal["no_grad", "inference_mode", "grad", "train", "freeze"]
MODES: tuple[Mode, ...] = ("no_grad", "inference_mode", "grad", "train", "freeze")

_NAME = re.compile(r"\b[xv]\d+\b")
_TARGETS = re.compile(r"^((?:[xv]\d+(?:, )?)+) = ")
_WIDER = re.compile(r"torch\.(?:float32|float16|bfloat16)\b")
_WIDER_COMPLEX = re.compile(r"torch\.complex64\b")
_numbers = itertools.count()


@dataclass(frozen=True)
class TorchCase:
    """One program; `dynamic` is what `torch.compile` gets, `device` where tensors lie."""

    inputs: tuple[str, ...]
    body: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[dict[str, int], ...]
    mode: Mode = "no_grad"
    dynamic: bool | None = None
    seed: int = 0
    device: str = "cpu"

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(name for line in self.inputs for name in targets(line))

    @property
    def draws(self) -> bool:
        """Whether it takes random numbers as it runs: the float64 oracle has to be told which."""
        return any(re.search(r"rand|dropout|bernoulli|normal_|uniform_", line) for line in self.body)

    def text(self) -> str:
        """The two functions."""
        sizes = sorted({name for call in self.calls for name in call if name != "layout"})
        returned = "".join(f"{name}, " for name in self.outputs).rstrip()
        head = [f"def inputs({', '.join(['draw', *sizes])}):", *(f"    {line}" for line in self.inputs)]
        head += [f"    return {_tuple(self.arguments)}", "", ""]
        body = [f"def program({', '.join(self.arguments)}):", *(f"    {line}" for line in self.body)]
        return "\n".join([*head, *body, f"    return ({returned})", ""])

    def script(self, said: str) -> str:
        """A file that reproduces what happens: it ends with 1 as long as that is a failure."""
        first = said.replace("\\", "/").replace('"""', "'''").splitlines()[0] if said else ""
        settings = f"CALLS, {self.mode!r}, dynamic={self.dynamic}, seed={self.seed}, device={self.device!r}"
        return "\n".join(
            [
                f'"""Found by `weft fuzz`: {first}"""',
                "",
                "import torch",
                "import torch.nn.functional as F",
                "",
                "from weft.testing.fuzz.torch_judge import reproduce",
                "",
                "",
                self.text(),
                "",
                f"CALLS = {list(self.calls)}",
                "",
                'if __name__ == "__main__":',
                f"    reproduce(inputs, program, {settings})",
                "",
            ]
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: dict[str, Any]) -> TorchCase:
        given: dict[str, Any] = dict(record)
        for name in ("inputs", "body", "outputs", "calls"):
            given[name] = tuple(record[name])
        return TorchCase(**given)

    def live(self) -> TorchCase:
        """Without inputs that nothing uses."""
        used = {name for line in self.body for name in names_in(line)} | set(self.outputs)
        kept = list(self.inputs)
        for line in reversed(self.inputs):
            others = {name for other in kept if other is not line for name in names_in(other)}
            if not set(targets(line)) & (used | others):
                kept.remove(line)
        return replace(self, inputs=tuple(kept))


def targets(line: str) -> tuple[str, ...]:
    """The names that a line binds."""
    found = _TARGETS.match(line)
    return tuple(found.group(1).split(", ")) if found else ()


def names_in(line: str) -> tuple[str, ...]:
    """All names of values in a line, those that it binds too."""
    return tuple(dict.fromkeys(_NAME.findall(line)))


def _tuple(names: Sequence[str]) -> str:
    return "(" + "".join(f"{name}, " for name in names).rstrip() + ")"


@dataclass
class Draw:
    """Makes the inputs of one call: equal for equal seeds, whatever the width; `leaves` are those with gradients."""

    seed: int
    wide: bool = False
    layout: int = 0
    device: str = "cpu"
    train: bool = False

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)
        self.leaves: list[Tensor] = []

    def __call__(
        self, shape: Sequence[int], dtype: torch.dtype, *, low: int = -8, high: int = 8, weight: bool = False
    ) -> Tensor:
        """A tensor: normal numbers for floats, integers from `low` to `high`; a weight always lies contiguously."""
        made = self._laid_out(self._values(tuple(shape), dtype, low, high), 0 if weight else self.layout)
        if self.train and (made.is_floating_point() or made.is_complex()):
            self.leaves.append(made.requires_grad_())
        return made

    def _values(self, shape: tuple[int, ...], dtype: torch.dtype, low: int, high: int) -> Tensor:
        generator = self._generator
        if dtype == torch.bool:
            return (torch.rand(shape, generator=generator, dtype=torch.float32) < 0.5).to(self.device)
        if dtype.is_complex:
            pair = torch.randn((*shape, 2), generator=generator, dtype=torch.float32)
            return torch.view_as_complex(pair).to(self.device, torch.complex128 if self.wide else dtype)
        if dtype.is_floating_point:
            values = torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype)
            return values.to(self.device, torch.float64 if self.wide else dtype)
        low = max(low, 0) if dtype == torch.uint8 else low
        return torch.randint(low, max(high, low + 1), shape, generator=generator).to(self.device, dtype)

    @staticmethod
    def _laid_out(values: Tensor, layout: int) -> Tensor:
        """The numbers in other memory: 1 with the dimensions backwards, 2 as every other element of more, offset."""
        if layout == 1 and values.dim() > 1:
            return values.permute(*reversed(range(values.dim()))).contiguous().permute(*reversed(range(values.dim())))
        if layout == 2 and values.dim():
            more = values.new_zeros((*values.shape[:-1], 2 * values.shape[-1] + 1))
            strided = more[..., 1::2]
            strided.copy_(values)
            return strided.detach()
        return values


Program = Callable[..., Any]


def functions(case: TorchCase, *, wide: bool = False) -> tuple[Callable[..., tuple[Tensor, ...]], Program]:
    """The two functions of a case; with `wide` the float64 oracle's."""
    text = widened(case.text()) if wide else case.text()
    file = f"<fuzz {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(text, file, "exec"), scope)
    return scope["inputs"], scope["program"]


def widened(text: str) -> str:
    """The program with float64 in the place of narrower types; the inputs are drawn in theirs, then widened."""
    head, mark, body = text.partition("def program(")
    return head + mark + _WIDER_COMPLEX.sub("torch.complex128", _WIDER.sub("torch.float64", body))
