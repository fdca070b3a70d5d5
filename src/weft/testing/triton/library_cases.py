"""Kernels of flash-linear-attention and Liger that `weft bench libraries` measures: twenty, in the sizes of models.

Each case is built from the library's own functions, forward and backward, and imports the library when it is built:
by then `triton` is whoever is measured. Cases with few configs to tune come first.
"""

# The libraries are not installed where types are checked.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

Forward: TypeAlias = Callable[[], Tensor]
FLA, LIGER = "fla", "liger_kernel"


@dataclass
class Draw:
    """Makes the tensors of a case, the same for whoever runs it, and knows those whose gradients are asked for."""

    device: str
    shrink: int = 1
    """By what rows and lengths are divided, for a rehearsal."""
    dtype: torch.dtype = torch.bfloat16
    """Of what has no type of its own."""
    leaves: list[Tensor] = field(default_factory=list[Tensor])

    def __post_init__(self) -> None:
        self._random = torch.Generator().manual_seed(0)

    def rows(self, count: int) -> int:
        return max(count // self.shrink, 64)

    def normal(self, *sizes: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        """A leaf of normal numbers."""
        return self.leaf(scale * torch.randn(sizes, generator=self._random), dtype)

    def leaf(self, values: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        made = values.to(self.device, dtype or self.dtype).requires_grad_()
        self.leaves.append(made)
        return made

    def fixed(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers without a gradient."""
        return torch.randn(sizes, generator=self._random).to(self.device, dtype)

    def like(self, tensor: Tensor) -> Tensor:
        """What a result's gradient could be; one that is the same everywhere hides much, as of a softmax."""
        return self.fixed(*tensor.shape, dtype=tensor.dtype)

    def classes(self, rows: int, count: int) -> Tensor:
        return torch.randint(0, count, (rows,), generator=self._random).to(self.device)

    def heads(self, sizes: tuple[int, int, int, int], count: int = 3) -> list[Tensor]:
        """Queries, keys and values: batch, length, heads, features."""
        return [self.normal(*sizes, scale=0.5) for _ in range(count)]

    def gates(self, *sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Logarithms of gates: negative."""
        drawn = torch.randn(sizes, generator=self._random)
        return self.leaf(torch.nn.functional.logsigmoid(drawn), dtype)


@dataclass(frozen=True)
class LibraryCase:
    """One function of a library; `build` makes its arguments, and gives what calls it with them."""

    name: str
    library: str
    build: Callable[[Draw], Forward]


def _liger(draw: Draw) -> Any:
    return importlib.import_module("liger_kernel.transformers.functional")


def _liger_rms_norm(draw: Draw) -> Forward:
    x, weight, f = draw.normal(draw.rows(8192), 4096), draw.normal(4096), _liger(draw)
    return lambda: f.liger_rms_norm(x, weight, 1e-6, 0.0, "llama", False)


def _liger_fused_add_rms_norm(draw: Draw) -> Forward:
    x, residual = draw.normal(draw.rows(8192), 4096), draw.normal(draw.rows(8192), 4096)
    weight, f = draw.normal(4096), _liger(draw)
    return lambda: f.liger_fused_add_rms_norm(x, residual, weight, 1e-6, 0.0, "llama", False)[0]


def _liger_layer_norm(draw: Draw) -> Forward:
    x, weight, bias, f = draw.normal(draw.rows(8192), 4096), draw.normal(4096), draw.normal(4096), _liger(draw)
    return lambda: f.liger_layer_norm(x, weight, bias, 1e-6)


def _liger_group_norm(draw: Draw) -> Forward:
    x = draw.normal(draw.rows(64) // 4, 256, 4096, dtype=torch.float32)
    weight, bias = draw.normal(256, dtype=torch.float32), draw.normal(256, dtype=torch.float32)
    f = _liger(draw)
    return lambda: f.liger_group_norm(x, weight, bias, 256, 32, 1e-6)


def _liger_of_two(name: str) -> Callable[[Draw], Forward]:
    def build(draw: Draw) -> Forward:
        a, b, f = draw.normal(draw.rows(8192), 8192), draw.normal(draw.rows(8192), 8192), _liger(draw)
        return lambda: getattr(f, name)(a, b)

    return build


def _liger_relu_squared(draw: Draw) -> Forward:
    x, f = draw.normal(draw.rows(8192), 8192), _liger(draw)
    return lambda: f.liger_relu_squared(x)


def _liger_dyt(draw: Draw) -> Forward:
    x, f = draw.normal(draw.rows(8192), 4096), _liger(draw)
    alpha, gamma, beta = draw.normal(1), draw.normal(4096), draw.normal(4096)
    return lambda: f.liger_dyt(x, alpha, gamma, beta)


def _liger_poly_norm(draw: Draw) -> Forward:
    x, weight, bias, f = draw.normal(draw.rows(8192), 4096), draw.normal(3), draw.normal(), _liger(draw)
    return lambda: f.liger_poly_norm(x, weight, bias, 1e-6, False)


def _liger_softmax(draw: Draw) -> Forward:
    x, f = draw.normal(draw.rows(8192), 4096), _liger(draw)
    return lambda: f.liger_softmax(x)


def _liger_rope(draw: Draw) -> Forward:
    length = draw.rows(4096)
    q, k = draw.normal(2, 32, length, 128), draw.normal(2, 8, length, 128)
    angles, f = draw.fixed(1, length, 128), _liger(draw)
    cosine, sine = angles.cos(), angles.sin()
    return lambda: f.liger_rope(q, k, cosine, sine)[0]


def _liger_cross_entropy(draw: Draw) -> Forward:
    rows = draw.rows(4096)
    x, classes, f = draw.normal(rows, 32000), draw.classes(rows, 32000), _liger(draw)
    return lambda: f.liger_cross_entropy(x, classes)


def _liger_divergence(name: str) -> Callable[[Draw], Forward]:
    def build(draw: Draw) -> Forward:
        rows, f = draw.rows(4096), _liger(draw)
        x = draw.leaf(draw.fixed(rows, 8192).log_softmax(-1), torch.float32)
        target = draw.fixed(rows, 8192)
        target = target.log_softmax(-1) if name == "liger_jsd" else target.softmax(-1)
        return lambda: getattr(f, name)(x, target)

    return build


def _fla_l2_norm(draw: Draw) -> Forward:
    x, norm = draw.normal(2, draw.rows(8192), 16, 128), importlib.import_module("fla.modules.l2norm").l2norm
    return lambda: norm(x)


def _fla(module: str, function: str, gate: str = "", **more: Any) -> Callable[[Draw], Forward]:
    """A function of queries, keys and values; with gates a head (`head`) or a feature (`feature`)."""

    def build(draw: Draw) -> Forward:
        sizes = 4, draw.rows(2048), 8, 128
        arguments: list[Any] = draw.heads(sizes)
        if gate:
            arguments.append(draw.gates(*(sizes if gate == "feature" else sizes[:3])))
        call = getattr(importlib.import_module(f"fla.ops.{module}"), function)

        def forward() -> Tensor:
            result: Any = call(*arguments, **more)
            return result[0] if isinstance(result, tuple) else result

        return forward

    return build


def _fla_gated_delta_rule(draw: Draw) -> Forward:
    sizes = 4, draw.rows(2048), 8, 128
    q, k, v = draw.heads(sizes)
    gates, beta = draw.gates(*sizes[:3]), draw.leaf(draw.fixed(*sizes[:3]).sigmoid(), torch.float32)
    call = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    return lambda: call(q, k, v, gates, beta, use_qk_l2norm_in_kernel=True)[0]


CASES = (
    LibraryCase("liger relu_squared", LIGER, _liger_relu_squared),
    LibraryCase("liger rms_norm", LIGER, _liger_rms_norm),
    LibraryCase("liger fused_add_rms_norm", LIGER, _liger_fused_add_rms_norm),
    LibraryCase("liger layer_norm", LIGER, _liger_layer_norm),
    LibraryCase("liger group_norm", LIGER, _liger_group_norm),
    LibraryCase("liger swiglu", LIGER, _liger_of_two("liger_swiglu")),
    LibraryCase("liger geglu", LIGER, _liger_of_two("liger_geglu")),
    LibraryCase("liger dyt", LIGER, _liger_dyt),
    LibraryCase("liger poly_norm", LIGER, _liger_poly_norm),
    LibraryCase("liger softmax", LIGER, _liger_softmax),
    LibraryCase("liger rope", LIGER, _liger_rope),
    LibraryCase("liger cross_entropy", LIGER, _liger_cross_entropy),
    LibraryCase("liger kl_div", LIGER, _liger_divergence("liger_kl_div")),
    LibraryCase("liger jsd", LIGER, _liger_divergence("liger_jsd")),
    LibraryCase("fla parallel_attn", FLA, _fla("attn", "parallel_attn")),
    LibraryCase("fla fused_recurrent_gla", FLA, _fla("gla", "fused_recurrent_gla", "feature")),
    LibraryCase("fla l2norm", FLA, _fla_l2_norm),
    LibraryCase("fla chunk_gated_delta_rule", FLA, _fla_gated_delta_rule),
    LibraryCase("fla chunk_simple_gla", FLA, _fla("simple_gla", "chunk_simple_gla", "head")),
    LibraryCase("fla chunk_retention", FLA, _fla("retention", "chunk_retention")),
)


def case_named(name: str) -> LibraryCase:
    return next(case for case in CASES if case.name == name)
