"""Functions of torch.func over compiled functions that call functions of torch.func themselves."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from weft.frontends.torch.transforms.evaluate_graph import evaluate

func: Any = torch.func


def adapted(weight: Tensor, x: Tensor) -> Tensor:
    step = func.grad(lambda w: torch.sin(w * x).sum())(weight)
    return ((weight - step) * x).sum()


def batched(x: Tensor) -> Tensor:
    return func.vmap(lambda row: row.sin() * row.sum())(x).sum()


def along(x: Tensor) -> Tensor:
    return func.jvp(lambda y: y.sin() * y, (x,), (x.cos(),))[1]


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize(
    ("function", "transform", "arguments"),
    [
        (adapted, lambda f: func.vmap(f, in_dims=(None, 0)), ((2,), (3, 2))),
        (adapted, func.grad, ((2,), (2,))),
        (batched, func.grad, ((3, 2),)),
        (along, func.vmap, ((3, 2),)),
        (along, lambda f: lambda x: func.jvp(f, (x,), (x,)), ((2,),)),
    ],
    ids=["vmap-of-grad", "grad-of-grad", "grad-of-vmap", "vmap-of-jvp", "jvp-of-jvp"],
)
def test_levels_of_a_function_are_entered_inside_of_those_around_it(
    function: Callable[..., Tensor], transform: Callable[..., Any], arguments: tuple[tuple[int, ...], ...]
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="weft", options={"fallback": "error"})
    given = [double(*shape) for shape in arguments]
    torch.testing.assert_close(transform(compiled)(*given), transform(function)(*given))


def test_a_graph_that_fails_leaves_its_levels() -> None:
    graphs: list[Any] = []
    kept: Any = lambda graph, _: graphs.append(graph) or graph.forward  # noqa: E731
    torch._dynamo.reset()
    torch.compile(adapted, backend=kept)(double(2), double(2))
    with pytest.raises(RuntimeError):
        evaluate(graphs[0], [double(2), double(3)])
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch._C._autograd._saved_tensors_hooks_is_enabled()
