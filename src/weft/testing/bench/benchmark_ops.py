"""The suite `ops`: operators that models are made of, each with data that stays in cache (`.cache`) and with 64 MB.

The suite `small` has one case, a 2×2 addition: what a call of a compiled function costs, judged against Inductor.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from weft.testing.bench.benchmark import EAGER, INDUCTOR, Call, Contender, own_code
from weft.testing.bench.benchmark_case import Case, Start

Make = Callable[[], Sequence[Any]]

CACHE, BIG = "cache", "64MB"
# Rows and columns of float32: 1 MB, 64 MB.
SIDES = {CACHE: (256, 1024), BIG: (4096, 4096)}
ROWS_OF_LINEAR = (1, 8, 32, 128, 1024)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, dim=-1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight


def gelu_erf(x: Tensor) -> Tensor:
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def rope(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-other, one), dim=-1) * sine


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value)


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def embedding(table: Tensor, ids: Tensor) -> Tensor:
    return F.embedding(ids, table)


def add(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def normal(*shape: int) -> Tensor:
    """Random values of a shape, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def integers(limit: int, *shape: int) -> Tensor:
    return torch.randint(limit, shape, generator=torch.Generator().manual_seed(limit))


def calling(function: Callable[..., Any], make: Make) -> Callable[[], Start]:
    """Work that is a call of the function, or module, with inputs."""

    def build() -> Start:
        inputs = make()

        def start(contender: Contender) -> Call:
            run = contender.compile(own_code(function))
            return lambda: run(*inputs)

        return start

    return build


def differentiating(function: Callable[..., Tensor], make: Make) -> Callable[[], Start]:
    """Work that is a call and the gradient of the first input."""
    gradients_of: Any = torch.autograd.grad  # its types are unknown

    def build() -> Start:
        first, *others = make()
        gradient: list[Tensor] = []

        def start(contender: Contender) -> Call:
            run, leaf = contender.compile(own_code(function)), first.clone().requires_grad_()

            def call() -> Tensor:
                output: Tensor = run(leaf, *others)
                if not gradient:
                    gradient.append(torch.ones_like(output))
                return gradients_of(output, leaf, gradient[0])[0]

            return call

        return start

    return build


def optimizing(count: int, elements: int) -> Callable[[], Start]:
    """Work that is one step of AdamW over many tensors; eager's is torch's fused one."""

    def build() -> Start:
        values = [normal(elements) for _ in range(count)]

        def start(contender: Contender) -> Call:
            parameters = [nn.Parameter(value.clone()) for value in values]
            for parameter, value in zip(parameters, values, strict=True):
                parameter.grad = value * 0.1
            optimizer = torch.optim.AdamW(parameters, lr=1e-3, fused=True if contender.name == EAGER else None)

            def step() -> None:
                optimizer.step()

            run = contender.compile(own_code(step))

            def call() -> list[nn.Parameter]:
                run()
                return parameters

            return call

        return start

    return build


def _both(name: str, function: Callable[..., Any], small: Make, big: Make) -> list[Case]:
    return [
        Case("ops", f"{name}.{CACHE}", calling(function, small)),
        Case("ops", f"{name}.{BIG}", calling(function, big)),
    ]


def _on_rows(name: str, function: Callable[..., Any], whole: int, lines: int = 0) -> list[Case]:
    """A function of `whole` tensors of a side's shape and `lines` vectors of its columns."""

    def make(side: str) -> Make:
        rows, columns = SIDES[side]
        return lambda: [*(normal(rows, columns) for _ in range(whole)), *(normal(columns) for _ in range(lines))]

    return _both(name, function, make(CACHE), make(BIG))


def _on_heads(name: str, function: Callable[..., Any], batch: int, tokens: int, label: str) -> Case:
    shape = (batch, 8, tokens, 64)
    return Case("ops", f"{name}_{tokens}.{label}", calling(function, lambda: [normal(*shape) for _ in range(3)]))


