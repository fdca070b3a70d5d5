"""How passes are tested: the text before and after, and that both programs compute the same on NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from tests.seeds import generator
from weft.backends.reference.graph import run
from weft.ir.expr import evaluate
from weft.ir.types import Tensor, boolean, tensor_of
from weft.ops.dialect import parse_module
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp

Body = Callable[..., Any]


def _built(arguments: Mapping[str, Tensor], body: Body) -> ModuleOp:
    function = FuncOp.make("f", arguments)
    b = GraphBuilder(function.block)
    results = body(b, *function.block.args)
    b.insert(ReturnOp.make([results] if isinstance(results, SSAValue) else results))
    module = ModuleOp([function])
    module.verify()
    return module


def _random(tensor: Tensor, sizes: Mapping[str, int], rng: np.random.Generator) -> np.ndarray:
    shape = [evaluate(size, sizes) for size in tensor.shape]
    if tensor.dtype == boolean:
        return rng.integers(0, 2, shape).astype(bool)
    if tensor.dtype.is_float:
        return rng.standard_normal(shape).astype(tensor.dtype.numpy)
    return rng.integers(0, 3, shape).astype(tensor.dtype.numpy)


class Passes:
    """Builds programs, runs passes over them and compares what they compute."""

    def function(self, module: ModuleOp) -> FuncOp:
        function = module.body.block.first_op
        assert isinstance(function, FuncOp)
        return function

    def built(self, arguments: Mapping[str, Tensor], body: Body) -> ModuleOp:
        return _built(arguments, body)

    def apply(
        self, passes: ModulePass | Sequence[ModulePass], module: ModuleOp, *, rtol: float = 0.0, **sizes: int
    ) -> ModuleOp:
        """The module after the passes; what it computes on random inputs may differ by `rtol` of the largest result."""
        before = self.function(module.clone())
        for each in [passes] if isinstance(passes, ModulePass) else passes:
            each.apply(Context(), module)
            module.verify()
        rng = generator()
        tensors = [tensor_of(value.type) for value in before.block.args]
        arguments = [_random(tensor, sizes, rng) for tensor in tensors]
        expected = run(before, arguments, sizes)
        for wanted, found in zip(expected, run(self.function(module), arguments, sizes), strict=True):
            assert wanted.dtype == found.dtype and wanted.shape == found.shape
            if rtol:
                scale = np.max(np.abs(wanted), initial=0.0)
                np.testing.assert_allclose(found, wanted, rtol=rtol, atol=rtol * scale)
            else:
                np.testing.assert_array_equal(found, wanted)
        return module

    def rewrites(
        self,
        passes: ModulePass | Sequence[ModulePass],
        arguments: Mapping[str, Tensor],
        before: Body,
        after: Body,
        *,
        rtol: float = 0.0,
        **sizes: int,
    ) -> None:
        """Assert that the passes turn one program into the other."""
        found = self.apply(passes, _built(arguments, before), rtol=rtol, **sizes)
        assert str(found) == str(_built(arguments, after))

    def rewrites_text(self, passes: ModulePass | Sequence[ModulePass], before: str, after: str, **options: Any) -> None:
        """Assert that the passes turn the one text into the other."""
        assert str(self.apply(passes, parse_module(before), **options)) == str(parse_module(after))


@pytest.fixture
def passes() -> Passes:
    return Passes()
