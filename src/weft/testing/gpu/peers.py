"""The peers of the GPU benchmark: eager with its libraries, and Inductor in its modes."""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from weft.testing.bench.benchmark import EAGER, INDUCTOR, Contender
from weft.testing.gpu.case import Place

REDUCE_OVERHEAD = f"{INDUCTOR} reduce-overhead"
MAX_AUTOTUNE = f"{INDUCTOR} max-autotune"
_LAUNCHED = {INDUCTOR: None, MAX_AUTOTUNE: "max-autotune-no-cudagraphs"}
_IN_GRAPHS = {REDUCE_OVERHEAD: "reduce-overhead", MAX_AUTOTUNE: "max-autotune"}

CUBLAS, CUDNN, FLASH, FLEX = "cublas", "cudnn", "flash2", "flex"


def eager(name: str = EAGER) -> Contender:
    """The function as it is: torch and the libraries behind it, under the name of the one that does the work."""
    return Contender(name, lambda function: function)


def inductors(place: Place, *, graphs: bool = False) -> list[Contender]:
    """Inductor as it comes and with its search for kernels; with `graphs`, both in CUDA graphs.

    A rehearsal goes without: on a CPU they would compile C++ for minutes.
    """
    if place.device.name == "cpu":
        return []
    return [Contender(name, _inductor(mode)) for name, mode in (_IN_GRAPHS if graphs else _LAUNCHED).items()]


def _inductor(mode: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda function: torch.compile(function, backend="inductor", mode=mode)


def attention_by(name: str, backend: SDPBackend) -> Contender:
    """`scaled_dot_product_attention` carried out by one library alone, forward and backward."""

    def compile(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with sdpa_kernel(backend):
                return function(*arguments)

        return call

    return Contender(name, compile)


def attention_libraries(place: Place) -> list[Contender]:
    """cuDNN's attention and FlashAttention 2; on a CPU whatever torch has."""
    if place.device.name == "cpu":
        return [eager(CUDNN)]
    return [attention_by(CUDNN, SDPBackend.CUDNN_ATTENTION), attention_by(FLASH, SDPBackend.FLASH_ATTENTION)]
