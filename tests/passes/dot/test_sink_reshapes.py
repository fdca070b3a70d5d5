"""`sink_reshapes`: what follows a product is computed in the product's shape."""

from __future__ import annotations

from typing import Any

from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32
from weft.passes.dot.sink_reshapes import SinkReshapes
from weft.passes.simplify.eliminate_dead import EliminateDead

PASSES = (SinkReshapes(), EliminateDead())
A, W = Tensor(f32, (6, 5)), Tensor(f32, (5, 4))
DOT = {"a": A, "w": W}
s0 = symbol("s0")


def test_as_text(passes: Any) -> None:
    passes.rewrites_text(
        PASSES,
        """
        "graph.func"() ({
        ^bb0(%a: tensor<6x5xf32>, %w: tensor<5x4xf32>, %bias: tensor<4xf32>, %res: tensor<2x3x4xf32>):
          %0 = "graph.dot"(%a, %w) : (tensor<6x5xf32>, tensor<5x4xf32>) -> tensor<6x4xf32>
          %1 = "graph.reshape"(%0) {shape = [2, 3, 4]} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
          %2 = "graph.add"(%1, %bias) : (tensor<2x3x4xf32>, tensor<4xf32>) -> tensor<2x3x4xf32>
          %3 = "graph.add"(%2, %res) : (tensor<2x3x4xf32>, tensor<2x3x4xf32>) -> tensor<2x3x4xf32>
          "graph.return"(%3) : (tensor<2x3x4xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%a: tensor<6x5xf32>, %w: tensor<5x4xf32>, %bias: tensor<4xf32>, %res: tensor<2x3x4xf32>):
          %0 = "graph.dot"(%a, %w) : (tensor<6x5xf32>, tensor<5x4xf32>) -> tensor<6x4xf32>
          %1 = "graph.add"(%0, %bias) : (tensor<6x4xf32>, tensor<4xf32>) -> tensor<6x4xf32>
          %2 = "graph.reshape"(%res) {shape = [6, 4]} : (tensor<2x3x4xf32>) -> tensor<6x4xf32>
          %3 = "graph.add"(%1, %2) : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>
          %4 = "graph.reshape"(%3) {shape = [2, 3, 4]} : (tensor<6x4xf32>) -> tensor<2x3x4xf32>
          "graph.return"(%4) : (tensor<2x3x4xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
    )


def test_a_norm_after_a_product_is_computed_on_its_rows(passes: Any) -> None:
    def norm(b: Any, x: Any, dims: tuple[int, ...]) -> Any:
        total = b.sum(b.mul(x, x), dims=dims, keep=True)
        return b.mul(x, b.rsqrt(b.add(total, b.full_like(total, 1e-5))))

    passes.rewrites(
        PASSES,
        DOT,
        lambda b, a, w: norm(b, b.reshape(b.dot(a, w), shape=(2, 3, 4)), (2,)),
        lambda b, a, w: b.reshape(norm(b, b.dot(a, w), (1,)), shape=(2, 3, 4)),
    )


def test_symbolic_rows(passes: Any) -> None:
    tensors = {"a": Tensor(f32, (3 * s0, 5)), "w": W, "res": Tensor(f32, (s0, 3, 4))}

    def after(b: Any, a: Any, w: Any, res: Any) -> Any:
        product = b.dot(a, w)
        return b.reshape(b.add(b.reshape(res, shape=(3 * s0, 4)), product), shape=(s0, 3, 4))

    passes.rewrites(
        PASSES,
        tensors,
        lambda b, a, w, res: b.add(res, b.reshape(b.dot(a, w), shape=(s0, 3, 4))),
        after,
        s0=2,
    )


def test_products_of_one_element(passes: Any) -> None:
    passes.rewrites(
        PASSES,
        {"a": Tensor(f32, (1, 5)), "w": Tensor(f32, (5, 1))},
        lambda b, a, w: b.exp(b.reshape(b.dot(a, w), shape=(1, 1, 1))),
        lambda b, a, w: b.reshape(b.exp(b.dot(a, w)), shape=(1, 1, 1)),
    )


def test_heads_keep_what_varies_along_some_of_them_only(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any, cos: Any) -> Any:
        return b.mul(b.reshape(b.dot(a, w), shape=(2, 3, 2, 2)), cos)

    passes.rewrites(PASSES, {**DOT, "cos": Tensor(f32, (3, 1, 2))}, body, body)


def test_a_reduction_over_part_of_the_merged_dimensions_stays(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any) -> Any:
        return b.sum(b.reshape(b.dot(a, w), shape=(2, 3, 4)), dims=(1,), keep=False)

    passes.rewrites(PASSES, DOT, body, body)


def test_the_position_of_a_maximum(passes: Any) -> None:
    passes.rewrites(
        PASSES,
        DOT,
        lambda b, a, w: b.argmax(b.reshape(b.dot(a, w), shape=(2, 3, 2, 2)), dims=(2, 3), keep=False),
        lambda b, a, w: b.reshape(b.argmax(b.dot(a, w), dims=(1,), keep=False), shape=(2, 3)),
    )


def test_permutes_sink_below_ops_with_numbers(passes: Any) -> None:
    passes.rewrites(
        PASSES,
        DOT,
        lambda b, a, w: b.relu(b.mul(b.permute(b.dot(a, w), dims=(1, 0)), b.full(value=2.0, shape=(), dtype=f32))),
        lambda b, a, w: b.permute(b.relu(b.mul(b.dot(a, w), b.full(value=2.0, shape=(), dtype=f32))), dims=(1, 0)),
    )


def test_reshapes_that_follow_no_product_stay(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        return b.exp(b.reshape(b.tanh(x), shape=(2, 3, 5)))

    passes.rewrites(PASSES, {"x": A}, body, body)


def _innermost(b: Any, x: Any) -> Any:
    """Rows [2 * 3, 4] as images [2, 4, 3]."""
    return b.permute(b.reshape(x, shape=(2, 3, 4)), dims=(0, 2, 1))


def test_permutes_sink_below_vectors(passes: Any) -> None:
    passes.rewrites(
        PASSES,
        {**DOT, "v": Tensor(f32, (4, 1))},
        lambda b, a, w, v: b.relu(b.mul(_innermost(b, b.dot(a, w)), v)),
        lambda b, a, w, v: _innermost(b, b.relu(b.mul(b.dot(a, w), b.reshape(v, shape=(1, 4))))),
    )


def test_images_that_are_computed_are_permuted_back(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any, image: Any) -> Any:
        return b.add(_innermost(b, b.dot(a, w)), b.exp(image))

    arguments = {**DOT, "image": Tensor(f32, (2, 4, 3))}
    for whole, last in ((False, "graph.add"), (True, "graph.permute")):
        module = passes.apply((SinkReshapes(whole=whole), EliminateDead()), passes.built(arguments, body))
        names = [op.name for op in passes.function(module).block.ops]
        assert names[-2] == last


def test_images_that_are_given_stay(passes: Any) -> None:
    arguments = {**DOT, "image": Tensor(f32, (2, 4, 3))}
    module = passes.built(arguments, lambda b, a, w, image: b.add(_innermost(b, b.dot(a, w)), image))
    passes.apply(SinkReshapes(whole=True), module)
    assert [op.name for op in passes.function(module).block.ops][-2] == "graph.add"


def test_what_was_permuted_stays_so_beside_a_reshape(passes: Any) -> None:
    tensors = {**DOT, "p": Tensor(f32, (2, 4, 5)), "q": Tensor(f32, (2, 5, 3))}

    def body(b: Any, a: Any, w: Any, p: Any, q: Any) -> Any:
        turned = b.exp(b.permute(b.dot(p, q), dims=(0, 2, 1)))
        return b.add(b.reshape(b.dot(a, w), shape=(2, 3, 4)), turned)

    passes.apply(PASSES, passes.built(tensors, body), rtol=1e-6)
