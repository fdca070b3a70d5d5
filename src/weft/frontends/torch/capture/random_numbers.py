"""Random numbers: drawn by torch, or made by kernels themselves, as an operator of torch: `weft::uniform(seed, size)`.

A GPU's kernel that reads a mask from memory moves more bytes than one that makes its own. Seeds are drawn by torch's
generator in every call, so that `torch.manual_seed` decides and captured graphs go on from replay to replay; all of a
graph at once, see `draw_seeds_once`. Which numbers eager draws depends on its kernels' threads: few are still drawn by
these, see `dropout_by_counter`.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.capture.checkpoint_marks import without_marks
from weft.ops.random import Uniform

_MANY = 1 << 20
"""Elements from which on dropout makes its own numbers."""
_library = torch.library.Library("weft", "FRAGMENT")
SEEDS = "weft::seeds"
"""The operator by which torch's generator draws the seeds of numbers that kernels make themselves."""
_INT64 = torch.iinfo(torch.int64)
_library.define("seed(Device device) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("seeds(int count, Device device) -> Tensor[]", tags=(torch.Tag.nondeterministic_seeded,))


def drawn_seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    """Seeds that lie beside each other, aligned to 16 bytes as kernels take them."""
    return list(torch.randint(_INT64.min, _INT64.max, (count, 2), dtype=torch.int64, device=device)[:, :1].unbind())


def _fake_seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.empty((1,), dtype=torch.int64, device=device) for _ in range(count)]


def _fake_seed(device: torch.device) -> torch.Tensor:
    return _fake_seeds(1, device)[0]


def _seeds(count: int, device: torch.device) -> list[torch.Tensor]:
    # What an operator gives may not share memory.
    return [seed.clone() for seed in drawn_seeds(count, device)]


def _seed(device: torch.device) -> torch.Tensor:
    return _seeds(1, device)[0]


_library.impl("seed", _seed, "CompositeExplicitAutograd")
_library.impl("seeds", _seeds, "CompositeExplicitAutograd")
torch.library.register_fake("weft::seed", _fake_seed)
torch.library.register_fake(SEEDS, _fake_seeds)
_library.define("uniform(Tensor seed, SymInt[] size) -> Tensor")


def _uniform(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(Uniform.reference(seed.cpu().numpy(), tuple(size))).to(seed.device)


def _fake(seed: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return seed.new_empty(size, dtype=torch.float32)


_library.impl("uniform", _uniform, "CompositeExplicitAutograd")
torch.library.register_fake("weft::uniform", _fake)
_library.define("probabilities(Tensor x) -> Tensor")


def _probabilities(x: torch.Tensor) -> torch.Tensor:
    if not bool(((x.max() < math.inf) & (x.min() >= 0)).item()):
        raise RuntimeError("probabilities are negative, infinite or not numbers")
    if bool((x.sum(-1) == 0).any().item()):
        raise RuntimeError("probabilities sum up to 0")
    return x.clone()


_library.impl("probabilities", _probabilities, "CompositeExplicitAutograd")
torch.library.register_fake("weft::probabilities", torch.empty_like)


def multinomial(x: torch.Tensor, num_samples: int, replacement: bool = False, generator: Any = None) -> Any:
    """Choices without replacement, from the same exponential numbers as eager's."""
    count: Any = num_samples
    operators: Any = torch.ops
    if not isinstance(count, int) or count < 1:
        return NotImplemented
    if (replacement and count != 1) or generator is not None or x.numel() == 0:
        return NotImplemented
    chances = operators.weft.probabilities(x) / operators.aten.exponential.default(torch.empty_like(x))
    return chances.argmax(-1, keepdim=True) if count == 1 else chances.topk(count)[1]


def dropout_by_counter(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """Dropout of many elements on a GPU; that of few stays the call that it is."""
    count: Any = x.numel()  # or a symbol
    if train is False or p in (0, 1) or not isinstance(count, int) or count < _MANY or not x.is_floating_point():
        return NotImplemented
    operators: Any = torch.ops
    mask = operators.weft.uniform(operators.weft.seed(x.device), x.shape) < 1.0 - p
    wide = x if x.dtype == torch.float64 else x.float()
    return torch.where(mask, wide * (1.0 / (1.0 - p)), 0.0).to(x.dtype), mask


def draw_seeds_once(module: fx.GraphModule) -> None:
    """Let torch's generator draw the seeds of a graph, and those of each of its branches and loops, in one call for
    each device.

        %a = weft.seed cuda             %s = weft.seeds 2, cuda
        …                          →    %a = %s[0]
        %b = weft.seed cuda             …
                                        %b = %s[1]

    Every call stands between kernels that could otherwise be launched together. What was drawn is kept for the
    backward, so that it makes the same numbers again.
    """
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _draw_once(part)


def _draw_once(module: fx.GraphModule) -> None:
    graph = module.graph
    drawn: dict[torch.device, list[fx.Node]] = {}
    for node in graph.find_nodes(op="call_function", target=torch.ops.weft.seed.default):
        drawn.setdefault(node.meta["val"].device, []).append(node)
    for device, nodes in drawn.items():
        first: Any = nodes[0]
        with graph.inserting_before(first):
            seeds = graph.call_function(torch.ops.weft.seeds.default, (len(nodes), device))
            taken = [graph.call_function(operator.getitem, (seeds, number)) for number in range(len(nodes))]
        kept = without_marks(first.meta)  # what a checkpoint computes again needs the same seeds
        seeds.meta = {**kept, "val": [node.meta["val"] for node in nodes]}
        for node, seed in zip(nodes, taken, strict=True):
            seed.meta = {**kept, "val": node.meta["val"]}
            node.replace_all_uses_with(seed)
            graph.erase_node(node)
    if drawn:
        module.recompile()
