"""The cases of `weft bench func`: per-sample gradients, Jacobians, Hessians, Hessian-vector products and Laplacians.

A case is written once, for a namespace of transformations: `torch.func`, or `weft.func`, which has the same names. What
it computes depends on its inputs alone, so that the same in float64 judges it.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from weft.testing.bench.transform_models import (
    TinyTransformer,
    Weights,
    convnet,
    convolutions,
    layers,
    perceptron,
    weights_of,
)

Namespace = Any
"""`torch.func` or `weft.func`."""
Loss = Callable[..., Tensor]

SUITE = "func"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a case is called with, and what its function closes over: a batch of data."""

    args: tuple[Any, ...]
    held: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class TransformCase:
    """A function that a namespace makes, once, of what it closes over; and its inputs, in f32 on the CPU."""

    name: str
    transform: Callable[..., Callable[..., Any]]
    inputs: Callable[[], Inputs]

    def __str__(self) -> str:
        return self.name


def _random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _labels(count: int, *shape: int, seed: int = 2) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def _direction(weights: Weights) -> Weights:
    return {name: _random(*each.shape, seed=number) for number, (name, each) in enumerate(weights.items())}


def _class_loss(weights: Weights, x: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(perceptron(weights, x), label)


def _squared_loss(weights: Weights, x: Tensor, y: Tensor) -> Tensor:
    return (perceptron(weights, x) - y).square().mean()


def _image_loss(weights: Weights, image: Tensor, label: Tensor) -> Tensor:
    return F.cross_entropy(convnet(weights, image[None])[0], label)


def _token_loss(*, written_out: bool = False) -> Loss:
    model = TinyTransformer(written_out=written_out)

    def loss(weights: Weights, tokens: Tensor, following: Tensor) -> Tensor:
        scores: Tensor = torch.func.functional_call(model, weights, (tokens,))
        return F.cross_entropy(scores.flatten(0, -2), following.flatten())

    return loss


def _transformer_weights() -> Weights:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return weights_of(TinyTransformer())


def _number(weights: Weights, x: Tensor) -> Tensor:
    """A network that gives one number: a potential, or the solution of an equation."""
    return perceptron(weights, x).squeeze(-1)


def _logistic(weights: Tensor, x: Tensor, label: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(x @ weights, label)


def _per_sample(loss: Loss) -> Callable[..., Any]:
    return lambda t: t.vmap(t.grad(loss), in_dims=(None, 0, 0))


def _forward_over_reverse(loss: Loss) -> Callable[..., Any]:
    """The Hessian times a vector: the tangent of the gradient."""

    def make(t: Namespace, *batch: Tensor) -> Callable[..., Any]:
        gradient = t.grad(lambda weights: loss(weights, *batch))
        return lambda weights, vector: t.jvp(gradient, (weights,), (vector,))[1]

    return make


def _reverse_over_reverse(loss: Loss) -> Callable[..., Any]:
    """The same as the gradient of the gradient's product with the vector."""

    def make(t: Namespace, *batch: Tensor) -> Callable[..., Any]:
        gradient = t.grad(lambda weights: loss(weights, *batch))

        def product(weights: Weights, vector: Weights) -> Tensor:
            found = gradient(weights)
            return torch.stack([(found[name] * vector[name]).sum() for name in found]).sum()

        return t.grad(product)

    return make


def _laplacian(t: Namespace) -> Callable[..., Tensor]:
    """Of a network at one point: the trace of the Hessian."""
    second = t.hessian(_number, argnums=1)
    return lambda weights, x: second(weights, x).diagonal().sum()


def _forward_laplacian(t: Namespace) -> Callable[..., Tensor]:
    """The same by tangents of tangents, along each direction, without a Hessian."""

    def along(weights: Weights, x: Tensor, direction: Tensor) -> Tensor:
        def slope(at: Tensor) -> Tensor:
            return t.jvp(lambda point: _number(weights, point), (at,), (direction,))[1]

        return t.jvp(slope, (x,), (direction,))[1]

    each = t.vmap(along, in_dims=(None, None, 0))
    return lambda weights, x: each(weights, x, torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)).sum()


def _residual(t: Namespace) -> Callable[..., Any]:
    """The gradient of a physics-informed loss: Poisson's equation, at all points."""
    at_points = t.vmap(_laplacian(t), in_dims=(None, 0))

    def loss(weights: Weights, points: Tensor) -> Tensor:
        return (at_points(weights, points) + torch.sin(points).sum(-1)).square().mean()

    return t.grad(loss)


def transform_cases() -> list[TransformCase]:
    """The suite `func`."""
    batch = 64
    regression = layers(32, 128, 128, 8)

    def regressed() -> Inputs:
        return Inputs((regression, _direction(regression)), (_random(batch, 32), _random(batch, 8, seed=3)))

    def sentences(*args: Weights) -> Inputs:
        return Inputs(args, (_labels(256, 8, 32), _labels(256, 8, 32, seed=3)))

    def tokens() -> Inputs:
        found = sentences(_transformer_weights())
        return Inputs((*found.args, *found.held))

    def transformer() -> Inputs:
        weights = _transformer_weights()
        return sentences(weights, _direction(weights))

    def points(weights: Weights, *shape: int) -> Callable[[], Inputs]:
        return lambda: Inputs((weights, _random(*shape)))

    square, small = layers(64, 256, 256, 64), layers(8, 64, 64, 8)
    potential, equation = layers(32, 128, 128, 1), layers(3, 64, 64, 64, 1)
    images = Inputs((convolutions(), _random(32, 1, 28, 28), _labels(10, 32)))
    rows = Inputs((layers(128, 256, 256, 10), _random(batch, 128), _labels(10, batch)))
    separated = Inputs((_random(64) / 8,), (_random(512, 64, seed=2), _labels(2, 512).float()))
    return [
        TransformCase("per_sample_mlp", _per_sample(_class_loss), lambda: rows),
        TransformCase("per_sample_cnn", _per_sample(_image_loss), lambda: images),
        TransformCase("per_sample_transformer", _per_sample(_token_loss()), tokens),
        TransformCase("jacobian_reverse", lambda t: t.jacrev(perceptron, argnums=1), points(square, 64)),
        TransformCase("jacobian_forward", lambda t: t.jacfwd(perceptron, argnums=1), points(square, 64)),
        TransformCase(
            "jacobian_batched",
            lambda t: t.vmap(t.jacrev(perceptron, argnums=1), in_dims=(None, 0)),
            points(small, 256, 8),
        ),
        TransformCase("hessian_mlp", lambda t: t.hessian(_number, argnums=1), points(potential, 32)),
        TransformCase(
            "hessian_batched",
            lambda t: t.vmap(t.hessian(_number, argnums=1), in_dims=(None, 0)),
            points(layers(8, 64, 64, 1), 128, 8),
        ),
        TransformCase(
            "hessian_logistic",
            lambda t, x, label: t.hessian(lambda weights: _logistic(weights, x, label)),
            lambda: separated,
        ),
        TransformCase("hvp_forward_mlp", _forward_over_reverse(_squared_loss), regressed),
        TransformCase("hvp_reverse_mlp", _reverse_over_reverse(_squared_loss), regressed),
        TransformCase("hvp_transformer", _forward_over_reverse(_token_loss(written_out=True)), transformer),
        TransformCase(
            "laplacian_hessian", lambda t: t.vmap(_laplacian(t), in_dims=(None, 0)), points(equation, 1024, 3)
        ),
        TransformCase(
            "laplacian_forward", lambda t: t.vmap(_forward_laplacian(t), in_dims=(None, 0)), points(equation, 1024, 3)
        ),
        TransformCase("laplacian_training", _residual, points(equation, 1024, 3)),
    ]
