"""The suite `backward`: gradients of norms, biases, activations and losses, against a copy that moves the same bytes.

The backward alone is timed, but for losses, whose forward belongs to it. Bytes count what the formula has to read and
write once, gradients of weights and biases among them.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.bench.benchmark import Call, Contender, own_code
from weft.testing.gpu.case import BF16_ERROR, F32_ERROR, GpuCase, Place, Work
from weft.testing.gpu.memory import BF16, F32, Make, gelu_bias, layer_norm, logits_and_labels, named, row_inputs, swiglu
from weft.testing.gpu.peers import eager, inductors
from weft.testing.gpu.repeated_backward import gradients_of, repeated_backward

SHAPES = ((16384, 4096), (8192, 768), (8192, 8192))


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def bias(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels)


def _pulling_back(
    function: Callable[..., Tensor], make: Make, passes: float, allowed: float
) -> Callable[[Place], Work]:
    """The backward alone, of all inputs; `passes` over the first input's bytes are what it has to move."""

    def build(place: Place) -> Work:
        inputs = make(place)
        moved = int(passes * inputs[0].nbytes) + 2 * sum(each.nbytes for each in inputs[1:])

        def cotangent(output: Tensor) -> Tensor:
            ramp = torch.linspace(-1, 1, output.shape[-1], device=output.device, dtype=output.dtype)
            return ramp.expand_as(output).contiguous()

        def start(contender: Contender) -> Call:
            return repeated_backward(contender.compile(own_code(function)), inputs, cotangent)

        return Work(start, [eager(), *inductors(place)], "TB/s", moved, bytes=moved, allowed=allowed)

    return build


def _stepping(place: Place) -> Work:
    """A loss and the gradient of its logits: they are read for the sum, read again, and the gradient written."""
    logits, labels = logits_and_labels(place)
    moved = 3 * logits.nbytes

    def start(contender: Contender) -> Call:
        run, leaf = contender.compile(own_code(mean_loss)), logits.detach().requires_grad_()
        return lambda: gradients_of(run(leaf, labels), leaf)

    return Work(start, [eager(), *inductors(place)], "TB/s", moved, bytes=moved)


def backward_cases() -> list[GpuCase]:
    """The suite `backward`."""
    kinds = {  # the function, its vectors of a row's length, and passes over the input: the incoming gradient is one
        "layer_norm": (layer_norm, 2, 3.0),
        "rms_norm": (rms_norm, 1, 3.0),
        "bias": (bias, 1, 1.0),
        "gelu_bias": (gelu_bias, 1, 3.0),
        "gelu": (gelu, 0, 3.0),
        "swiglu": (swiglu, 0, 2.5),
    }
    cases = [
        GpuCase(
            "backward",
            named(f"{name}_backward", rows, columns, dtype),
            _pulling_back(
                function,
                row_inputs(rows, columns, 1, lines, dtype),
                passes,
                BF16_ERROR if dtype == BF16 else F32_ERROR,
            ),
            training=True,
        )
        for name, (function, lines, passes) in kinds.items()
        for rows, columns, dtype in (*((*shape, BF16) for shape in SHAPES), (16384, 4096, F32))
    ]
    return [*cases, GpuCase("backward", "cross_entropy_with_gradient_8192x128256_bf16", _stepping, training=True)]
