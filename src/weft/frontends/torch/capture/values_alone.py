"""Singular values and eigenvalues whose vectors nobody reads, asked of LAPACK without them, before a graph is imported.

    %usv = _linalg_svd %a, False, True        →   _linalg_svd %a, False, False
    %s = getitem %usv, 1                          the same
    %lv = _linalg_eigh %a, L, True            →   _linalg_eigh %a, L, False
    %l = getitem %lv, 0                           the same

`svdvals` and `eigvalsh` compute vectors of tensors that stand for others, as tracing has them: torch cannot know that
no gradient will be asked for. Values alone take a third of the time.
"""

# Torch's operators and the nodes of its graphs have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

_svd, _eigh = torch.ops.aten._linalg_svd.default, torch.ops.aten._linalg_eigh.default
_VALUES: dict[Any, int] = {_svd: 1, _eigh: 0}
"""Which of its results are the values."""
_UNSAID: dict[Any, tuple[Any, ...]] = {_svd: (False, True), _eigh: ("L", True)}
"""What the arguments behind the matrix are where they are not given; the second asks for vectors."""


def ask_for_values_alone(module: fx.GraphModule) -> None:
    """Let factorizations leave out the vectors that are not read."""
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in _VALUES:
            continue
        values, unsaid = _VALUES[node.target], _UNSAID[node.target]
        matrix, form, vectors = (*node.args, *unsaid[len(node.args) - 1 :])
        named = {key: value for key, value in node.kwargs.items() if key == "driver"}
        alone = all(user.target is operator.getitem and user.args[1] == values for user in node.users)
        if vectors is True and alone and named == node.kwargs:
            node.args = (matrix, form, False)
            made = enumerate(node.meta["val"])
            node.meta["val"] = tuple(each if place == values else each.new_empty((0,)) for place, each in made)
