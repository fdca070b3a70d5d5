"""Argument lists of opaque calls survive being written down."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from xdsl.ir import Block

from weft.frontends.torch.importer.encoding import (
    Decoder,
    Encoder,
    NumberArgument,
    TensorArgument,
    dumps,
    operator_named,
)
from weft.frontends.torch.importer.opaque import OpaqueRuntime, is_pure, make_opaque, target_name
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, tensor_type

BLOCK = Block(arg_types=[tensor_type(Tensor(f32, (2, 3))), tensor_type(Tensor(f32, ()))])


def round_trip(value: Any, operands: tuple[torch.Tensor, ...] = ()) -> Any:
    encoder = Encoder({})
    text = dumps(encoder(value))
    return Decoder(operands, {"s0": 5}, encoder.objects)(json.loads(text))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        2**62,
        1.5,
        math.inf,
        -math.inf,
        1 + 2j,
        complex(math.inf, 0),
        "#0",
        "sum",
        [1, [2.5, None], "x"],
        (1, (2, [3])),
        {"a": [1], 2: (3,)},
        torch.float32,
        torch.bfloat16,
        torch.strided,
        torch.channels_last,
        torch.device("cpu"),
        torch.ops.aten.sum.dim_IntList,
    ],
)
def test_values_come_back(value: Any) -> None:
    back = round_trip(value)
    assert back == value
    assert type(back) is type(value)


def test_nan_comes_back() -> None:
    assert math.isnan(round_trip(math.nan))


def test_sizes_take_the_values_of_a_call() -> None:
    assert round_trip([symbol("s0") * 2 + 1, 4]) == [11, 4]


def test_operands_are_numbered_once_for_each_stride() -> None:
    encoder = Encoder({})
    value = BLOCK.args[0]
    plain, turned = TensorArgument(value), TensorArgument(value, (1, 2))
    assert encoder([plain, turned, plain]) == ["#0", "#1", "#0"]
    assert encoder.strides == {"1": ["1", "2"]}
    assert encoder.operands == [value, value]


def test_a_tensor_may_be_passed_as_a_number() -> None:
    encoder = Encoder({})
    encoded = encoder(NumberArgument(BLOCK.args[1]))
    assert Decoder([torch.tensor(2.5)], {}, {})(encoded) == 2.5


def test_what_has_no_text_is_kept_on_the_side() -> None:
    marker = object()
    encoder = Encoder({})
    encoded = encoder([marker])
    assert encoded == [{"object": "0"}]
    assert Decoder((), {}, encoder.objects)(encoded) == [marker]


@pytest.mark.parametrize(
    "target", [torch.ops.aten.sum.dim_IntList, torch.ops.aten.mm.default, torch.ops.higher_order.cond]
)
def test_operators_are_found_by_name(target: Any) -> None:
    assert operator_named(target_name(target)) is target


def test_purity() -> None:
    assert is_pure(torch.ops.aten.linalg_inv_ex.default)
    assert not is_pure(torch.ops.aten.rand_like.default)
    assert not is_pure(torch.ops.aten.add_.Tensor)
    assert not is_pure(torch.ops.higher_order.cond)


def test_a_call_never_returns_the_memory_of_an_operand() -> None:
    call = make_opaque(
        torch.ops.aten.view.default, [TensorArgument(BLOCK.args[0]), [6]], {}, [Tensor(f32, (6,))], {}, None
    )
    x = torch.arange(6.0).reshape(2, 3)
    (result,) = OpaqueRuntime({}).call(call.target.data, call.arguments.data, [x], {})
    x.zero_()
    assert result.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_call_sees_its_operands_in_the_strides_of_eager() -> None:
    call = make_opaque(
        torch.ops.aten.as_strided.default,
        [TensorArgument(BLOCK.args[0], (1, 2)), [6], [1]],
        {},
        [Tensor(f32, (6,))],
        {},
        None,
    )
    x = torch.arange(6.0).reshape(2, 3)
    (result,) = OpaqueRuntime({}).call(call.target.data, call.arguments.data, [x], {})
    assert result.tolist() == [0, 3, 1, 4, 2, 5]
