"""`hoist_constants`: what is the same in every call is computed once."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from xdsl.context import Context

from tests.seeds import generator
from weft.backends.nvidia.target import target_named
from weft.backends.reference.graph import run
from weft.config import Config
from weft.ir.attributes import from_attribute, to_attribute
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, i64, tensor_of
from weft.ops.dialect import parse_module
from weft.ops.graph import FuncOp, OpaqueOp
from weft.passes.hoist_constants import HoistConstants
from weft.passes.simplify.eliminate_dead import EliminateDead
from weft.pipelines import compile_nvidia
from weft.runtime.constants import as_program

X, W = Tensor(f32, (3, 4)), Tensor(f32, (4, 2))


def hoisted(passes: Any, module: Any) -> tuple[FuncOp, FuncOp | None]:
    """The program and what prepares it; both together compute what the program did."""
    before = passes.function(module.clone())
    for each in (HoistConstants(), EliminateDead()):
        each.apply(Context(), module)
    module.verify()
    main, *others = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    if not others:
        return main, None
    (prepare,) = others
    rng = generator()
    tensors = [tensor_of(value.type) for value in before.block.args]
    arguments = [rng.standard_normal([*map(int, t.shape)]).astype(t.dtype.numpy) for t in tensors]
    places: Any = from_attribute(before.attributes["constants"]) if "constants" in before.attributes else ()
    made = run(prepare, [arguments[place] for place in places])
    for wanted, found in zip(run(before, arguments), run(main, [*arguments, *made]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return main, prepare


def names(function: FuncOp | None) -> list[str]:
    assert function is not None
    return [op.name.removeprefix("graph.") for op in function.block.ops]


def test_as_text(passes: Any) -> None:
    module = parse_module("""
        "graph.func"() ({
        ^bb0(%x: tensor<3x4xf32>, %w: tensor<4x2xf32>, %s: tensor<2xf32>):
          %0 = "graph.mul"(%w, %s) : (tensor<4x2xf32>, tensor<2xf32>) -> tensor<4x2xf32>
          %1 = "graph.dot"(%x, %0) : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
          "graph.return"(%1) : (tensor<3x2xf32>) -> ()
        }) {sym_name = "f", constants = [1, 2]} : () -> ()
        """)
    hoisted(passes, module)
    expected = parse_module("""
        "graph.func"() ({
        ^bb0(%x: tensor<3x4xf32>, %w: tensor<4x2xf32>, %s: tensor<2xf32>, %c: tensor<4x2xf32>):
          %0 = "graph.dot"(%x, %c) : (tensor<3x4xf32>, tensor<4x2xf32>) -> tensor<3x2xf32>
          "graph.return"(%0) : (tensor<3x2xf32>) -> ()
        }) {sym_name = "f", constants = [1, 2, 3]} : () -> ()
        "graph.func"() ({
        ^bb0(%w: tensor<4x2xf32>, %s: tensor<2xf32>):
          %0 = "graph.mul"(%w, %s) : (tensor<4x2xf32>, tensor<2xf32>) -> tensor<4x2xf32>
          "graph.return"(%0) : (tensor<4x2xf32>) -> ()
        }) {sym_name = "f_prepare", arg_names = ["constant0", "constant1"], prepares = "f"} : () -> ()
        """)
    assert module.is_structurally_equivalent(expected), str(module)


def frozen(passes: Any, arguments: dict[str, Tensor], body: Any, *constants: str) -> Any:
    module = passes.built(arguments, body)
    places = tuple(place for place, name in enumerate(arguments) if name in constants)
    passes.function(module).attributes["constants"] = to_attribute(places)
    return module


def test_views_of_weights_stay(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        return b.dot(x, b.permute(w, dims=(1, 0)))

    main, prepare = hoisted(passes, frozen(passes, {"x": X, "w": Tensor(f32, (2, 4))}, body, "w"))
    assert prepare is None and names(main) == ["permute", "dot", "return"]


def test_views_of_hoisted_values_stay_below_them(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        return b.dot(x, b.permute(b.exp(w), dims=(1, 0)))

    main, prepare = hoisted(passes, frozen(passes, {"x": X, "w": Tensor(f32, (2, 4))}, body, "w"))
    assert names(main) == ["permute", "dot", "return"] and names(prepare) == ["exp", "return"]


def test_cheap_constants_stay(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        row, column = b.iota(shape=(3, 1), dim=0, dtype=i64), b.iota(shape=(1, 4), dim=1, dtype=i64)
        return b.where(b.ge(row, column), x, b.full_like(x, 0))

    main, prepare = hoisted(passes, passes.built({"x": X}, body))
    assert prepare is None and "ge" in names(main)


def test_dear_constants_go(passes: Any) -> None:
    def body(b: Any, x: Any) -> Any:
        place = b.iota(shape=(3, 4), dim=1, dtype=f32)
        return b.mul(x, b.cumsum(b.sin(place), dim=1))

    main, prepare = hoisted(passes, passes.built({"x": X}, body))
    assert names(main) == ["mul", "return"] and names(prepare) == ["iota", "sin", "cumsum", "return"]


def test_what_would_grow_stays(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        wide = b.add(b.broadcast(w, shape=(2048, 2048)), b.full_like(x, 1))
        return b.dot(b.broadcast(b.sum(x, dims=(0, 1), keep=True), shape=(1, 2048)), wide)

    arguments = {"x": X, "w": Tensor(f32, (1, 1))}
    main, prepare = hoisted(passes, frozen(passes, arguments, body, "w"))
    assert prepare is None and "add" in names(main)


def test_symbolic_sizes_stay(passes: Any) -> None:
    s0 = symbol("s0")

    def body(b: Any, x: Any) -> Any:
        return b.mul(x, b.sin(b.iota(shape=(s0,), dim=0, dtype=f32)))

    module = passes.built({"x": Tensor(f32, (s0,))}, body)
    HoistConstants().apply(Context(), module)
    assert len(list(module.body.block.ops)) == 1


def test_weights_of_calls_get_the_strides_they_are_wanted_in(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        call = json.dumps({"args": ["#0", "#1"], "strides": {"1": ["1", "4"]}})
        return b.insert(OpaqueOp.make("demo::f", [x, b.exp(w)], call, [X])).results[0]

    module = frozen(passes, {"x": X, "w": W}, body, "w")
    HoistConstants().apply(Context(), module)
    main, prepare = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    assert from_attribute(main.attributes["arg_strides"]) == (None, None, (1, 4))
    assert from_attribute(prepare.attributes["result_strides"]) == ((1, 4),)


def test_what_prepares_a_program_is_compiled_as_it_is() -> None:
    """Its own constants would need another program to prepare them, and so on."""
    module = parse_module("""
        "graph.func"() ({
        ^bb0(%x: tensor<64xf32>):
          %0 = "graph.iota"() {shape = [64], dim = 0, dtype = f32, start = 0, step = 1} : () -> tensor<64xf32>
          %1 = "graph.sin"(%0) : (tensor<64xf32>) -> tensor<64xf32>
          %2 = "graph.mul"(%x, %1) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
          "graph.return"(%2) : (tensor<64xf32>) -> ()
        }) {sym_name = "f"} : () -> ()
        """)
    (function,) = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    target = target_named("sm_90a")
    prepare = compile_nvidia(function, Config(cache=False), target).prepare
    assert prepare is not None
    made = compile_nvidia(as_program(prepare), Config(cache=False), target)
    assert made.prepare is None and len(made.plan.steps) == 1


def test_what_is_made_of_much_stays_however_little_it_is(passes: Any) -> None:
    """Making it would take more memory than the program does."""

    def body(b: Any, x: Any) -> Any:
        return b.mul(x, b.sum(b.sin(b.iota(shape=(1 << 25,), dim=0, dtype=f32)), dims=(0,), keep=False))

    assert hoisted_alone(passes.built({"x": X}, body)) is None


def test_what_is_made_of_weights_and_is_much_larger_than_they_are_stays(passes: Any) -> None:
    def body(b: Any, x: Any, w: Any) -> Any:
        line = b.iota(shape=(1 << 19, 1, 1), dim=0, dtype=f32)
        return b.mul(x, b.sum(b.exp(b.mul(line, w)), dims=(0, 1, 2), keep=False))

    assert hoisted_alone(frozen(passes, {"x": X, "w": W}, body, "w")) is None


def hoisted_alone(module: Any) -> FuncOp | None:
    """What prepares a program, which is too much to be run here."""
    HoistConstants().apply(Context(), module)
    _, *others = (op for op in module.body.block.ops if isinstance(op, FuncOp))
    return others[0] if others else None
