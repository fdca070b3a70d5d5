"""`weft.func` against `torch.func`, on the same functions and trees."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.func as reference
from torch import nn

import weft
from weft.errors import DTypeError, PlaceError, ShapeError, UnsupportedError, WeftError
from weft.func import grad, hessian, jacfwd, jacrev, jvp, linearize, value_and_grad, vjp, vmap
from weft.ir.types import tensor_of

close = torch.testing.assert_close


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


W = torch.linspace(-1, 1, 12).reshape(3, 4)


def layer(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ W)


def loss(x: torch.Tensor) -> torch.Tensor:
    return layer(x).pow(2).sum()


def tree(p: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"affine": p["w"] @ x + p["b"], "norm": (p["w"] ** 2).sum()}


def parameters() -> dict[str, torch.Tensor]:
    return {"w": torch.linspace(-1, 1, 12).reshape(4, 3), "b": torch.arange(4.0)}


def test_gradients_with_values_and_aux(x: torch.Tensor) -> None:
    def both(p: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        found = tree(p, x)
        return found["affine"].pow(2).sum(), found["norm"]

    args = (parameters(), x[0])
    close(grad(loss)(x), reference.grad(loss)(x))
    close(grad(both, (0, 1), has_aux=True)(*args), reference.grad(both, (0, 1), has_aux=True)(*args))
    (value, aux), gradient = value_and_grad(both, has_aux=True)(*args)
    expected, (other, other_aux) = reference.grad_and_value(both, has_aux=True)(*args)
    close((value, aux, gradient), (other, other_aux, expected))
    assert grad(lambda x: (loss(x), {"size": 4}), has_aux=True)(x)[1] == {"size": 4}


def test_a_number_of_python_is_differentiated() -> None:
    assert weft.grad(lambda x: x**3)(2.0) == 12.0


@pytest.mark.parametrize("make", [jacrev, jacfwd])
@pytest.mark.parametrize("argnums", [0, 1, (0, 1)])
def test_jacobians_of_trees(make: Callable[..., Any], argnums: Any, x: torch.Tensor) -> None:
    args = (parameters(), x[0])
    close(make(tree, argnums)(*args), reference.jacrev(tree, argnums)(*args))


def test_hessians_of_trees(x: torch.Tensor) -> None:
    def cubed(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return tree(p, x)["affine"].pow(3).sum()

    close(hessian(loss)(x), reference.hessian(loss)(x))
    args = (parameters(), x[0])
    close(hessian(cubed, (0, 1))(*args), reference.hessian(cubed, (0, 1))(*args))


def test_transformations_compose_in_any_order(x: torch.Tensor) -> None:
    close(vmap(grad(loss))(x), reference.vmap(reference.grad(loss))(x))
    close(jvp(grad(loss), (x,), (x,)), reference.jvp(reference.grad(loss), (x,), (x,)))
    close(grad(lambda x: vmap(layer)(x).sum())(x), reference.grad(lambda x: layer(x).sum())(x))
    close(jacfwd(vmap(layer))(x), reference.jacfwd(layer)(x))
    outer = vmap(vmap(torch.dot, in_axes=(None, 0)), in_axes=(0, None))
    close(outer(x, x), x @ x.T)


def test_vjp_and_linearize_give_functions_that_are_transformed_too(x: torch.Tensor) -> None:
    value, pull = vjp(layer, x)
    expected, reference_pull = reference.vjp(layer, x)
    seeds = torch.randn(5, 2, 4)
    close((value, pull(seeds[0])), (expected, reference_pull(seeds[0])))
    close(vmap(pull)(seeds), reference.vmap(reference_pull)(seeds))
    close(reference.vmap(pull)(seeds), reference.vmap(reference_pull)(seeds))
    value, push = linearize(layer, x)
    close((value, push(x)), reference.jvp(layer, (x,), (x,)))
    value, pull, aux = vjp(lambda x: (layer(x), x + 1), x, has_aux=True)
    close((aux, pull(seeds[0])), (x + 1, reference_pull(seeds[0])))
    with pytest.raises(ShapeError, match=r"a gradient of .* for a result of"):
        pull(seeds)


def test_axes_are_trees_and_have_the_names_of_torch(x: torch.Tensor) -> None:
    batch = {"a": x, "b": x.T.contiguous()}
    added = vmap(lambda t, s: {"sum": t["a"] + t["b"] * s}, in_axes=({"b": 1, "a": 0}, None), out_axes={"sum": 1})
    close(added(batch, torch.tensor(2.0))["sum"], (3 * x).T)
    close(vmap(layer, in_dims=1, out_dims=1)(x.T.contiguous()), layer(x).T)
    close(vmap(lambda x, y: (x, y), in_axes=(0, None), out_axes=(0, None))(x, x)[1], x)


def test_weights_that_a_function_closes_over_may_change(x: torch.Tensor) -> None:
    weight = torch.ones(3, 4)
    derivative = grad(lambda x: torch.tanh(x @ weight).sum())
    before = derivative(x)
    weight.mul_(0.5)
    close(derivative(x), reference.grad(lambda x: torch.tanh(x @ weight).sum())(x))
    assert not torch.equal(before, derivative(x))


def test_modules_and_functional_calls(x: torch.Tensor) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.GELU(), torch.nn.Linear(5, 2))
    state = {name: value.detach() for name, value in module.named_parameters()}

    def objective(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, state, (x,)).pow(2).sum()

    close(vmap(module)(x), module(x).detach())
    per_sample = vmap(grad(objective), in_axes=(None, 0))(state, x)
    close(per_sample, reference.vmap(reference.grad(objective), in_dims=(None, 0))(state, x))


def test_gradients_stop_where_torch_stops_them(x: torch.Tensor) -> None:
    def detached(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            squared = x * x
        return (squared * x + x.detach() * x).sum()

    def embedded(table: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(places, table, padding_idx=0).pow(2).sum()

    table, places = torch.randn(5, 3), torch.tensor([0, 1, 4])
    close(grad(detached)(x), reference.grad(detached)(x))
    close(grad(embedded)(table, places), reference.grad(embedded)(table, places))


def test_random_numbers_follow_the_seed_of_torch(x: torch.Tensor) -> None:
    noisy = vmap(lambda x: x + torch.randn(3), randomness="different")
    torch.manual_seed(3)
    first, second = noisy(x), noisy(x)
    torch.manual_seed(3)
    assert torch.equal(first, noisy(x))
    assert not torch.equal(first, second)
    same = vmap(lambda x: torch.dropout(x, 0.5, True), randomness="same")(torch.ones(64, 8))
    assert len(torch.unique(same, dim=0)) == 1
    many = vmap(lambda x: torch.randn_like(x), randomness="different")(torch.ones(64, 256))
    assert abs(many.mean()) < 0.03 and abs(many.std() - 1) < 0.03


def test_indices_out_of_range_are_found_with_their_line() -> None:
    def picked(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[n].sum()

    x, places = torch.randn(5), torch.tensor([[0, 1], [2, 3]])
    derivative = vmap(grad(picked), in_axes=(None, 0))
    close(derivative(x, places), reference.vmap(reference.grad(picked), in_dims=(None, 0))(x, places))
    with pytest.raises(PlaceError, match="test_derivatives"):
        derivative(x, places + 3)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: grad(layer)(x), ShapeError, "returns 2x4xf32"),
        (lambda x: grad(loss)(torch.arange(3)), DTypeError, "leaf of torch.int64"),
        (lambda x: grad(lambda x: (x > 0).sum())(x), DTypeError, "returns i64"),
        (lambda x: grad(loss, 1)(x), WeftError, "argnums has 1"),
        (lambda x: vmap(layer, in_axes=(0, 0))(x), WeftError, "does not match"),
        (lambda x: vmap(layer, in_axes=5)(x), ShapeError, "5 for a tensor of 2"),
        (lambda x: vmap(torch.add)(x, x[:1]), ShapeError, "axes of size 2, 1"),
        (lambda x: vmap(lambda x: x + torch.rand(3))(x), UnsupportedError, "random numbers"),
        (lambda x: vmap(layer, randomness="some"), WeftError, "no randomness"),
        (lambda x: vmap(layer, out_axes=None)(x), ShapeError, "differs within the batch"),
        (lambda x: jvp(layer, (x,), (x[0],)), ShapeError, "a tangent of"),
        (lambda x: jvp(layer, (x,), x), WeftError, "a tuple of tangents"),
        (lambda x: grad(lambda x: x.sum() if x.sum() > 0 else x.max())(x), UnsupportedError, "decides by its data"),
        (lambda x: grad(lambda x: nn.functional.gaussian_nll_loss(x, x, x * x))(x), UnsupportedError, "decides by"),
        (lambda x: jvp(lambda x: x.argmax(), (x,), (x,)), DTypeError, "result 0 is of integers"),
        (lambda x: grad(lambda x: torch.linalg.eigvals(x).real.sum())(x @ x.T), UnsupportedError, "linalg_eig"),
        (lambda x: grad(lambda x: (x + 1j).sum())(x), DTypeError, "complex numbers"),
    ],
)
def test_mistakes_are_named_with_the_users_line(call: Any, error: type[WeftError], words: str, x: torch.Tensor) -> None:
    with pytest.raises(error, match=words) as raised:
        call(x)
    assert raised.value.hint or raised.value.location


@pytest.mark.parametrize("name", ["grad", "jacrev", "jacfwd", "hessian"])
def test_an_argument_is_differentiated_once(name) -> None:
    with pytest.raises(weft.WeftError, match="argnums has 0 twice"):
        getattr(weft.func, name)(lambda x, y: (x * y).sum(), argnums=(0, -2))(torch.ones(3), torch.ones(3))


def test_arguments_by_name_are_shared_by_the_batch() -> None:
    x, w = torch.randn(4, 3), torch.randn(4, 3)
    found = weft.vmap(lambda x, w: w @ x)(x, w=w)
    torch.testing.assert_close(found, torch.func.vmap(lambda x, w: w @ x)(x, w=w))
    assert found.shape == (4, 4)


@pytest.mark.parametrize(
    "function", [lambda x: (x[1:] * x[:-1]).sum(), lambda x: nn.functional.glu(x.view(3, 2), -1).prod()]
)
def test_tangents_inside_of_a_batch_are_those_of_each(function) -> None:
    x, t = torch.randn(2, 3, 6, dtype=torch.float64)
    found = weft.vmap(lambda x, t: weft.jvp(function, (x,), (t,)))(x, t)
    expected = [torch.func.jvp(function, (x[n],), (t[n],)) for n in range(3)]
    for n, each in enumerate(expected):
        torch.testing.assert_close(tuple(one[n] for one in found), each)


@pytest.mark.parametrize("zeros", [(), (2,), (1, 2), (0, 3), (0, 1, 2)])
def test_second_derivatives_of_products_hold_where_factors_are_zero(zeros: tuple[int, ...]) -> None:
    x, weights = torch.arange(1.0, 5), torch.arange(1.0, 5)
    x[list(zeros)] = 0

    def running(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[0], x[0] * x[1], x[0] * x[1] * x[2], x[0] * x[1] * x[2] * x[3]])

    close(hessian(torch.prod)(x), reference.hessian(lambda x: running(x)[3])(x))
    expected = reference.hessian(lambda x: (running(x) * weights).sum())(x)
    close(hessian(lambda x: (torch.cumprod(x, 0) * weights).sum())(x), expected)


def test_derivatives_of_sinc_at_zero_are_its_limits() -> None:
    x = torch.tensor([0.0, 0.5])
    close(grad(lambda x: torch.sinc(x).sum())(x), reference.grad(lambda x: torch.sinc(x).sum())(x))
    close(hessian(lambda x: torch.sinc(x).sum())(x)[0], torch.tensor([-(torch.pi**2) / 3, 0.0]))


def test_derivatives_of_a_matrix_times_a_vector_are_products_of_matrices() -> None:
    rows = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    weights = torch.linspace(-1, 1, 8)

    def energy(weights: torch.Tensor) -> torch.Tensor:
        return torch.cosh(rows @ weights).sum()

    second = hessian(energy)
    close(second(weights), reference.hessian(energy)(weights))
    (program, _), *_ = second._compiled.values()
    sizes = [math.prod(tensor_of(each.type).shape) for op in program.function.block.ops for each in op.results]
    assert max(sizes) <= 40 * 8, "not 40 x 8 x 8, all products before they are summed up"


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


class OneValue(NamedTuple):
    value: complex


@pytest.mark.parametrize("wrap", [dict, OrderedDict, lambda pairs: Pair(*dict(pairs).values())])
def test_calls_find_what_is_compiled_for_trees_of_any_kind(wrap: Any, x: torch.Tensor) -> None:
    calls = []

    def weighed(tree: Any, by: float) -> torch.Tensor:
        calls.append(by)
        first, second = tree.values() if isinstance(tree, dict) else tree
        return (first.sin() * second * by).sum()

    tree = wrap([("first", x), ("second", x + 1)])
    gradient = grad(weighed)
    for by in (2.0, 2.0, 3.0, 2.0):
        found, expected = gradient(tree, by), reference.grad(weighed)(tree, by)
        assert type(found) is type(tree)
        close(found, expected)
    assert len(calls) == 4 + 2, "eager's four, and two that are traced"


@pytest.mark.parametrize("wrap", [lambda value: value, OneValue], ids=["usual", "of another class"])
@pytest.mark.parametrize(
    "part", [lambda sign: sign * 0.0, lambda sign: complex(0, sign * 0.0)], ids=["real", "complex"]
)
def test_zeros_of_either_sign_are_different_values(wrap: Any, part: Any, x: torch.Tensor) -> None:
    def signed(x: torch.Tensor, given: Any) -> torch.Tensor:
        value = given[0] if isinstance(given, tuple) else given
        return (math.copysign(1, value.imag if isinstance(value, complex) else value) * x).sum()

    gradient = grad(signed)
    for sign in (1, -1, 1):
        close(gradient(x, wrap(part(sign))), torch.full_like(x, sign))


def test_tangents_are_checked_in_every_kind_of_call(x: torch.Tensor) -> None:
    close(jvp(layer, (x,), (x,)), reference.jvp(layer, (x,), (x,)))
    with pytest.raises(ShapeError, match="a tangent of"):
        jvp(layer, (x,), (x[:1],))
    with pytest.raises(WeftError, match="structure"):
        jvp(layer, (x,), (x, x))
    assert jvp(torch.sin, (0.0,), (2.0,))[1] == 2


@pytest.mark.parametrize("argnums", [0, 1, (0, 1), (1,), -1])
def test_jacobians_inside_of_a_function_that_is_traced(argnums: Any, x: torch.Tensor) -> None:
    def both(t: Any, argnums: Any, aux: bool) -> Callable[..., Any]:
        def function(p: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
            found = {name: each.sin() for name, each in tree(p, x).items()}
            return (found, x.sum()) if aux else found

        return lambda p, x: t.jacfwd(function, argnums, has_aux=aux)(p, x)

    known = 1 if argnums == -1 else argnums  # torch takes no argument for the last one
    for aux in (False, True):
        found = vmap(both(weft.func, argnums, aux), in_dims=(None, 0))(parameters(), x)
        close(found, reference.vmap(both(reference, known, aux), in_dims=(None, 0))(parameters(), x))


def test_weights_have_no_tangents_of_zeros_inside_of_a_function_that_is_traced(x: torch.Tensor) -> None:
    def slopes(weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return jacfwd(lambda weights, x: torch.tanh(x @ weights) @ weights.mT, 1)(weights, x).diagonal().sum()

    batched = vmap(slopes, in_dims=(None, 0))
    batched(W, x)
    (program, _), *_ = batched._compiled.values()
    dots = [op for op in program.function.block.ops if op.name == "graph.dot"]
    assert len(dots) <= 3, "the value of one layer, and the tangents of two"


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7])
def test_batches_in_chunks_are_the_same_batches(chunk: int, x: torch.Tensor) -> None:
    rows = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))

    def function(weights: torch.Tensor, row: torch.Tensor, by: float = 1.0) -> Any:
        return {"product": by * weights @ row, "sum": row.sum()}

    asked = {"in_dims": (None, 1), "out_dims": {"product": 1, "sum": 0}, "chunk_size": chunk}
    batched = vmap(function, **asked)
    close(batched(W.mT, rows), reference.vmap(function, **asked)(W.mT, rows))
    held = [found[0].function.block.args for found in batched._of_chunk._compiled.values()]
    assert not chunk < 5 or max(tensor_of(each.type).shape[1] for (_, each, *_) in held) == chunk
    second = jacrev(vmap(torch.sin, chunk_size=chunk))  # inside of others, the batch is whole
    close(second(x), reference.jacrev(torch.sin)(x))


def test_chunks_of_random_numbers(x: torch.Tensor) -> None:
    rows = torch.zeros(6, 4)
    same = vmap(lambda row: row + torch.rand(4), randomness="same", chunk_size=2)(rows)
    assert all(torch.equal(same[0], row) for row in same)
    different = vmap(lambda row: row + torch.rand(4), randomness="different", chunk_size=2)(rows)
    assert len({tuple(row.tolist()) for row in different}) == 6
    chunked = vmap(lambda one: one * torch.rand(()), randomness="same", chunk_size=2)
    slopes = grad(lambda x: chunked(x).sum())(torch.ones(5))  # called while its caller is traced
    assert len(set(slopes.tolist())) == 1
    for chunk in (0, 2.0, "2"):
        with pytest.raises(WeftError, match=f"chunk_size={chunk!r}"):
            vmap(torch.sin, chunk_size=chunk)
