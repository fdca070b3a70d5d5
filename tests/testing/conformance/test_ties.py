"""Sorting judged where keys are equal: another order of them is right, and nothing else is."""

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

from weft.testing.conformance.conformance import run_opinfo
from weft.testing.conformance.ties import eager_in_the_order_of, is_order_of_equal_keys

KEYS = torch.tensor([[2.0, 1.0, 2.0, 1.0, torch.nan, torch.nan]])


def places(*numbers):
    return torch.tensor([numbers])


SORTED = places(1, 3, 0, 2, 4, 5)


@pytest.mark.parametrize("mine", [(1, 3, 0, 2, 4, 5), (3, 1, 0, 2, 4, 5), (3, 1, 2, 0, 5, 4)])
def test_another_order_of_equal_keys_is_right(mine):
    assert is_order_of_equal_keys(places(*mine), SORTED, KEYS, 1)


@pytest.mark.parametrize(
    "mine",
    [
        (1, 0, 3, 2, 4, 5),  # keys that differ change places
        (1, 1, 0, 2, 4, 5),  # a place twice, with the right keys
        (1, 3, 0, 2, 5, 5),
        (1, -3, 0, 2, 4, 5),  # counted from the end
        (1, 3, 0, 2, 4, 6),
        (1, 3, 0, 2, 4),
    ],
)
def test_other_places_are_not(mine):
    assert not is_order_of_equal_keys(places(*mine), SORTED, KEYS, 1)


def test_places_of_another_type_are_not():
    assert not is_order_of_equal_keys(SORTED.int(), SORTED, KEYS, 1)


def test_equal_keys_of_different_rows_do_not_change_places():
    keys = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert not is_order_of_equal_keys(torch.tensor([[1, 0], [0, 1]]), keys.argsort(1), keys, 1)


def results(outputs, gradient):
    return {"outputs": outputs, "inputs": (), "gradients": (gradient,)}


def test_gradients_follow_the_places():
    values = KEYS.gather(1, SORTED)
    eager = results((values, SORTED), torch.tensor([[3.0, 1.0, 4.0, 2.0, 5.0, 6.0]]))
    order = places(3, 1, 0, 2, 4, 5)
    judged = eager_in_the_order_of(results((values, order), None), eager, "sort", (KEYS, (), {"dim": 1}))
    assert judged["outputs"][1] is order
    assert judged["gradients"][0].tolist() == [[3, 2, 4, 1, 5, 6]]


def test_what_topk_leaves_out_has_no_gradient():
    keys = torch.tensor([5.0, 5.0, 5.0])
    eager = results((keys[:2], torch.tensor([0, 1])), torch.tensor([7.0, 8.0, 0.0]))
    mine = results((keys[:2], torch.tensor([2, 1])), None)
    judged = eager_in_the_order_of(mine, eager, "topk", (keys, (2,), {}))
    assert judged["gradients"][0].tolist() == [0, 8, 7]


@pytest.mark.parametrize(
    ("gradient", "right"),
    [
        ((4, 2, 3, 1), True),  # both pairs of equal keys exchange theirs
        ((3, 1, 4, 2), True),
        ((3, 4, 1, 2), False),  # keys that differ do
        ((3, 1, 3, 2), False),  # one is used twice
        ((3.5, 1, 4, 2), False),
    ],
)
def test_gradients_whose_places_are_not_shown(gradient, right):
    keys, mine = torch.tensor([2.0, 1.0, 2.0, 1.0]), torch.tensor(gradient, dtype=torch.float32)
    eager = results(keys.msort(), torch.tensor([3.0, 1.0, 4.0, 2.0]))
    judged = eager_in_the_order_of(results(keys.msort(), mine), eager, "msort", (keys, (), {}))
    assert judged["gradients"][0].equal(mine) is right


@pytest.mark.parametrize("arguments", [((1, False, True), {}), ((), {"dim": 1, "stable": True})])
def test_a_stable_order_is_the_only_one(arguments):
    eager, mine = results(SORTED, None), results(places(3, 1, 0, 2, 4, 5), None)
    assert eager_in_the_order_of(mine, eager, "argsort", (KEYS, *arguments)) is eager


def backend(change):
    """An AOT backend that runs graphs as they are, but for the places that sorting gives."""

    def compiler(graph_module, inputs):
        def run(*args):
            return [
                change(r, args[0]) if isinstance(r, torch.Tensor) and r.dtype == torch.int64 else r
                for r in graph_module(*args)
            ]

        return make_boxed_func(run)

    return aot_autograd(fw_compiler=compiler)


def with_equal_keys_turned(order, keys):
    """The last two equal keys that are neighbours in the order change places."""
    sorted_keys = keys.detach()[order]
    first = int((sorted_keys[1:] == sorted_keys[:-1]).nonzero()[-1])
    return _turned(order, first)


def with_other_keys_turned(order, keys):
    sorted_keys = keys.detach()[order]
    first = int((sorted_keys[1:] != sorted_keys[:-1]).nonzero()[-1])
    return _turned(order, first)


def _turned(order, first):
    order = order.clone()
    order[[first, first + 1]] = order[[first + 1, first]]
    return order


@pytest.mark.parametrize(("change", "status"), [(with_equal_keys_turned, "passed"), (with_other_keys_turned, "wrong")])
@pytest.mark.parametrize("op", ["sort", "argsort", "msort"])
def test_a_run_tells_them_apart(op, change, status):
    # The first sample has 8000 keys in bfloat16: many are equal. With msort, only the gradient shows the order.
    report = run_opinfo(backend(change), ["bfloat16"], ops=[op], samples=1, jobs=0)
    assert [result.status for result in report.results] == [status]
