"""Custom rules in plain torch code: weft.func, torch.func and autograd take them, and wrong ones are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
import weft.triton as triton
import weft.triton.language as tl
from weft.frontends.torch.capture.custom_calls import CALLS

X = torch.linspace(-1.0, 2.0, 7)


def check(f, function, *args):
    """Gradients of a sum, by Weft and by autograd, against those of another function."""
    places = tuple(range(len(args)))
    expected = torch.func.grad(lambda *xs: function(*xs).sum(), places)(*args)
    torch.testing.assert_close(weft.grad(lambda *xs: f(*xs).sum(), places)(*args), expected)
    leaves = [x.clone().requires_grad_() for x in args]
    f(*leaves).sum().backward()
    torch.testing.assert_close(tuple(x.grad for x in leaves), expected)


def straight_through(bits=4):
    scale = 2.0**bits
    return weft.func.custom(lambda x: torch.round(x * scale) / scale, vjp=lambda g, args, results: (g,))


def test_rounding_that_lets_gradients_through() -> None:
    f = straight_through()
    torch.testing.assert_close(weft.grad(lambda x: (f(x) * x).sum())(X), f(X) + X)
    torch.testing.assert_close(weft.vmap(weft.grad(lambda x: f(x) * x))(X), f(X) + X)


def test_clipped_gradients_have_no_tangents() -> None:
    clip = weft.func.custom(lambda x: x, vjp=lambda g, args, results: (g.clamp(-1, 1),))
    torch.testing.assert_close(weft.grad(lambda x: (clip(x) ** 2).sum())(X), (2 * X).clamp(-1, 1))
    with pytest.raises(weft.UnsupportedError, match="is not linear") as error:
        weft.jvp(clip, (X,), (X,))
    assert "test_custom.py" in str(error.value) and "`jvp`" in str(error.value)


def test_tangents_come_from_a_linear_gradient_rule() -> None:
    f = weft.func.custom(torch.sin, vjp=lambda g, args, results: (g * args[0].cos() * 2,))
    value, tangent = weft.jvp(f, (X,), (torch.ones_like(X),))
    torch.testing.assert_close(value, X.sin())
    torch.testing.assert_close(tangent, 2 * X.cos())


def test_log1pexp_as_in_jax() -> None:
    @weft.func.custom(jvp=lambda args, tangents: torch.sigmoid(args[0]) * tangents[0])
    def log1pexp(x):
        return torch.log(1.0 + torch.exp(x))

    torch.testing.assert_close(weft.jvp(log1pexp, (X,), (X,))[1], torch.sigmoid(X) * X)
    check(log1pexp, torch.nn.functional.softplus, X)  # the gradient comes from the body


def test_fixed_points_are_differentiated_implicitly() -> None:
    def root(a):
        x = torch.ones_like(a)
        for _ in range(20):
            x = 0.5 * (x + a / x)
        return x

    f = weft.func.custom(root, vjp=lambda g, args, results: (g / (2 * results),))
    check(f, torch.sqrt, X.abs() + 0.5)
    assert weft.hessian(lambda a: f(a).sum())(X.abs() + 0.5).isfinite().all()
    assert not CALLS, "what was captured is imported, and forgotten"


def test_a_batching_rule_sees_the_whole_batch() -> None:
    seen = []

    def batch(size, batched, args):
        seen.append((size, batched))
        x, w = args
        return x @ w if not batched[1] else torch.einsum("bi,bij->bj", x, w)

    f = weft.func.custom(lambda x, w: x @ w, batch=batch)
    x, w = torch.randn(5, 3), torch.randn(3, 4)
    torch.testing.assert_close(weft.vmap(f, in_axes=(0, None))(x, w), x @ w)
    torch.testing.assert_close(torch.func.vmap(f, in_dims=(0, None))(x, w), x @ w)
    assert seen and seen[0] == (5, (True, False))


def test_trees_and_numbers_are_arguments() -> None:
    def function(weights, x, power):
        return {"y": (weights["a"] * x) ** power, "n": x.argmax()}

    def vjp(grads, args, results):
        weights, x, power = args
        inner = grads["y"] * power * (weights["a"] * x) ** (power - 1)
        return {"a": inner * x}, inner * weights["a"], None

    f = weft.func.custom(function, vjp=vjp)
    a, x = torch.rand(4) + 1, torch.rand(4) + 1
    found = weft.grad(lambda a, x: f({"a": a}, x, 3)["y"].sum(), (0, 1))(a, x)
    torch.testing.assert_close(found, (3 * a**2 * x**3, 3 * a**3 * x**2))


def test_functions_of_autograd_keep_their_gradients() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            ctx.save_for_backward(x)
            return x * factor

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ctx.factor * 10 + 0 * x, None

    class Pushed(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.exp(), x.argmax()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output[0])
            ctx.save_for_forward(output[0])
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, g, _):
            return g * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx, t):
            return t * ctx.saved_for_forward[0] * 7, None

    torch.testing.assert_close(weft.grad(lambda x: Doubled.apply(x, 3.0).sum())(X), torch.full_like(X, 30.0))
    torch.testing.assert_close(weft.vmap(weft.grad(lambda x: Doubled.apply(x, 3.0)))(X), torch.full_like(X, 30.0))
    torch.testing.assert_close(weft.grad(lambda x: Pushed.apply(x)[0].sum())(X), X.exp())
    torch.testing.assert_close(weft.jvp(lambda x: Pushed.apply(x)[0], (X,), (X,))[1], X.exp() * X * 7)


def test_functions_of_autograd_keep_their_gradients_by_any_name() -> None:
    class Steep(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 20

    before, steep = torch.autograd.Function.__dict__["apply"], Steep.apply
    expected = torch.eye(3) * 20
    x = torch.ones(3)
    torch.testing.assert_close(weft.func.jacrev(Steep.apply)(x), expected)
    torch.testing.assert_close(weft.func.jacrev(lambda x: steep(x))(x), expected)
    nested = weft.vmap(lambda x: weft.func.jacfwd(steep)(x))  # inside of torch's transformations
    torch.testing.assert_close(nested(torch.stack([x, x])), torch.stack([expected, expected]))
    assert torch.autograd.Function.__dict__["apply"] is before
    assert "apply" not in torch.autograd.Function.__base__.__dict__


@triton.jit
def _cubes(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, v * v * v, mask=i < n)


@triton.jit
def _cubes_back(x, g, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, mask=i < n)
    tl.store(y + i, 3 * v * v * tl.load(g + i, mask=i < n), mask=i < n)


@triton.jit
def _scaled_rows(x, s, y, N, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * N + i, mask=i < N)
    tl.store(y + row * N + i, v * tl.load(s + row), mask=i < N)


def launched(kernel, *tensors):
    y = torch.empty_like(tensors[0])
    kernel[(triton.cdiv(y.numel(), 16),)](*tensors, y, y.numel(), 16)
    return y


def test_a_kernel_in_tritons_language_has_a_kernel_as_its_gradient() -> None:
    def vjp(g, args, results):
        return (launched(_cubes_back, args[0], g),)

    f = weft.func.custom(lambda x: launched(_cubes, x), vjp=vjp)
    check(f, lambda x: x**3, X)
    torch.testing.assert_close(weft.grad(lambda x: f(x.sin()).sum())(X), 3 * X.sin() ** 2 * X.cos())
    with pytest.raises(weft.UnsupportedError, match="a kernel in Triton's language has no batching rule"):
        weft.vmap(f)(torch.randn(2, 3))


def test_a_kernel_with_all_three_rules() -> None:
    def rows(x, s):
        y = torch.empty_like(x)
        _scaled_rows[(x.shape[0],)](x, s, y, x.shape[1], 16)
        return y

    f = weft.func.custom(
        rows,
        vjp=lambda g, args, results: (rows(g, args[1]), (g * args[0]).sum(1)),
        jvp=lambda args, tangents: rows(tangents[0], args[1]) + args[0] * tangents[1][:, None],
        batch=lambda size, batched, args: rows(args[0].reshape(-1, args[0].shape[-1]), args[1].reshape(-1)).reshape(
            args[0].shape
        ),
    )
    x, s = torch.randn(3, 5), torch.randn(3)
    check(f, lambda x, s: x * s[:, None], x, s)
    _, tangent = weft.jvp(f, (x, s), (x, s))
    torch.testing.assert_close(tangent, 2 * x * s[:, None])
    xs, ss = torch.randn(4, 3, 5), torch.randn(4, 3)
    torch.testing.assert_close(weft.vmap(f)(xs, ss), xs * ss[..., None])


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"vjp": lambda g, args, results: (g.sum(),)}, r"the vjp rule of f gives \(\(\), torch.float32\) for \(\(7,\)"),
        ({"vjp": lambda g, args, results: (g, g)}, "gives 2 for 1 arguments"),
        ({"vjp": lambda g, args, results: (g.double(),)}, "torch.float64"),
    ],
)
def test_a_rule_of_the_wrong_shape_is_refused_with_the_line(rules, message) -> None:
    def f(x):
        return x * 2

    custom = weft.func.custom(f, **rules)
    with pytest.raises(weft.ShapeError, match=message) as error:
        weft.grad(lambda x: custom(x).sum())(X)
    assert "test_custom.py" in str(error.value)


def test_a_tangent_of_the_wrong_shape_is_refused() -> None:
    custom = weft.func.custom(lambda x: x * 2, jvp=lambda args, tangents: tangents[0].sum())
    with pytest.raises(weft.ShapeError, match="the jvp rule"):
        weft.jvp(custom, (X,), (X,))


def test_gradients_of_a_body_at_its_kinks() -> None:
    hardswish = torch.nn.functional.hardswish
    f = weft.func.custom(hardswish, jvp=lambda args, tangents: tangents[0])
    check(f, hardswish, torch.tensor([-3.0, -1.0, 0.0, 3.0, 4.0]))


def _turned(grads: Any, args: Any, results: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The rule of z * w + conj(z), as torch has it: gradients of z are conj(w) * g + conj(g)."""
    z, w = args
    return w.conj() * grads + grads.conj(), z.conj() * grads


