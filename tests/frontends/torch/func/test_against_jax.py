"""Functions of JAX's documentation, written in torch: derivatives, batches and pairs of them agree with JAX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")
jnp, lax, nn = jax.numpy, jax.lax, jax.nn
jax.config.update("jax_enable_x64", True)
pytestmark = pytest.mark.slow

V, M, P = (5,), (4, 4), (3, 5)


def attention(o, q, k, v):
    return o.softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v


def mlp(o, x, w, b):
    return o.log_softmax(o.tanh(x @ w + b) @ w.T)


def rosenbrock(o, x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def newton_sqrt(o, x):
    y = x * 0 + 1.0
    for _ in range(6):
        y = 0.5 * (y + x / y)
    return y


def batch_norm(o, x):
    away = x - x.mean(0)
    return away / o.sqrt((away**2).mean(0) + 1e-5)  # `var` divides by other numbers in torch


class OfTorch:
    """The names that functions of both use, in torch."""

    sin, cos, tan, exp, log, tanh, sqrt, where = (
        torch.sin,
        torch.cos,
        torch.tan,
        torch.exp,
        torch.log,
        torch.tanh,
        torch.sqrt,
        torch.where,
    )
    softmax = staticmethod(lambda x: F.softmax(x, -1))
    log_softmax = staticmethod(lambda x: F.log_softmax(x, -1))


class OfJax:
    """The same in JAX."""

    sin, cos, tan, exp, log, tanh, sqrt, where = (
        jnp.sin,
        jnp.cos,
        jnp.tan,
        jnp.exp,
        jnp.log,
        jnp.tanh,
        jnp.sqrt,
        jnp.where,
    )
    softmax = staticmethod(lambda x: nn.softmax(x, -1))
    log_softmax = staticmethod(lambda x: nn.log_softmax(x, -1))


BOTH: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "attention": (attention, ((4, 3), (6, 3), (6, 3))),
    "mlp": (mlp, (P, (5, 4), (4,))),
    "rosenbrock": (rosenbrock, (V,)),
    "newton_sqrt": (newton_sqrt, (V,)),
    "batch_norm": (batch_norm, (P,)),
    "sum_logistic": (lambda o, x: (1 / (1 + o.exp(-x))).sum(), (V,)),
    "tanh_of_exp": (lambda o, x: (1 - o.exp(-2 * x)) / (1 + o.exp(-2 * x)), (V,)),
    "sin_cos_chain": (lambda o, x: o.sin(o.cos(o.sin(x))), (V,)),
    "cubic": (lambda o, x: x**3 + 2 * x**2 - 3 * x + 1, (V,)),
    "log1pexp": (lambda o, x: o.log(1 + o.exp(x)), (V,)),
    "where_relu": (lambda o, x: o.where(x > 1, x * x, 0.3 * x), (V,)),
    "affine": (lambda o, x, w, b: w @ x + b, (V, (4, 5), (4,))),
    "quadratic_form": (lambda o, x, a: x @ a @ x, ((4,), M)),
    "gravity": (lambda o, x: 1 / o.sqrt((x**2).sum()), (V,)),
    "outer_ratio": (lambda o, x, y: x[:, None] / (1 + y[None, :] ** 2), (V, (4,))),
    "gaussian": (lambda o, x, m, s: (-0.5 * ((x - m) / s) ** 2 - o.log(s)).sum(), (V, V, V)),
    "tan_product": (lambda o, x, y: o.tan(0.1 * x) * y, (V, V)),
    "slices": (lambda o, x: x[1:] * x[:-1], (V,)),
    "rows": (lambda o, x: x[::2] @ x[1::2].T, ((4, 3),)),
    "means": (lambda o, x: (x - x.mean()) ** 2, (P,)),
}
APART: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "relu": (F.relu, nn.relu, (V,)),
    "gelu": (F.gelu, lambda x: nn.gelu(x, approximate=False), (V,)),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), nn.gelu, (V,)),
    "silu": (F.silu, nn.silu, (V,)),
    "elu": (F.elu, nn.elu, (V,)),
    "selu": (F.selu, nn.selu, (V,)),
    "softplus": (F.softplus, nn.softplus, (V,)),
    "log_sigmoid": (F.logsigmoid, nn.log_sigmoid, (V,)),
    "leaky_relu": (F.leaky_relu, nn.leaky_relu, (V,)),
    "hard_tanh": (F.hardtanh, nn.hard_tanh, (V,)),
    "glu": (F.glu, nn.glu, ((3, 4),)),
    "logsumexp": (lambda x: x.logsumexp(-1), lambda x: nn.logsumexp(x, -1), (P,)),
    "sinc": (torch.sinc, jnp.sinc, (V,)),
    "arctan2": (torch.atan2, jnp.arctan2, (V, V)),
    "hypot": (torch.hypot, jnp.hypot, (V, V)),
    "logaddexp": (torch.logaddexp, jnp.logaddexp, (V, V)),
    "expm1": (torch.expm1, jnp.expm1, (V,)),
    "log1p": (torch.log1p, jnp.log1p, (V,)),
    "erf": (torch.erf, jax.scipy.special.erf, (V,)),
    "erfc": (torch.erfc, jax.scipy.special.erfc, (V,)),
    "gammaln": (torch.lgamma, jax.scipy.special.gammaln, (V,)),
    "xlogy": (torch.xlogy, jax.scipy.special.xlogy, (V, V)),
    "cumsum": (lambda x: x.cumsum(0), lambda x: jnp.cumsum(x, 0), (P,)),
    "cumprod": (lambda x: x.cumprod(0), lambda x: jnp.cumprod(x, 0), (P,)),
    "cumlogsumexp": (lambda x: x.logcumsumexp(0), lambda x: lax.cumlogsumexp(x, 0), (P,)),
    "prod": (lambda x: x.prod(0), lambda x: x.prod(0), (P,)),
    "norm": (lambda x: x.norm(), lambda x: jnp.linalg.norm(x), (P,)),
    "std": (lambda x: x.std(0), lambda x: x.std(0, ddof=1), (P,)),
    "max": (lambda x: x.amax(0), lambda x: x.max(0), (P,)),
    "sort": (lambda x: x.sort(0)[0], lambda x: jnp.sort(x, 0), (P,)),
    "clip": (lambda x: x.clamp(0.7, 1.3), lambda x: jnp.clip(x, 0.7, 1.3), (V,)),
    "roll": (lambda x: x.roll(2, 0) * x, lambda x: jnp.roll(x, 2, 0) * x, (P,)),
    "flip": (lambda x: x.flip(0) * x, lambda x: jnp.flip(x, 0) * x, (P,)),
    "triu": (lambda x: x.triu() @ x, lambda x: jnp.triu(x) @ x, (M,)),
    "diag": (lambda x: torch.diag(x) @ torch.diag(x), lambda x: jnp.diag(x) @ jnp.diag(x), (V,)),
    "kron": (torch.kron, jnp.kron, ((2, 3), (3, 2))),
    "einsum": (
        lambda x, y: torch.einsum("ij,kj->ik", x, y),
        lambda x, y: jnp.einsum("ij,kj->ik", x, y),
        (P, (2, 5)),
    ),
    "take": (lambda x: x[torch.tensor([0, 2, 2, 1])], lambda x: x[jnp.array([0, 2, 2, 1])], (P,)),
    "scatter_add": (
        lambda x: torch.zeros(4, dtype=x.dtype).index_add(0, torch.tensor([0, 1, 1, 3, 0]), x * x),
        lambda x: jnp.zeros(4, x.dtype).at[jnp.array([0, 1, 1, 3, 0])].add(x * x),
        (V,),
    ),
    "pad": (lambda x: F.pad(x, (1, 2)) ** 2, lambda x: jnp.pad(x, (1, 2)) ** 2, (V,)),
    "concatenate": (lambda x, y: torch.cat([x, y * x.sum()]), lambda x, y: jnp.concatenate([x, y * x.sum()]), (V, V)),
    "conv": (
        lambda x, w: F.conv2d(x, w, padding=1),
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        ((1, 2, 5, 5), (3, 2, 3, 3)),
    ),
    "avg_pool": (
        lambda x: F.avg_pool2d(x, 2),
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID") / 4,
        ((1, 2, 4, 4),),
    ),
    "max_pool": (
        lambda x: F.max_pool2d(x, 2),
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
        ((1, 2, 4, 4),),
    ),
    "stop_gradient": (lambda x: x * x.detach(), lambda x: x * lax.stop_gradient(x), (V,)),
}


def _pairs() -> list[Any]:
    made = [
        pytest.param(lambda *xs, f=f: f(OfTorch, *xs), lambda *xs, f=f: f(OfJax, *xs), shapes, id=name)
        for name, (f, shapes) in BOTH.items()
    ]
    return made + [pytest.param(*each, id=name) for name, each in APART.items()]


def test_there_are_sixty() -> None:
    assert len(_pairs()) >= 60


@pytest.mark.parametrize(("f", "g", "shapes"), _pairs())
def test_derivatives_batches_and_their_pairs_agree(f, g, shapes) -> None:
    rng = np.random.default_rng(0)
    points, steps = ([rng.uniform(0.5, 1.5, shape) for shape in shapes] for _ in range(2))
    batch = [np.stack([x, x * 0.9, x * 1.1]) for x in points]
    places = tuple(range(len(shapes)))
    value = np.asarray(g(*points))
    seed = rng.standard_normal(value.shape)

    def weighted(h: Callable[..., Any], weights: Any) -> Callable[..., Any]:
        return lambda *xs: (h(*xs) * weights).sum()

    def here(arrays: list[Any]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(x) for x in arrays)

    def same(actual: Any, expected: Any) -> None:
        found = torch.utils._pytree.tree_leaves(actual)
        wanted = jax.tree_util.tree_leaves(expected)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), np.asarray(other), rtol=1e-8, atol=1e-9)

    mine, other = weft.grad(weighted(f, torch.from_numpy(seed)), places), jax.grad(weighted(g, seed), places)
    same(mine(*here(points)), other(*points))
    same(weft.jvp(f, here(points), here(steps)), jax.jvp(g, tuple(points), tuple(steps)))
    same(weft.vmap(f)(*here(batch)), jax.vmap(g)(*batch))
    same(weft.vmap(mine)(*here(batch)), jax.vmap(other)(*batch))
    same(weft.jvp(mine, here(points), here(steps)), jax.jvp(other, tuple(points), tuple(steps)))
    twice = weft.grad(lambda *xs: sum((x * x).sum() for x in mine(*xs)), places)
    again = jax.grad(lambda *xs: sum((x * x).sum() for x in other(*xs)), places)
    same(twice(*here(points)), again(*points))

    def along(transform: Any, h: Any, given: Any, directions: Any) -> Any:
        return transform(lambda x, t: transform_jvp(transform)(h, x, t)[1])(given, directions)

    def transform_jvp(transform: Any) -> Any:
        return weft.jvp if transform is weft.vmap else jax.jvp

    ahead = [np.stack([x, x, x]) for x in steps]
    same(along(weft.vmap, f, here(batch), here(ahead)), along(jax.vmap, g, tuple(batch), tuple(ahead)))
