"""Draws random `nn.Module`s: layers of torch.nn are chosen by chance, and tried in eager as they come.

A layer comes from a form of `module_forms` or `module_layer_forms`, as lines of `torch_programs` do, and between them
stand some of those lines.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from weft.testing.fuzz import module_forms, module_layer_forms, torch_forms, torch_view_forms
from weft.testing.fuzz.module_case import WAYS, ModuleCase
from weft.testing.fuzz.module_drawing import LAYERS, ModuleDrawing
from weft.testing.fuzz.torch_case import Draw, Mode
from weft.testing.fuzz.torch_programs import (
    FORMS,
    LARGEST,
    chosen_outputs,
    draw_line,
    drawn_calls,
    drawn_size,
)

assert module_forms and module_layer_forms and torch_forms and torch_view_forms  # they register their forms

DTYPES = ("float32",) * 5 + ("float64", "bfloat16", "bfloat16", "float16")
FEATURES = (1, 2, 3, 4, 4, 6, 8, 8, 8, 12, 16, 24)
GLUE = 0.2
"""The share of lines that are no layers."""
MODES: tuple[Mode, ...] = ("train", "no_grad", "grad", "inference_mode", "freeze")
OPTIMIZERS = (
    "SGD(parameters, lr=0.1)", "SGD(parameters, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)",
    "SGD(parameters, lr=0.05, momentum=0.9, dampening=0.5, foreach=False, maximize=True)",
    "SGD(parameters, lr=0.05, momentum=0.9, fused=True)", "Adam(parameters, lr=0.01)",
    "Adam(parameters, lr=torch.tensor(0.01), foreach=True)", "Adam(parameters, lr=0.01, amsgrad=True, foreach=False)",
    "Adam(parameters, lr=0.01, fused=True)", "AdamW(parameters, lr=0.01, weight_decay=0.1)",
    "AdamW(parameters, lr=0.01, fused=True)", "RMSprop(parameters, lr=0.01, momentum=0.5, centered=True)",
    "NAdam(parameters, lr=0.01)", "RAdam(parameters, lr=0.01)", "Adagrad(parameters, lr=0.1)",
    "Adadelta(parameters, lr=0.5)", "Adamax(parameters, lr=0.01)", "ASGD(parameters, lr=0.01)",
    "Rprop(parameters, lr=0.01)",
)  # fmt: skip


def draw_module(seed: int, device: str = "cpu") -> ModuleCase:
    """The module of a seed."""
    rng = random.Random(seed)
    mode: Mode = rng.choices(MODES, (6, 3, 1, 1, 1))[0]
    dtype = rng.choice(DTYPES)
    training = rng.random() < (0.8 if mode == "train" else 0.2) and mode != "freeze"
    sizes = {"A": rng.choice((1, 2, 2, 3, 4, 5, 8, 16)), "B": drawn_size(rng), "C": rng.choice((2, 3, 5, 8, 9))}
    drawing = ModuleDrawing(rng, sizes, mode == "train", dtype=getattr(torch, dtype))
    drawing.module.train(training)
    drawing.names |= {"nn": nn, "self": drawing.module}
    with warnings.catch_warnings(), torch.random.fork_rng(), torch.set_grad_enabled(mode in ("grad", "train")):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        _draw_inputs(drawing, seed, dtype)
        wanted, tries = rng.choice((1, 2, 3, 4, 6, 8)), 0
        while len(drawing.body) < wanted and tries < 8 * wanted + 10:
            tries += 1
            _draw_layer(drawing)
    optimizer = rng.choice(OPTIMIZERS) if mode == "train" and drawing.layers and rng.random() < 0.35 else ""
    case = ModuleCase(
        tuple(drawing.inputs),
        tuple(drawing.body),
        chosen_outputs(drawing),
        drawn_calls(rng, sizes, mode)[:3] * (2 if optimizer and rng.random() < 0.5 else 1),
        mode,
        rng.choice((None, None, None, True, False)),
        seed,
        device,
        tuple(drawing.layers),
        dtype,
        training,
        rng.choices(WAYS, (8, 3, 2, 1, 1, 3))[0],
        rng.choice(("bfloat16", "bfloat16", "float16")) if dtype == "float32" and rng.random() < 0.12 else "",
        f"torch.optim.{optimizer}" if optimizer else "",
    )
    return case.live()


def _draw_layer(drawing: ModuleDrawing) -> None:
    forms: Sequence[tuple[float, Any]] = FORMS if drawing.chance(GLUE) else LAYERS
    drawing.pending, before = [], len(drawing.body)
    draw_line(drawing, _chosen(drawing.rng, forms))
    if len(drawing.body) > before:
        drawing.layers += drawing.pending


def _chosen(rng: random.Random, forms: Sequence[tuple[float, Any]]) -> Any:
    return rng.choices([form for _, form in forms], [weight for weight, _ in forms])[0]


def _draw_inputs(drawing: ModuleDrawing, seed: int, dtype: str) -> None:
    rng = drawing.rng
    draw = Draw(seed, train=drawing.train)
    scope = {"torch": torch, "draw": draw, **drawing.sizes}
    for number in range(rng.choice((1, 1, 2, 2, 3))):
        line = f"x{number} = {_drawn_input(drawing, dtype)}"
        try:
            exec(line, scope, drawing.scope)
        except Exception:  # a slice of nothing
            continue
        if drawing.scope[f"x{number}"].numel() > LARGEST // 2:
            del drawing.scope[f"x{number}"]
            continue
        drawing.inputs.append(line)
        drawing.exact.add(f"x{number}")
    if not drawing.inputs:
        drawing.inputs.append(f"x0 = draw((A, 8), torch.{dtype})")
        exec(drawing.inputs[0], scope, drawing.scope)


def _drawn_input(drawing: ModuleDrawing, dtype: str) -> str:
    rng, features = drawing.rng, drawing.pick(*FEATURES)
    if drawing.chance(0.15):
        return f"draw({drawing.pick('(A, B)', '(A, C)', '(B,)', '(A, C, 2)')}, torch.int64, low=0, high=9)"
    shape = rng.choices(
        ("A, {0}", "A, B, {0}", "B, A, {0}", "A, {0}, B", "A, {0}, C, 7", "A, {0}, 8, B", "A, {0}, 8, 8", "{0}, 9, C",
         "A, {0}, 4, C, 5", "A, 2, {0}"),
        (3, 4, 1, 4, 3, 3, 3, 1, 1, 1),
    )[0].format(features)  # fmt: skip
    rank, text = shape.count(",") + 1, f"draw(({shape}), torch.{dtype})"
    if drawing.chance(0.25):
        fit = [".detach()", ".transpose(0, 1).contiguous().transpose(0, 1)", "[..., ::2]", "[1:]", ".flip(0)"]
        fit += [f"[:1].expand(A, *([-1] * {rank - 1}))"] if shape.startswith("A") else []
        fit += [".contiguous(memory_format=torch.channels_last)"] * 5 if rank == 4 else []
        fit += [".contiguous(memory_format=torch.channels_last_3d)"] if rank == 5 else []
        text += rng.choice(fit)
    return text
