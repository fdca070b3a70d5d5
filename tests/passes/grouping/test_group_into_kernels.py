"""`group_into_kernels`: what becomes one kernel, and where results are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from xdsl.context import Context

from weft.config import Config
from weft.ir.attributes import to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, bf16, f32, i64
from weft.lower.plan import build_plan
from weft.lower.steps import DotStep, KernelStep
from weft.ops import composites
from weft.ops.graph import GroupOp, OpaqueOp
from weft.passes.grouping.group_into_kernels import GroupIntoKernels
from weft.pipelines import cpu_passes

X = Tensor(f32, (8, 16, 96))
WEIGHTS = {"w": Tensor(f32, (96,)), "c": Tensor(f32, (96,))}
IMAGE = {"x": Tensor(f32, (2, 16, 8, 8)), "w": Tensor(f32, (16,)), "c": Tensor(f32, (16,))}


def steps(passes: Any, arguments: Mapping[str, Tensor], body: Callable[..., Any], **options: Any) -> list[Any]:
    """The steps of a program; its groups compute what its ops did, and all of them can be lowered."""
    module = passes.apply(cpu_passes(Config()), passes.built(arguments, body), **options)
    return list(build_plan(passes.function(module)).plan.steps)


def test_as_text(passes: Any) -> None:
    passes.rewrites_text(
        GroupIntoKernels(),
        """
        "graph.func"() ({
        ^bb0(%x: tensor<4x5xf32>):
          %0 = "graph.max"(%x) {dims = [1], keep = true} : (tensor<4x5xf32>) -> tensor<4x1xf32>
          %1 = "graph.sub"(%x, %0) : (tensor<4x5xf32>, tensor<4x1xf32>) -> tensor<4x5xf32>
          %2 = "graph.exp"(%1) : (tensor<4x5xf32>) -> tensor<4x5xf32>
          "graph.return"(%2) : (tensor<4x5xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
        """
        "graph.func"() ({
        ^bb0(%x: tensor<4x5xf32>):
          %0 = "graph.group"(%x) ({
          ^bb1(%1: tensor<4x5xf32>):
            %2 = "graph.max"(%1) {dims = [1], keep = true} : (tensor<4x5xf32>) -> tensor<4x1xf32>
            %3 = "graph.sub"(%1, %2) : (tensor<4x5xf32>, tensor<4x1xf32>) -> tensor<4x5xf32>
            %4 = "graph.exp"(%3) : (tensor<4x5xf32>) -> tensor<4x5xf32>
            "graph.yield"(%4) : (tensor<4x5xf32>) -> ()
          }) : (tensor<4x5xf32>) -> tensor<4x5xf32>
          "graph.return"(%0) : (tensor<4x5xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """,
    )


ONE_KERNEL: dict[str, tuple[Mapping[str, Tensor], Callable[..., Any]]] = {
    "layer norm": ({"x": X, **WEIGHTS}, lambda b, x, w, c: composites.layer_norm(b, x, w, c, (2,), 1e-5)[0]),
    "layer norm with statistics": (
        {"x": X, **WEIGHTS},
        lambda b, x, w, c: composites.layer_norm(b, x, w, c, (2,), 1e-5),
    ),
    "layer norm over two dimensions": ({"x": X}, lambda b, x: composites.layer_norm(b, x, None, None, (1, 2), 1e-5)[0]),
    "rms norm": ({"x": X, "w": WEIGHTS["w"]}, lambda b, x, w: composites.rms_norm(b, x, w, (2,), 1e-5)[0]),
    "group norm": (IMAGE, lambda b, x, w, c: composites.group_norm(b, x, w, c, 4, 1e-5)[0]),
    "batch norm in training": (IMAGE, lambda b, x, w, c: composites.batch_norm_training(b, x, w, c, 1e-5)[0]),
    "softmax": ({"x": X}, lambda b, x: composites.softmax(b, x, 2)),
    "softmax over an inner dimension": ({"x": X}, lambda b, x: composites.softmax(b, x, 1)),
    "log softmax": ({"x": X}, lambda b, x: composites.log_softmax(b, x, 2)),
    "narrow layer norm": (
        {"x": Tensor(bf16, (4, 96))},
        lambda b, x: composites.layer_norm(b, x, None, None, (1,), 1e-5)[0],
    ),
    "variance": ({"x": X}, lambda b, x: composites.var(b, x, (2,), False)),
    "logsumexp": ({"x": X}, lambda b, x: composites.logsumexp(b, x, (2,), False)),
    "losses of rows": (
        {"x": Tensor(f32, (32, 96)), "t": Tensor(i64, (32,))},
        lambda b, x, t: b.neg(b.gather(composites.log_softmax(b, x, 1), b.reshape(t, shape=(32, 1)), dim=1)),
    ),
    "two norms that meet": (
        {"x": X, "y": X},
        lambda b, x, y: b.sum(
            b.mul(composites.rms_norm(b, x, None, (2,), 1e-5)[0], composites.rms_norm(b, y, None, (2,), 1e-5)[0]),
            dims=(2,),
            keep=False,
        ),
    ),
}


@pytest.mark.parametrize("case", ONE_KERNEL)
def test_one_kernel(passes: Any, case: str) -> None:
    arguments, body = ONE_KERNEL[case]
    made = steps(passes, arguments, body, rtol=0.02 if "narrow" in case else 1e-5)
    assert [type(step) for step in made] == [KernelStep]


def test_cross_entropy_writes_no_probabilities(passes: Any) -> None:
    def body(b: Any, x: Any, t: Any) -> Any:
        picked = b.gather(composites.log_softmax(b, x, 1), b.reshape(t, shape=(32, 1)), dim=1)
        return b.neg(composites.mean(b, b.reshape(picked, shape=(32,)), (0,), False))

    module = passes.apply(
        cpu_passes(Config()), passes.built({"x": Tensor(f32, (32, 96)), "t": Tensor(i64, (32,))}, body), rtol=1e-5
    )
    planned = build_plan(passes.function(module))
    assert len(planned.plan.steps) == 2
    assert [buffer.tensor.shape for buffer in planned.plan.buffers if buffer.role == "temporary"] in (
        [(32,)],
        [(32, 1)],
    )


def _series(b: Any, x: Any, y: Any, terms: int) -> Any:
    total = x
    for n in range(terms):
        total = b.add(b.mul(total, y), b.full(value=1.0 / (n + 2), shape=(), dtype=f32))
    return total


def test_a_long_formula_of_few_tensors_is_one_kernel(passes: Any) -> None:
    """Cut in two, it would write out what the second part needs, a tensor for each term of a recurrence."""

    def body(b: Any, x: Any, y: Any) -> Any:
        return b.where(b.gt(x, y), _series(b, x, b.tanh(x), 70), _series(b, y, b.tanh(y), 70))

    tensor = Tensor(f32, (40, 3))
    module = passes.apply(cpu_passes(Config()), passes.built({"x": tensor, "y": tensor}, body))
    planned = build_plan(passes.function(module))
    assert len(planned.plan.steps) == 1
    assert not [buffer for buffer in planned.plan.buffers if buffer.role == "temporary"]


def test_a_long_formula_of_many_tensors_is_several_kernels(passes: Any) -> None:
    def body(b: Any, x: Any, *others: Any) -> Any:
        for other in others:
            x = _series(b, x, other, 12)
        return x

    names = [f"x{n}" for n in range(7)]
    made = steps(passes, dict.fromkeys(names, Tensor(f32, (40, 3))), body)
    assert len(made) > 1


A, W = Tensor(f32, (6, 5)), Tensor(f32, (5, 4))


def test_a_result_that_is_a_view_takes_no_copy(passes: Any) -> None:
    made = steps(passes, {"a": A, "w": W}, lambda b, a, w: b.reshape(b.dot(a, w), shape=(2, 3, 4)), rtol=1e-5)
    assert [type(step) for step in made] == [DotStep]
    module = passes.apply(cpu_passes(Config()), passes.built({"x": A}, lambda b, x: b.permute(b.exp(x), dims=(1, 0))))
    plan = build_plan(passes.function(module)).plan
    assert len(plan.steps) == 1
    assert [(b.tensor.shape, b.layout.strides) for b in plan.buffers if b.role == "output"] == [((5, 6), (6, 1))]


def test_every_result_has_memory_of_its_own(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.exp(x)
        return [y, b.reshape(y, shape=(5, 6)), b.reshape(y, shape=(30,)), x]

    module = passes.apply(cpu_passes(Config()), passes.built({"x": A}, body))
    plan = build_plan(passes.function(module)).plan
    assert len(set(plan.outputs)) == 4 and not set(plan.outputs) & set(plan.inputs)
    assert {plan.buffers[number].role for number in plan.outputs} == {"output"}


def test_a_permuted_result_that_others_read_is_copied(passes: Any) -> None:
    """Others expect a value to lie row-major."""

    def body(b: Any, a: Any, w: Any) -> Any:
        y = b.exp(a)
        return [b.permute(y, dims=(1, 0)), b.dot(y, w)]

    made = steps(passes, {"a": A, "w": W}, body, rtol=1e-5)
    assert [type(step) for step in made].count(KernelStep) == 2


def test_products_of_what_blas_cannot_take_are_of_copies(passes: Any) -> None:
    def body(b: Any, a: Any, w: Any) -> Any:
        every_other = b.slice(a, starts=(0, 0), shape=(6, 5), steps=(1, 2))
        return b.dot(every_other, b.broadcast(w, shape=(5, 4)))

    made = steps(passes, {"a": Tensor(f32, (6, 10)), "w": Tensor(f32, (1, 4))}, body, rtol=1e-5)
    assert [type(step) for step in made] == [KernelStep, KernelStep, DotStep]


def test_arguments_with_gaps(passes: Any) -> None:
    module = passes.built({"a": A, "w": W}, lambda b, a, w: b.reshape(b.dot(a, w), shape=(24,)))
    passes.function(module).attributes["arg_strides"] = to_attribute(((20, 2), None))
    for each in cpu_passes(Config()):
        each.apply(Context(), module)
    made = build_plan(passes.function(module)).plan.steps
    assert [type(step) for step in made] == [KernelStep, DotStep]


def test_results_of_calls(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        return b.insert(OpaqueOp.make("demo::f", [x], "[]", [A])).results[0]

    module = passes.built({"x": A}, body)
    GroupIntoKernels().apply(Context(), module)
    assert "graph.group" not in str(module)
    module = passes.built({"x": A}, body)
    passes.function(module).attributes["result_strides"] = to_attribute(((1, 6),))
    GroupIntoKernels().apply(Context(), module)
    assert "graph.group" in str(module)


def test_symbolic_sizes(passes: Any) -> None:
    s0 = symbol("s0")
    tensors = {"a": Tensor(f32, (3 * s0, 5)), "w": W, "res": Tensor(f32, (s0, 3, 4))}

    def body(b: Any, a: Any, w: Any, res: Any) -> Any:
        x = b.add(b.reshape(b.dot(a, w), shape=(s0, 3, 4)), res)
        return [x, composites.layer_norm(b, x, None, None, (2,), 1e-5)[0]]

    made = steps(passes, tensors, body, rtol=1e-5, s0=3)
    assert [type(step) for step in made] == [DotStep, KernelStep]


def test_a_value_is_written_as_a_product_reads_it(passes: Any) -> None:
    """The heads of attention are merged by the strides of what it writes: no copy."""
    tensors = {"q": Tensor(f32, (2, 3, 4, 5)), "w": Tensor(f32, (15, 6))}

    def body(b: Any, q: Any, w: Any) -> Any:
        merged = b.reshape(b.permute(b.attention(q, q, q, causal=True, scale=0.5), dims=(0, 2, 1, 3)), shape=(8, 15))
        return b.dot(merged, w)

    module = passes.apply(cpu_passes(Config()), passes.built(tensors, body), rtol=1e-5)
    plan = build_plan(passes.function(module)).plan
    assert [type(step) for step in plan.steps] == [KernelStep, DotStep]
    (temporary,) = (buffer for buffer in plan.buffers if buffer.role == "temporary")
    assert temporary.tensor.shape == (2, 3, 4, 5) and temporary.layout.strides == (60, 5, 15, 1)


def test_others_read_row_major_values(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        y = b.exp(x)
        return [b.dot(b.reshape(b.permute(y, dims=(1, 0, 2)), shape=(6, 4)), w), b.dot(b.reshape(y, shape=(6, 4)), w)]

    made = steps(passes, {"x": Tensor(f32, (2, 3, 4)), "w": Tensor(f32, (4, 5))}, body, rtol=1e-5)
    assert [type(step) for step in made].count(KernelStep) == 2


def test_the_rotation_of_halves_is_one_kernel(passes: Any) -> None:
    def body(b: Any, x: Any, cos: Any, sin: Any) -> Any:
        low, high = (b.slice(x, starts=(0, 0, n), shape=(3, 4, 4), steps=(1, 1, 1)) for n in (0, 4))
        return b.add(b.mul(x, cos), b.mul(b.concat(b.neg(high), low, dim=2), sin))

    made = steps(passes, {"x": Tensor(f32, (3, 4, 8)), "cos": Tensor(f32, (4, 8)), "sin": Tensor(f32, (4, 8))}, body)
    assert [type(step) for step in made] == [KernelStep]


def test_all_pieces_of_a_concatenation_are_computed_where_they_lie_in_it(passes: Any) -> None:
    tensors = {"x": Tensor(f32, (3, 4)), "y": Tensor(f32, (3, 5)), "z": Tensor(f32, (2, 9))}

    def body(b: Any, x: Any, y: Any, z: Any) -> Any:
        return b.concat(b.sin(z), b.concat(x, y, dim=1), dim=0)

    plan = build_plan(passes.function(passes.apply(cpu_passes(Config()), passes.built(tensors, body)))).plan
    assert len(plan.steps) == 2 and not [each for each in plan.buffers if each.role == "temporary"]


def test_pieces_are_computed_once_where_something_follows_their_concatenation(passes: Any) -> None:
    def body(b: Any, x: Any, y: Any) -> Any:
        return b.tanh(b.concat(b.exp(x), b.sin(y), dim=0))

    assert len(steps(passes, {"x": Tensor(f32, (3, 4)), "y": Tensor(f32, (2, 4))}, body)) == 2


def test_a_piece_that_others_read_is_not_computed_again(passes: Any) -> None:
    def body(b: Any, x: Any, y: Any) -> Any:
        first, second = b.exp(x), b.exp(y)
        return [b.concat(first, second, dim=0), second]

    made = steps(passes, {"x": Tensor(f32, (3, 4)), "y": Tensor(f32, (2, 4))}, body)
    assert len(made) == 3


def test_a_value_that_a_product_reads_in_two_ways(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        y = b.exp(x)
        turned = b.reshape(b.permute(y, dims=(1, 0, 2)), shape=(4, 6))
        return b.dot(b.reshape(y, shape=(6, 4)), turned)

    made = steps(passes, {"x": Tensor(f32, (2, 3, 4))}, body, rtol=1e-5)
    assert [type(step) for step in made].count(DotStep) == 1


def test_floats_that_are_widened_for_sums_are_read_narrow_behind_a_product(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any, r: Any) -> Any:
        y = b.add(b.dot(x, w), r)
        wide = b.cast(y, dtype=f32)
        return [y, b.sub(wide, b.sum(wide, dims=(1,), keep=True))]

    tensors = {"x": Tensor(bf16, (4, 8)), "w": Tensor(bf16, (8, 6)), "r": Tensor(bf16, (4, 6))}
    module = passes.apply(GroupIntoKernels(), passes.built(tensors, body), rtol=0.05)
    product, sums = [op for op in passes.function(module).block.ops if isinstance(op, GroupOp)]
    assert len(product.results) == 1 and sums.operands[0] is product.results[0]


def test_rows_that_are_read_as_columns_are_there_before(passes: Any) -> None:
    """Of as many rows as columns their sums have the shape of either; both kernels read what is summed up."""

    def body(b: Any, x: Any) -> Any:
        made = b.abs(x)
        sums = b.sum(made, dims=(1,), keep=False)
        across = b.sub(b.broadcast(b.reshape(sums, shape=(1, 8)), shape=(8, 8)), made)
        return b.sum(b.add(made, b.exp(across)), dims=(1,), keep=False)

    assert len(steps(passes, {"x": Tensor(f32, (8, 8))}, body)) == 2


def test_what_could_run_early_does_not_overtake(passes: Any) -> None:
    """The first product waits for a kernel whose last op stands behind the second: both come before that, as they
    stood."""

    def body(b: Any, x: Any, y: Any, w: Any) -> Any:
        made = b.exp(x)
        first, second = b.dot(made, w), b.dot(y, w)
        return [first, second, b.neg(made)]

    tensors = {"x": Tensor(f32, (4, 8)), "y": Tensor(f32, (4, 8)), "w": Tensor(f32, (8, 6))}
    module = passes.apply(GroupIntoKernels(), passes.built(tensors, body))
    function = passes.function(module)
    groups = [op for op in function.block.ops if isinstance(op, GroupOp)]
    assert [op.operands[0] for op in groups][1:] == [groups[0].results[0], function.block.args[1]]
