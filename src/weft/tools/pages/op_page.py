"""The page of all ops, generated from their classes: `python -m weft.tools.pages.op_page docs/ops.md`.

Without a file the page goes to stdout. What it says is what the registry knows: names, parameters, docstrings, rules.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import weft.ops  # pyright: ignore[reportUnusedImport]  # noqa: F401  the registry has to be full
from weft.ops.base import REGISTRY, Elementwise, GraphOp, Movement, OpSpec, Reduction, Scan, Scatter, Structured, View

_KINDS: dict[type[GraphOp], str] = {
    Elementwise: "elementwise",
    View: "view",
    Movement: "movement",
    Reduction: "reduction",
    Scan: "scan",
    Scatter: "scatter",
    Structured: "structured",
}

_HEAD = """\
# Ops

The ops of the `graph` dialect, by the file in `src/weft/ops` that defines them. This page is generated:
`python -m weft.tools.pages.op_page docs/ops.md`.

Operands come first, then parameters, with their types; a parameter with a default may be left out. The **kind** decides
how an op is lowered ([adding an op](adding-an-op.md)); *no gradient* means that the class has no gradient rule. The
names on the right are those of the same op elsewhere; where none is given, there the op is several others or a part of
one. Which ATen operators become graph ops is at the [end of the page](#aten-operators).
"""


def page() -> str:
    """The whole page."""
    families: dict[str, list[OpSpec]] = {}
    for spec in REGISTRY:
        families.setdefault(spec.cls.__module__, []).append(spec)
    sections = [_family(module, specs) for module, specs in sorted(families.items())]
    return "\n".join([_HEAD, *sections, _operators()])


def _family(module: str, specs: Sequence[OpSpec]) -> str:
    title = module.rpartition(".")[2].replace("_", " ").capitalize()
    rows = "\n".join(_row(spec) for spec in specs)
    head = "| op | computes | kind | elsewhere |\n|---|---|---|---|"
    return f"## {title}\n\n{_prose(_text(importlib.import_module(module)))}\n\n{head}\n{rows}\n"


def _row(spec: OpSpec) -> str:
    kind = next(name for cls, name in _KINDS.items() if issubclass(spec.cls, cls))
    kind += "" if hasattr(spec.cls, "vjp") else ", no gradient"
    named = {"ATen": spec.aten, "ONNX": spec.onnx, "StableHLO": spec.stablehlo}
    elsewhere = "; ".join(f"{system} {_codes(names)}" for system, names in named.items() if names)
    return f"| {_code(f'{spec.name}({_parameters(spec)})')} | {_prose(_text(spec.cls))} | {kind} | {elsewhere} |"


def _parameters(spec: OpSpec) -> str:
    """Operands by name; parameters with their types and defaults."""
    reference: Any = getattr(spec.cls, "reference")  # noqa: B009  no attribute that a type checker knows
    signature = inspect.signature(reference).parameters
    parts: list[str] = []
    for name, parameter in signature.items():
        annotation = str(parameter.annotation).strip("'")
        default = "" if parameter.default is inspect.Parameter.empty else f"{parameter.default!r}"
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # a reference that hands them on does not name them
            others = {key: value for key, value in spec.samples[0].params.items() if key not in signature}
            parts += [f"{key}: {type(value).__name__}" for key, value in others.items()]
        elif annotation.startswith("np.ndarray"):
            stars = "*" if parameter.kind is inspect.Parameter.VAR_POSITIONAL else ""
            parts.append(f"{stars}{name}" + (f"={default}" if default else ""))
        else:
            parts.append(f"{name}: {annotation}" + (f" = {default}" if default else ""))
    return ", ".join(parts)


def _operators() -> str:
    """The ATen operators that have converters, with their overloads."""
    from weft.frontends.torch.aten import COMPLEX_CONVERTERS, CONVERTERS

    of_torch = {name: converter for name, converter in CONVERTERS.items() if not name.startswith("weft.")}

    return f"""\
## ATen operators

The {len(of_torch)} overloads that are imported as graph ops, one or a short program of them; where no overload is
given it is `default`. Any other operator is taken apart by torch's decompositions, if all of its parts are here, and
left to torch if not ([fallbacks](architecture.md#claims-and-fallbacks)).

{_overloads(of_torch)}

Those that also take complex tensors, which are imported as real ones with the parts in a last dimension:

{_overloads(COMPLEX_CONVERTERS)}
"""


def _overloads(names: Iterable[str]) -> str:
    """Operators with their overloads, a line a letter."""
    operators: dict[str, list[str]] = {}
    for name in sorted(names):
        operator, _, overload = name.removeprefix("aten.").rpartition(".")
        operators.setdefault(operator, []).append(overload)
    letters: dict[str, list[str]] = {}
    for operator, overloads in sorted(operators.items(), key=lambda item: item[0].strip("_")):
        others = "" if overloads == ["default"] else f" ({', '.join(overloads)})"
        letters.setdefault(operator.strip("_")[0], []).append(f"`{operator}`{others}")
    return "\n".join(f"- {', '.join(texts)}" for texts in letters.values())


def _text(documented: Any) -> str:
    """A docstring as one paragraph."""
    return " ".join((inspect.getdoc(documented) or "").split())


def _code(text: str) -> str:
    return f"`{_cell(text)}`"


def _codes(names: Sequence[str]) -> str:
    return ", ".join(map(_code, names))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _prose(text: str) -> str:
    """Text for a cell: stars that mean powers, outside of code, are no emphasis."""
    parts = _cell(text).split("`")
    return "`".join(part if position % 2 else part.replace("*", "\\*") for position, part in enumerate(parts))


def main(arguments: Sequence[str]) -> None:
    """Write the page to the file that is named, or to stdout."""
    if arguments:
        Path(arguments[0]).write_text(page(), encoding="utf-8")
    else:
        sys.stdout.write(page())


if __name__ == "__main__":
    main(sys.argv[1:])
