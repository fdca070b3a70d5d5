"""`checkpoint(offload=...)` under `weft.func`: the same derivatives, with copies to the host's memory between."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from weft.backends.target import CostFacts
from weft.errors import WeftError
from weft.frontends.torch.func.lower_offloads import lower_offloads
from weft.func import checkpoint, checkpoint_name
from weft.ir.types import Tensor, f64
from weft.ops.graph import FuncOp, GraphBuilder, OpaqueOp, ReturnOp
from weft.runtime.record import recording

W, X = torch.randn(4, 6, dtype=torch.float64) / 2, torch.randn(5, 4, dtype=torch.float64)


def layer(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    hidden = checkpoint_name(torch.tanh(x @ w), "hidden")
    return x + torch.sin(hidden @ w.mT)


def loss(apply: Any, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = apply(w, x)
    return x.pow(2).mean()


def plain(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return loss(layer, w, x)


def transferred(records: Any) -> int:
    return sum(claim.uses for each in records for claim in each.claims if claim.op == "weft::offload")


@pytest.mark.parametrize(("offload", "copies"), [("dots", 6), ("hidden", 3), (("tanh", "sin"), 3), ("everything", 6)])
def test_gradients_are_the_same(offload: Any, copies: int) -> None:
    with recording() as records:
        found = weft.grad(lambda w: loss(checkpoint(layer, offload=offload), w, X))(W)
    torch.testing.assert_close(found, torch.func.grad(plain)(W, X))
    assert transferred(records) >= copies


def test_other_transformations_pass_through() -> None:
    def f(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return loss(checkpoint(layer, offload="dots"), w, x)

    torch.testing.assert_close(weft.hessian(f)(W, X), torch.func.hessian(plain)(W, X))
    batch = torch.stack([X, 2 * X])
    found = weft.vmap(weft.grad(f), in_axes=(None, 0))(W, batch)
    torch.testing.assert_close(found, torch.func.vmap(torch.func.grad(plain), (None, 0))(W, batch))
    _, product = weft.jvp(weft.grad(lambda w: f(w, X)), (W,), (W,))
    torch.testing.assert_close(product, torch.func.jvp(torch.func.grad(lambda w: plain(w, X)), (W,), (W,))[1])


def test_a_forward_and_its_backward_hand_on_copies_in_the_hosts_memory() -> None:
    with recording() as records:
        value, pull = weft.vjp(lambda w: loss(checkpoint(layer, offload="dots"), w, X), W)
        (found,) = pull(torch.ones_like(value))
    torch.testing.assert_close(found, torch.func.grad(plain)(W, X))
    forward, backward = ([claim.op for claim in each.claims] for each in records)
    assert "weft::offload" in forward and "weft::reload" not in forward
    assert "weft::reload" in backward and "weft::offload" not in backward


def test_copies_inside_of_loops_are_left_out() -> None:
    def turns(w: torch.Tensor) -> torch.Tensor:
        step = checkpoint(lambda h, x: (torch.tanh(h @ w + x), x + 1), offload="dots")
        start = torch.zeros(6, dtype=torch.float64)
        return torch._higher_order_ops.scan(lambda h, x: step(h, x), start, torch.ones(3, 6, dtype=torch.float64))[
            0
        ].sum()

    def unrolled(w: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(6, dtype=torch.float64)
        for _ in range(3):
            h = torch.tanh(h @ w + 1)
        return h.sum()

    w = torch.randn(6, 6, dtype=torch.float64)
    torch.testing.assert_close(weft.grad(turns)(w), torch.func.grad(unrolled)(w))


def test_a_name_that_no_value_has_is_an_error() -> None:
    with pytest.raises(WeftError, match="hiden"):
        weft.grad(lambda w: loss(checkpoint(layer, offload="hiden"), w, X))(W)


def test_copies_begin_early_and_are_awaited_late() -> None:
    function = FuncOp.make("f", {"x": Tensor(f64, (64,))})
    b = GraphBuilder(function.block)
    value = first = b.sin(function.block.args[0])
    for _ in range(6):
        value = b.cos(value)
    again = b.emit("reload", b.emit("offload", first))
    b.insert(ReturnOp.make([b.mul(again, value)]))
    lower_offloads(function, torch.device("cpu"), CostFacts(bandwidth=1e9, host_bandwidth=1e9), {})
    names = [op.target.data if isinstance(op, OpaqueOp) else op.name for op in function.block.ops]
    assert names.index("weft::offload") == 1, "behind what makes the value"
    assert names.index("graph.cos") < names.index("weft::offloaded") < names.index("weft::reload")
    assert names.index("weft::reload") < names.index("weft::reloaded") - 1, "something is computed meanwhile"
    assert names[names.index("weft::reloaded") + 1] == "graph.mul"


def test_what_is_read_meanwhile_stays() -> None:
    function = FuncOp.make("f", {"x": Tensor(f64, (64,))})
    b = GraphBuilder(function.block)
    first = b.sin(function.block.args[0])
    again = b.emit("reload", b.emit("offload", first))
    b.insert(ReturnOp.make([b.cos(again), first]))
    lower_offloads(function, torch.device("cpu"), CostFacts(), {})
    assert [op.name for op in function.block.ops] == ["graph.sin", "graph.cos", "graph.return"]
