"""Nodes in the place of one: how converters say what an operator means by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.frontends.onnx.model import Node

INTERNAL = "weft.stage"
"""The domain of operators that only converters write; files may not use it."""


@dataclass(frozen=True)
class Rewrite:
    """Nodes that a node stands for, in order, and arrays that they read by name."""

    nodes: Sequence[Node]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