COMPLEX = weft.func.custom(
    lambda z, w: z * w + z.conj(),
    vjp=_turned,
    jvp=lambda args, tangents: tangents[0] * args[1] + args[0] * tangents[1] + tangents[0].conj(),
    batch=lambda size, batched, args: args[0] * args[1] + args[0].conj(),
)


def test_rules_of_complex_functions() -> None:
    generator = torch.Generator().manual_seed(5)
    z, w, dz, dw = torch.randn(4, 3, dtype=torch.complex128, generator=generator)

    def loss(f: Any, z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(f(z, w).sin()).pow(2).sum()

    def plain(z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return z * w + z.conj()

    def of(t: Any, f: Any) -> Any:
        gradient = t.grad(lambda z, w: loss(f, z, w), (0, 1))
        rows = torch.stack([z, dz]), torch.stack([w, dw])
        return gradient(z, w), t.jvp(f, (z, w), (dz, dw)), t.vmap(f)(*rows), t.vmap(gradient)(*rows)

    expected = of(torch.func, plain)
    torch.testing.assert_close(of(weft.func, COMPLEX), expected)
    torch.testing.assert_close(of(torch.func, COMPLEX), expected)


NOTHING = {
    "vjp": lambda f: weft.grad(lambda x: f(x).sum())(X),
    "jvp": lambda f: weft.jvp(f, (X,), (X,)),
    "batch": lambda f: weft.vmap(f)(X),
}


@pytest.mark.parametrize("where", ["weft", "torch"])
@pytest.mark.parametrize("rule", NOTHING)
def test_a_rule_that_returns_nothing_is_refused(rule: str, where: str) -> None:
    f = weft.func.custom(torch.sin, **{rule: lambda *_: None})
    calls = NOTHING if where == "weft" else TORCHS
    with pytest.raises(weft.ShapeError, match="rule of sin returns nothing") as error:
        calls[rule](f)
    assert "test_custom.py" in str(error.value)


TORCHS = {
    "vjp": lambda f: f(X.clone().requires_grad_()).sum().backward(),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X,)),
    "batch": lambda f: torch.func.vmap(f)(X),
}


