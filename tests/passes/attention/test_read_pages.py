"""Pages of keys that only attention reads are no copy; what a kernel cannot read page by page is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.importer.import_graph import import_graph
from weft.pipelines import compile_nvidia

_aten: Any = torch.ops.aten


def steps(
    page: int, count: int, *, of_values: int = 0, shifted: int | None = None, turned: str = "", read_twice: bool = False
) -> list[str]:
    """The kernels of single queries over pages, as torch gives it to cuDNN.

    Pages of values may have a size of their own, heads may be `shifted` parts of wider ones, and the slots of pages of
    keys may lie side by side: in memory `turned` in the graph, or as they are given.
    """

    def attend(query: Any, keys: Any, values: Any, table: Any, others: Any, lengths: Any) -> list[Any]:
        if turned == "in the graph":
            keys = keys.permute(0, 3, 1, 2)
        if shifted is not None:
            keys = keys.narrow(-1, shifted, 128)
        chosen = _aten.index(keys, [table.long()]), _aten.index(values, [others.long()])
        lines = [each.reshape(4, -1, 8, 128).transpose(1, 2) for each in chosen]
        seen = torch.arange(count * page, device=query.device).lt(lengths.unsqueeze(1)).view(4, 1, 1, -1)
        bias = torch.zeros_like(seen, dtype=query.dtype).masked_fill(seen.logical_not(), -65504.0)
        made = _aten._scaled_dot_product_cudnn_attention(query, *lines, bias.expand(4, 32, 1, count * page), False)[0]
        return [made, lines[0] * 2] if read_twice else [made]

    with FakeTensorMode():
        cache = (900, page, 8, 128 if shifted is None else 136)
        if turned:
            cache = (900, 8, 128, page)
        other = of_values or page
        tables = (4, count), (4, count * page // other)
        shapes = (4, 32, 1, 128), cache, (900, other, 8, 128), *tables, (4,)
        dtypes = [torch.bfloat16 if len(shape) == 4 else torch.int32 for shape in shapes]
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        if turned == "as given":
            inputs[1] = inputs[1].permute(0, 3, 1, 2)
        traced = make_fx(attend, decomposition_table=decompositions())(*inputs)
    imported = import_graph(traced, "main", Config(cache=False), capabilities=target_named("sm_90a").capabilities)
    plan = compile_nvidia(imported.function, Config(cache=False), target_named("sm_90a")).plan
    return [getattr(step, "function", "") for step in plan.steps]


@pytest.mark.parametrize(("page", "count"), [(16, 64), (64, 9), (256, 3)])
def test_attention_reads_pages(page: int, count: int) -> None:
    parts, join = steps(page, count)
    assert "attention" in parts and parts.endswith("_parts") and "attention" in join


def test_attention_reads_heads_that_are_parts_of_wider_ones() -> None:
    assert len(steps(16, 64, shifted=8)) == 2


@pytest.mark.parametrize(
    "case",
    [
        {"page": 12, "count": 64},
        {"page": 16, "count": 64, "read_twice": True},
        {"page": 16, "count": 64, "shifted": 4},
        {"page": 16, "count": 64, "turned": "in the graph"},
        {"page": 16, "count": 64, "turned": "as given"},
        {"page": 64, "count": 15, "of_values": 48},
    ],
)
def test_others_are_copied_first(case: Any) -> None:
    names = steps(**case)
    assert any(name.startswith("take") and "attention" not in name for name in names)
    assert any(name.endswith("_parts") for name in names)
