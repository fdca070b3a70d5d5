"""Kernels in Triton's language that a graph launches."""

from __future__ import annotations

from typing import Any

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder


@aten("weft.triton_launch")
def triton_launch(b: ImportBuilder, *args: Any) -> Any:
    # Whoever has launched a kernel has loaded the language.
    from weft.frontends.triton.torch.graph import convert_launch

    return convert_launch(b, *args)