def test_a_batching_rule_that_gives_another_number_of_results_is_refused() -> None:
    f = weft.func.custom(torch.sin, batch=lambda size, batched, args: (args[0], args[0]))
    with pytest.raises(weft.ShapeError, match="gives 2 results for 1"):
        weft.vmap(f)(X)


@pytest.mark.parametrize("rule", ["vjp", "jvp", "batch"])
def test_rules_are_functions(rule: str) -> None:
    with pytest.raises(weft.WeftError, match=f"custom takes a function as {rule}, got int") as error:
        weft.func.custom(torch.sin, **{rule: 3})
    assert "test_custom.py" in str(error.value)


def scaled(x: torch.Tensor, scale: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
    return x * scale + shift


def compiled_grad(f):
    return torch.compile(torch.func.grad(f), backend="weft")


@pytest.mark.parametrize("transform", [weft.grad, torch.func.grad, compiled_grad])
def test_rules_are_given_defaults_by_name(transform) -> None:
    f = weft.func.custom(scaled, vjp=lambda grads, args, results, scale, shift: (grads * scale * shift, *args[1:]))
    x = torch.randn(3)
    torch.testing.assert_close(transform(lambda x: f(x).sum())(x), torch.full_like(x, 2))
    torch.testing.assert_close(transform(lambda x: f(x, scale=5.0).sum())(x), torch.full_like(x, 5))
    torch.testing.assert_close(transform(lambda x: f(x, shift=3.0).sum())(x), torch.full_like(x, 6))


def test_rules_are_given_by_name_what_the_function_is_given_by_place() -> None:
    f = weft.func.custom(scaled, vjp=lambda grads, args, results, scale: (grads * scale, None))
    torch.testing.assert_close(weft.grad(lambda x: f(x, 7.0).sum())(X), torch.full_like(X, 7))
