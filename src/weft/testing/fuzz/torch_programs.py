"""Draws random PyTorch programs: lines are chosen by chance and tried in eager as they come, so that types fit.

A line comes from a form (`torch_forms`, `torch_view_forms`): a function of the drawing that states an expression over
values there are, or raises `Unfit`. What eager refuses, what grows too large and what is not finite is left out; but
with the sizes of a second call eager may refuse the program after all: then it must be refused compiled, too.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from weft.testing.fuzz.torch_case import MODES, Draw, Mode, TorchCase, names_in

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65, 100, 128, 129)
FLOATS = (torch.float32,) * 6 + (torch.float64, torch.bfloat16, torch.bfloat16, torch.float16, torch.float16)
INTEGERS = (torch.int64, torch.int64, torch.int32, torch.int32, torch.int16, torch.int8, torch.uint8)
LARGEST = 40_000  # elements
GREATEST = 1e3  # magnitude of a float


class Unfit(Exception):
    """There is nothing that this form can be applied to."""


Form = Callable[["Drawing"], str]
FORMS: list[tuple[float, Form]] = []


def form(weight: float = 1.0) -> Callable[[Form], Form]:
    """Register a form, to be chosen with this weight."""

    def register(function: Form) -> Form:
        FORMS.append((weight, function))
        return function

    return register


@dataclass
class Drawing:
    """A program that is being drawn: its lines so far, and the values that they have in eager."""

    rng: random.Random
    sizes: dict[str, int]
    train: bool
    scope: dict[str, Any] = field(default_factory=dict[str, Any])
    names: dict[str, Any] = field(default_factory=lambda: {"torch": torch, "F": torch.nn.functional})
    """What lines may name beside their values."""
    exact: set[str] = field(default_factory=set[str])
    """Names of values that no rounding has touched: only those are compared, rounded and sorted."""
    inputs: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    inexact: bool = False
    """Whether the line that is being drawn computes with rounding; a form says so."""

    # What forms ask for.

    def tensor(self, test: Callable[[Tensor], bool] = lambda tensor: True, *, exact: bool = False) -> str:
        """The name of a value that fits; later ones are likelier."""
        fit = [
            name
            for name, value in self.scope.items()
            if isinstance(value, Tensor) and test(value) and (not exact or name in self.exact)
        ]
        if not fit:
            raise Unfit
        late = fit[-4:] if self.rng.random() < 0.5 else fit
        return self.rng.choice(late)

    def floating(self, test: Callable[[Tensor], bool] = lambda tensor: True, *, exact: bool = False) -> str:
        return self.tensor(lambda tensor: tensor.is_floating_point() and test(tensor), exact=exact)

    def integral(self, test: Callable[[Tensor], bool] = lambda tensor: True) -> str:
        def whole(tensor: Tensor) -> bool:
            return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)

        return self.tensor(lambda tensor: whole(tensor) and test(tensor))

    def value(self, name: str) -> Tensor:
        return self.scope[name]

    def dim(self, name: str) -> int:
        """A dimension of a value, counted from either end."""
        rank = self.value(name).dim()
        if not rank:
            raise Unfit
        return self.rng.randrange(-rank, rank)

    def dims(self, name: str) -> str:
        """Some dimensions of a value, as text."""
        rank = self.value(name).dim()
        if not rank:
            raise Unfit
        chosen = self.rng.sample(range(rank), self.rng.randint(1, rank))
        return str(chosen[0]) if len(chosen) == 1 and self.rng.random() < 0.5 else str(tuple(chosen))

    def size(self, number: int) -> str:
        """A size as text: the number, or a value's size that is the same now and may be another in the next call."""
        named = [
            f"{name}.shape[{place}]"
            for name in self.scope
            if name.startswith("x")
            for place, size in enumerate(self.scope[name].shape)
            if size == number
        ]
        return self.rng.choice(named) if named and self.rng.random() < 0.5 else str(number)

    def like(self, name: str, **settings: Any) -> str:
        """The name of a value that can be broadcast with another."""
        shape = self.value(name).shape

        def fits(tensor: Tensor) -> bool:
            try:
                torch.broadcast_shapes(shape, tensor.shape)
            except RuntimeError:
                return False
            return True

        return self.tensor(fits, **settings)

    def rounds(self) -> None:
        """Say that the line computes with rounding."""
        self.inexact = True

    # What drives it.

    def try_line(self, text: str, *, exact: bool) -> bool:
        """Run a line in eager; keep it where it does what one can compare."""
        before = dict(self.scope)
        try:
            exec(text, dict(self.names), self.scope)
        except Exception:  # eager refuses it: another line, then
            self.scope = before
            return False
        made = [value for name, value in self.scope.items() if name not in before]
        changed = not made
        if not all(isinstance(value, Tensor) and self._fits(value) for value in made):
            self.scope = before
            return False
        if changed and not all(self._fits(value) for value in self.scope.values()):
            return False  # the values are what the line made of them: the program ends here
        for name in self.scope.keys() - before.keys():
            self.scope[name] = self.scope[name]
            if exact:
                self.exact.add(name)
        if changed and not exact:
            self.exact -= set(self.sharing(names_in(text)[0]))
        return True

    def sharing(self, name: str) -> list[str]:
        """The names of values in the same memory."""
        memory = self.value(name).untyped_storage().data_ptr()
        return [other for other, value in self.scope.items() if value.untyped_storage().data_ptr() == memory]

    @staticmethod
    def _fits(value: Tensor) -> bool:
        if value.layout != torch.strided or value.numel() > LARGEST or value.dim() > 5:
            return False
        if not (value.is_floating_point() or value.is_complex()) or not value.numel():
            return True
        magnitude = value.detach().abs().to(torch.float64).max().item()
        return magnitude <= (GREATEST if value.dtype != torch.float16 else 64.0)


