"""Which sums of rows by index are kernels of Weft's on a GPU: nothing is asked of sizes that are not known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from weft.frontends.torch.importer.claims import is_own_row_sum

ATEN: Any = torch.ops.aten
ROWS, TABLE = 40_000, 2_000


def claimed(target: Any, *args: Any, result: Any = None) -> bool:
    """Whether a call with these tensors, symbols and others is claimed."""
    graph = fx.Graph()
    given: list[Any] = []
    for number, each in enumerate(args):
        is_node = isinstance(each, torch.Tensor | torch.SymInt)
        given.append(graph.placeholder(f"a{number}") if is_node else each)
        if is_node:
            given[-1].meta["val"] = each
    node = graph.call_function(target, tuple(given))
    node.meta["val"] = result
    return is_own_row_sum(node)


@pytest.fixture
def unknown() -> Any:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        yield env.create_unbacked_symint()
    assert not env.guards


def test_embeddings_of_tables_of_known_and_unknown_sizes(unknown: Any) -> None:
    index, target = torch.empty(ROWS, dtype=torch.int64), ATEN.embedding_dense_backward.default
    grad, table = torch.empty(ROWS, 64), torch.empty(TABLE, 64)
    assert claimed(target, grad, index, TABLE, -1, False, result=table)
    assert not claimed(target, grad, index, TABLE, -1, True, result=table)
    assert not claimed(target, grad, index, unknown, -1, False, result=torch.empty(unknown, 64))
    assert not claimed(target, torch.empty(unknown, 64), torch.empty(unknown), TABLE, -1, False, result=table)


def test_rows_of_known_and_unknown_numbers(unknown: Any) -> None:
    x, index = torch.empty(TABLE, 64), torch.empty(ROWS, 1, dtype=torch.int64).expand(ROWS, 64)
    assert claimed(ATEN.scatter_add.default, x, 0, index, torch.empty(ROWS, 64))
    assert not claimed(ATEN.scatter_add.default, x, 0, index, torch.empty(unknown, 64))
    assert not claimed(ATEN.index_add.default, x, 0, torch.empty(unknown), torch.empty(unknown, 64))
