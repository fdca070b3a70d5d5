"""`repeated_blocks`: the layers of a model, found again in its program."""

from __future__ import annotations

from typing import Any

import pytest
from xdsl.context import Context

from weft.config import Config
from weft.ir.types import Tensor, f32
from weft.ops import composites
from weft.passes.find_repeated_blocks import Block, repeated_blocks
from weft.pipelines import cpu_passes

X = Tensor(f32, (6, 8))


def layer(b: Any, x: Any, w: Any, scale: Any) -> Any:
    normal = composites.rms_norm(b, x, scale, (1,), 1e-5)[0]
    return b.add(x, b.dot(normal, w))


def network(passes: Any, layers: int, *, widths: tuple[int, ...] = ()) -> list[Block]:
    arguments = {"x": X}
    for n in range(layers):
        arguments |= {f"w{n}": Tensor(f32, (8, 8)), f"s{n}": Tensor(f32, (8,))}
    for n, width in enumerate(widths):
        arguments[f"v{n}"] = Tensor(f32, (8, width))

    def body(b: Any, x: Any, *weights: Any) -> Any:
        for n in range(layers):
            x = layer(b, x, *weights[2 * n : 2 * n + 2])
        return [x, *(b.exp(b.dot(x, v)) for v in weights[2 * layers :])]

    module = passes.built(arguments, body)
    for each in cpu_passes(Config()):
        each.apply(Context(), module)
    return repeated_blocks(passes.function(module))


def test_layers_are_found(passes: Any) -> None:
    (block,) = network(passes, 6)
    # The sum of a layer and the norm of the next are one kernel, so that the first and the last are not like the rest.
    assert (block.copies, block.length) == (5, 2)
    assert str(block).startswith("5 times") and "dot" in str(block)


def test_what_differs_is_not_repeated(passes: Any) -> None:
    assert network(passes, 1) == []
    (block,) = network(passes, 4, widths=(3, 4, 5))
    assert block.copies == 3


def test_several_blocks(passes: Any) -> None:
    first, second = network(passes, 4, widths=(3, 3, 3))
    assert (first.copies, second.copies) == (3, 3)
    assert second.start >= first.start + first.copies * first.length


@pytest.mark.parametrize("shared", [True, False])
def test_copies_read_their_own(passes: Any, shared: bool) -> None:
    """Ops that look alike are no copies of a block if they read from another place."""

    def body(b: Any, x: Any, *weights: Any) -> Any:
        made = [x]
        for n, w in enumerate(weights):
            source = made[0] if shared else made[-1] if n % 2 else made[0]
            made.append(b.exp(b.dot(source, w)))
        return made[1:]

    module = passes.built({"x": X, **{f"w{n}": Tensor(f32, (8, 8)) for n in range(4)}}, body)
    for each in cpu_passes(Config()):
        each.apply(Context(), module)
    (block,) = repeated_blocks(passes.function(module))
    assert (block.copies, block.length) == ((4, 2) if shared else (2, 4))