def _rope_inputs(batch: int, heads: int, tokens: int) -> Make:
    angles = torch.outer(torch.arange(tokens) * 1.0, 10_000.0 ** (-torch.arange(64) / 64))
    return lambda: (normal(batch, heads, tokens, 64), angles.cos(), angles.sin())


def _logits(rows: int, classes: int) -> Make:
    return lambda: (normal(rows, classes), integers(classes, rows))


def _table(rows: int, ids: int) -> Make:
    return lambda: (normal(rows, 256), integers(rows, ids))


def _module(name: str, module: Callable[[], nn.Module], *shape: int) -> Case:
    def build() -> Start:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = module().eval()
        return calling(made, lambda: [normal(*shape)])()

    return Case("ops", name, build, frozen=True)


def _linear(rows: int) -> list[Case]:
    return [
        _module(f"linear_{rows}.{CACHE}", lambda: nn.Linear(512, 512), rows, 512),
        _module(f"linear_{rows}.{BIG}", lambda: nn.Linear(4096, 4096), rows, 4096),
    ]


def _convolution(name: str, module: Callable[[], nn.Module]) -> list[Case]:
    return [_module(f"{name}.{CACHE}", module, 1, 64, 56, 56), _module(f"{name}.{BIG}", module, 16, 64, 128, 128)]


def op_cases() -> list[Case]:
    """The suite `ops`."""
    return [
        *_on_rows("softmax", softmax, 1),
        *_on_rows("layer_norm", layer_norm, 1, 2),
        *_on_rows("add_rms_norm", add_rms_norm, 2, 1),
        *_on_rows("gelu_erf", gelu_erf, 1),
        *_on_rows("gelu_tanh", gelu_tanh, 1),
        *_on_rows("swiglu", swiglu, 2),
        *_both("rope", rope, _rope_inputs(1, 8, 512), _rope_inputs(4, 32, 2048)),
        *_both("cross_entropy", cross_entropy, _logits(64, 4096), _logits(512, 32000)),
        Case(
            "ops", f"cross_entropy_backward.{CACHE}", differentiating(cross_entropy, _logits(64, 4096)), training=True
        ),
        Case(
            "ops", f"cross_entropy_backward.{BIG}", differentiating(cross_entropy, _logits(512, 32000)), training=True
        ),
        *(_on_heads("attention", attention, 1, tokens, CACHE) for tokens in (128, 512, 2048)),
        _on_heads("attention", attention, 256, 128, BIG),
        *(_on_heads("causal_attention", causal_attention, 1, tokens, CACHE) for tokens in (128, 512, 2048)),
        _on_heads("causal_attention", causal_attention, 256, 128, BIG),
        *_both("embedding", embedding, _table(1024, 1024), _table(65536, 65536)),
        Case("ops", f"embedding_gradient.{CACHE}", differentiating(embedding, _table(1024, 1024)), training=True),
        Case("ops", f"embedding_gradient.{BIG}", differentiating(embedding, _table(65536, 65536)), training=True),
        Case("ops", f"adamw.{CACHE}", optimizing(16, 16 << 10)),
        Case("ops", f"adamw.{BIG}", optimizing(64, 256 << 10)),
        *(case for rows in ROWS_OF_LINEAR for case in _linear(rows)),
        *_convolution("conv_depthwise", lambda: nn.Conv2d(64, 64, 3, padding=1, groups=64)),
        *_convolution("conv_3x3", lambda: nn.Conv2d(64, 64, 3, padding=1)),
        *_convolution("conv_1x1", lambda: nn.Conv2d(64, 64, 1)),
    ]


def small_cases() -> list[Case]:
    """The suite `small`: eager needs no guards, so it is shown but Inductor is the peer."""
    return [Case("small", "add_2x2", calling(add, lambda: [normal(2, 2), normal(2, 2)]), peers=(INDUCTOR,))]