def draw_case(seed: int, device: str = "cpu") -> TorchCase:
    """The program of a seed."""
    from weft.testing.fuzz import torch_forms, torch_view_forms  # they register their forms

    assert torch_forms and torch_view_forms
    rng = random.Random(seed)
    mode: Mode = rng.choices(MODES, (4, 1, 1, 4, 1))[0]
    sizes = {name: drawn_size(rng) for name in "ABC"}
    drawing = Drawing(rng, sizes, mode == "train")
    with warnings.catch_warnings(), torch.random.fork_rng(), torch.set_grad_enabled(mode in ("grad", "train")):
        warnings.simplefilter("ignore")
        _draw_inputs(drawing, seed)
        wanted, tries = rng.choice((1, 2, 3, 5, 8, 12, 16)), 0
        forms = [function for _, function in FORMS]
        weights = [weight for weight, _ in FORMS]
        while len(drawing.body) < wanted and tries < 6 * wanted + 10:
            tries += 1
            draw_line(drawing, rng.choices(forms, weights)[0])
    outputs = chosen_outputs(drawing)
    case = TorchCase(
        tuple(drawing.inputs),
        tuple(drawing.body),
        outputs,
        drawn_calls(rng, sizes, mode),
        mode,
        rng.choice((None, None, None, True, False)),
        seed,
        device,
    )
    return case.live() if rng.random() < 0.8 else case


def drawn_size(rng: random.Random) -> int:
    chance = rng.random()
    return 0 if chance < 0.03 else 1 if chance < 0.12 else rng.choice(SIZES)


def drawn_calls(rng: random.Random, sizes: dict[str, int], mode: Mode) -> tuple[dict[str, int], ...]:
    calls = [dict(sizes)]
    while len(calls) < 4 and rng.random() < 0.35 and mode != "freeze":
        others = {name: drawn_size(rng) if rng.random() < 0.5 else size for name, size in sizes.items()}
        calls.append({**others, **({"layout": rng.randrange(3)} if rng.random() < 0.5 else {})})
    return tuple(calls)


def _draw_inputs(drawing: Drawing, seed: int) -> None:
    rng = drawing.rng
    draw = Draw(seed, train=drawing.train)
    scope = {"torch": torch, "draw": draw, **drawing.sizes}
    for number in range(rng.choice((1, 2, 2, 3, 3, 4))):
        name = f"x{number}"
        line = f"{name} = {_drawn_input(drawing)}"
        try:
            exec(line, scope, drawing.scope)
        except Exception:
            continue
        value = drawing.scope[name]
        if value.numel() > LARGEST:
            del drawing.scope[name]
            continue
        drawing.inputs.append(line)
        drawing.exact.add(name)
    if not drawing.inputs:
        line = "x0 = draw((A,), torch.float32)"
        exec(line, scope, drawing.scope)
        drawing.inputs.append(line)


def _drawn_input(drawing: Drawing) -> str:
    rng, known = drawing.rng, list(drawing.scope)
    if known and rng.random() < 0.12:
        base = rng.choice(known)
        return rng.choice((base, f"{base}[1:]", f"{base}.transpose(0, -1)", f"{base}[..., :-1]", f"{base}[::2]"))
    rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
    names = rng.choices("ABC", k=rank)
    shape = ", ".join(rng.choice((name,) * 6 + ("1", "2", "4")) for name in names)
    dtype = rng.choices((rng.choice(FLOATS), rng.choice(INTEGERS), torch.bool, torch.complex64), (16, 4, 1.5, 0.5))[0]
    text = f"draw(({shape}{',' if rank == 1 else ''}), {dtype})"
    if rank >= 2 and rng.random() < 0.2:
        order = rng.sample(range(rank), rank)
        text += f".permute({', '.join(map(str, order))})"
    elif rank and rng.random() < 0.1:
        text += rng.choice(("[::2]", "[1:]", "[..., ::3]", "[..., 1:]", f".expand(2, *([-1] * {rank}))"))
    return text


def draw_line(drawing: Drawing, function: Form) -> None:
    drawing.inexact = False
    try:
        text = function(drawing)
    except Unfit:
        return
    uses = names_in(text)
    exact = not drawing.inexact and all(name in drawing.exact for name in uses if name in drawing.scope)
    if not text.startswith(("x", "v")) or "_(" not in text.split("(")[0] + "(":
        count = len([name for name in drawing.scope if name.startswith("v")])
        text = f"v{count} = {text}"
    if drawing.try_line(text, exact=exact):
        drawing.body.append(text)


def chosen_outputs(drawing: Drawing) -> tuple[str, ...]:
    made = [name for name in drawing.scope if name.startswith("v")]
    chosen = [name for name in made if drawing.rng.random() < 0.4]
    if made and made[-1] not in chosen:
        chosen.append(made[-1])
    if not chosen or drawing.rng.random() < 0.05:
        chosen.append(drawing.rng.choice(list(drawing.scope)))
    return tuple(chosen)


def operations(lines: Sequence[str]) -> list[str]:
    """The names of what lines call, for reports."""
    import re

    return sorted({name for line in lines for name in re.findall(r"\.?([A-Za-z_]\w*)\(", line)})
