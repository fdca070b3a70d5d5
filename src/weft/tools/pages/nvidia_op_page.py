"""The page of the ops of GPU kernels, generated from what is registered for them:
`python -m weft.tools.pages.nvidia_op_page docs/nvidia-ops.md`.

Without a file the page goes to stdout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xdsl.ir import Operation

from weft.backends.nvidia.ir.op_costs import Cost
from weft.backends.nvidia.ir.op_interfaces import OpInterface
from weft.backends.nvidia.op_entries import INTERFACES, kernel_ops

_PACKAGE = "weft."
_HEAD = """\
# Ops of GPU kernels

The ops of the `tile` and the `nvidia` dialect that a kernel for an NVIDIA GPU can hold, and the four things that the
backend knows of each: [what to write for a new one](nvidia.md#an-op-of-a-kernel). Paths are below `src/weft`.
This page is generated: `python -m weft.tools.pages.nvidia_op_page docs/nvidia-ops.md`.
"""


def page() -> str:
    """The whole page."""
    titles = ["op", "what it does", "defined in", *INTERFACES]
    rows = [
        [f"`{op.name}`", _meaning(op), _place(op), *(_entry(interface, op) for interface in INTERFACES.values())]
        for op in sorted(kernel_ops(), key=lambda op: op.name)
    ]
    lines = [titles, ["---"] * len(titles), *rows]
    return f"{_HEAD}\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _meaning(op: type[Operation]) -> str:
    """What the docstring of an op begins with, in one line."""
    first = (op.__doc__ or "").strip().split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def _place(op: type[Operation]) -> str:
    return f"`{op.__name__}`, {_path(op.__module__)}"


def _path(module: str) -> str:
    return f"`{module.removeprefix(_PACKAGE).replace('.', '/')}.py`"


def _entry(interface: OpInterface[Any], op: type[Operation]) -> str:
    rule = interface.rules.get(op)
    if rule is None:
        return f"none: {interface.without.get(op) or interface.refused[op]}"
    if isinstance(rule, Cost):
        return _cost(rule)
    return f"`{rule.__name__}`, {_path(rule.__module__)}"


def _cost(cost: Cost) -> str:
    said = [f"a {cost.alone} alone" if cost.alone else "a block"]
    said += ["made again rather than moved"] if cost.made_again else []
    said += ["compiles slowly"] if cost.compiles_slowly else []
    return ", ".join(said)


def main(arguments: Sequence[str]) -> None:
    """Write the page to the file that is named, or to stdout."""
    if arguments:
        Path(arguments[0]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main(sys.argv[1:])
