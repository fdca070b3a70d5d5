"""Random numbers of captured functions: made from a seed that is an argument, so that the function is pure.

The numbers are other ones than eager draws. `torch.manual_seed` decides on them: it decides on the seed of a call.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

import weft.frontends.torch.capture.random_numbers as operators
from weft.errors import UnsupportedError
from weft.frontends.torch.importer.region_seeds import OUTER

_ops: Any = torch.ops.aten
_STEP = 0x9E3779B97F4A7C1
"""Seeds of different calls of one function lie that far apart."""
_BITS = 24
"""Random bits of a number that is drawn."""
_MOST_BY_FLOAT, _MOST_BY_UNIFORM = 1 << 14, 1 << 38
"""Up to how many integers one float is enough for, that none of them is much more likely than another; and a double."""
_FUNCTION, _RULE, _BATCH = 1 << 40, 1 << 39, 1 << 38
"""Functions with rules of their own, and their rules, count what they draw from numbers that lie that far apart."""


@dataclass
class Seed:
    """The seed of a function that is being traced, and how many tensors have been drawn from it."""

    value: torch.Tensor
    draws: int = 0
    argument: fx.Node | None = None
    """Where the graph has it, once it is traced."""
    functions: int = 0
    """How many calls of functions with rules of their own have been traced."""

    def uniform(self, size: Sequence[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Numbers in [0, 1): of 24 random bits, as many as a float has, or of 48."""
        wanted = dtype or torch.get_default_dtype()
        if wanted.is_complex:
            return torch.complex(*(self.uniform(size, wanted.to_real()) for _ in range(2)))
        drawn = self._drawn(size)
        if wanted.itemsize > drawn.dtype.itemsize:
            return drawn.to(wanted) + self._drawn(size).to(wanted) * 2.0**-_BITS
        if wanted.itemsize < drawn.dtype.itemsize:  # rounded to the nearest, some would be 1
            step = torch.finfo(wanted).eps / 2
            drawn = torch.floor(drawn / step) * step
        return drawn if wanted == drawn.dtype else drawn.to(wanted)

    def _drawn(self, size: Sequence[Any]) -> torch.Tensor:
        self.draws += 1
        return torch.ops.weft.uniform(self.value + _wrapped(_STEP * self.draws), list(size))

    def integers(self, size: Sequence[Any], low: int, high: int) -> torch.Tensor:
        """Integers from `low` on, below `high`."""
        count = high - low
        if count <= _MOST_BY_UNIFORM:
            kind = torch.float64 if count > _MOST_BY_FLOAT else torch.float32
            return torch.floor(self.uniform(size, kind).double() * count).to(torch.int64) + low
        blocks = -(-count >> _BITS)
        block = torch.floor(self.uniform(size, torch.float64) * blocks).to(torch.int64)
        place = torch.floor(self._drawn(size) * 2.0**_BITS).to(torch.int64)
        beyond = (block == blocks - 1) & (place >= count - (blocks - 1 << _BITS))
        return (torch.where(beyond, 0, block) << _BITS) + place + low

    def uniform_wide(self, like: torch.Tensor) -> torch.Tensor:
        """Numbers in [0, 1) for functions that lose digits, in no fewer than 32 bits."""
        return self.uniform(like.shape, torch.promote_types(like.dtype, torch.float32))

    def normal(self, size: Sequence[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
        """Numbers of the standard normal distribution, by the transformation of Box and Muller."""
        wanted = dtype or torch.get_default_dtype()
        if wanted.is_complex:  # whose variance is that of both parts together
            return torch.complex(*(self.normal(size, wanted.to_real()) for _ in range(2))) * math.sqrt(0.5)
        wide = torch.promote_types(wanted, torch.float32)
        radius = torch.sqrt(-2 * torch.log1p(-self.uniform(size, wide)))
        return (radius * torch.cos(2 * math.pi * self.uniform(size, wide))).to(wanted)


def _wrapped(number: int) -> int:
    """A number in the range of int64, modulo 2^64."""
    return (number + 2**63) % 2**64 - 2**63


_BY_REJECTION = (
    _ops.poisson.default,
    _ops.binomial.default,
    _ops._standard_gamma.default,
    _ops._sample_dirichlet.default,
)
"""Numbers for which torch draws others until some fit: a seed does not say how many."""


def _refused(*_: Any, **__: Any) -> torch.Tensor:
    raise UnsupportedError(
        "random numbers of a Poisson, binomial, gamma or Dirichlet distribution, which would be others in every call",
        hint="draw them before, and give them to the function as an argument",
    )


def drawing_from(seed: Seed) -> dict[Any, Callable[..., Any]]:
    """Torch's random operators, by numbers of the seed."""

    def uniform(x: torch.Tensor, low: float = 0.0, high: float = 1.0, generator: Any = None) -> torch.Tensor:
        return seed.uniform(x.shape, x.dtype) * (high - low) + low

    def normal(x: torch.Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> torch.Tensor:
        return seed.normal(x.shape, x.dtype) * std + mean

    def bernoulli(x: torch.Tensor, p: Any = None, generator: Any = None) -> torch.Tensor:
        return (seed.uniform(x.shape, torch.float32) < (x if p is None else p)).to(x.dtype)

    def dropout(x: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
        if train is False or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        if p == 1:
            return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
        mask = seed.uniform(x.shape, torch.float32) < 1.0 - p
        return x * mask * (1.0 / (1.0 - p)), mask

    def integers(low: int, high: int, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> torch.Tensor:
        return seed.integers(size, low, high).to(dtype or torch.int64)

    def exponential(x: torch.Tensor, rate: float = 1.0, generator: Any = None) -> torch.Tensor:
        return (torch.log1p(-seed.uniform_wide(x)) * (-1.0 / rate)).to(x.dtype)

    def normal_of(mean: Any, std: Any = 1.0, size: Any = None, dtype: Any = None, **_: Any) -> torch.Tensor:
        if not isinstance(std, torch.Tensor) and std < 0:  # tracing does not tell, as it does of `normal_`
            raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
        given = [each for each in (mean, std) if isinstance(each, torch.Tensor)]
        shape = torch.broadcast_shapes(*(each.shape for each in given)) if size is None else size
        drawn = seed.normal(shape, given[0].dtype if given else dtype)
        return (drawn * std + mean).to(drawn.dtype)

    def cauchy(x: torch.Tensor, median: float = 0.0, sigma: float = 1.0, generator: Any = None) -> torch.Tensor:
        return (torch.tan(math.pi * (seed.uniform_wide(x) - 0.5)) * sigma + median).to(x.dtype)

    def log_normal(x: torch.Tensor, mean: float = 1.0, std: float = 2.0, generator: Any = None) -> torch.Tensor:
        return torch.exp(normal(x, mean, std))

    def geometric(x: torch.Tensor, p: float, generator: Any = None) -> torch.Tensor:
        drawn = torch.log1p(-seed.uniform(x.shape, torch.float32)) / math.log1p(-p)
        return torch.clamp(torch.ceil(drawn), min=1).to(x.dtype)

    def rrelu(
        x: torch.Tensor, noise: torch.Tensor, low: float = 1 / 8, high: float = 1 / 3, training: bool = False, *_: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not training:
            return torch.where(x > 0, x, x * ((low + high) / 2)), noise.clone()
        slopes = torch.where(x > 0, torch.ones_like(x), uniform(x, low, high))
        return x * slopes, slopes

    return {
        **dict.fromkeys(_BY_REJECTION, _refused),
        _ops.rrelu_with_noise_functional.default: rrelu,
        _ops.normal.float_float: normal_of,
        _ops.normal.Tensor_Tensor: normal_of,
        _ops.normal.Tensor_float: normal_of,
        _ops.normal.float_Tensor: normal_of,
        _ops.cauchy.default: cauchy,
        _ops.log_normal.default: log_normal,
        _ops.geometric.default: geometric,
        _ops.rand.default: lambda size, dtype=None, **_: seed.uniform(size, dtype),
        _ops.randn.default: lambda size, dtype=None, **_: seed.normal(size, dtype),
        _ops.rand_like.default: lambda x, dtype=None, **_: seed.uniform(x.shape, dtype or x.dtype),
        _ops.randn_like.default: lambda x, dtype=None, **_: seed.normal(x.shape, dtype or x.dtype),
        _ops.randint.default: lambda high, size, dtype=None, **_: integers(0, high, size, dtype),
        _ops.randint.low: integers,
        _ops.randperm.default: lambda n, dtype=None, **_: torch.argsort(seed.uniform((n,))).to(dtype or torch.int64),
        _ops.uniform.default: uniform,
        _ops.normal_functional.default: normal,
        _ops.bernoulli.default: bernoulli,
        _ops.bernoulli.p: bernoulli,
        _ops.bernoulli.Tensor: bernoulli,
        _ops.exponential.default: exponential,
        _ops.native_dropout.default: dropout,
    }


def read_seed_inside(module: fx.GraphModule, seed: torch.Tensor) -> None:
    """Let the regions of a traced function read its seed, the last argument: torch takes it for a constant there."""
    *_, argument = module.graph.find_nodes(op="placeholder")
    inner = [each for each in module.modules() if isinstance(each, fx.GraphModule) and each is not module]
    for node in (node for each in inner for node in each.graph.find_nodes(op="get_attr")):
        if operator.attrgetter(str(node.target))(node.graph.owning_module) is seed:
            node.meta[OUTER] = argument


def first_draw(number: int, rule: str | None) -> int:
    """Where the draws of a function with rules of its own begin, or of one of its rules: its call has this number."""
    return number * _FUNCTION + (0 if rule is None else _RULE)


def seed_of_batch(number: int) -> int:
    """How far the seed of a batching rule is from that of the function around."""
    return _wrapped(_STEP * (number * _FUNCTION + _BATCH))


def read_seed_around(module: fx.GraphModule, argument: fx.Node | None) -> bool:
    """Let a graph read the seed of the graph around it, where it has drawn one; whether it has."""
    drawn = [
        (inner.graph, node)
        for inner in module.modules()
        if isinstance(inner, fx.GraphModule)
        for node in inner.graph.find_nodes(op="call_function", target=torch.ops.weft.seed.default)
    ]
    used = False
    for graph, node in drawn:
        if node.users:
            used = True
            with graph.inserting_before(node):
                read = graph.create_node("get_attr", "seed")
            read.meta = {**node.meta, OUTER: argument}
            node.replace_all_uses_with(read)
        graph.erase_node(node)
    return used


__all__ = ["Seed", "drawing_from", "first_draw", "operators", "read_seed_around", "read_seed_inside", "seed_of_batch"]
