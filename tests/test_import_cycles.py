"""No module of Weft needs itself: imports, also those inside of functions, have no cycle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((SOURCE / "weft").rglob("*.py"))
}
DEFERRED = [
    ("weft.frontends.triton.runtime.jit", "weft.frontends.triton.runtime.launch"),
    ("weft.frontends.triton.runtime.jit", "weft.frontends.triton.compiler.compile_function"),
    ("weft.frontends.triton.runtime.jit", "weft.frontends.triton.torch.bridge"),
    ("weft.frontends.triton.compiler.calls", "weft.frontends.triton.compiler.compile_function"),
    ("weft.frontends.triton.runtime.kernel_handle", "weft.frontends.triton.listings.listing"),
    ("weft.frontends.triton.runtime.device_compiled", "weft.frontends.triton.listings.device_listing"),
    ("weft.frontends.triton.language.element_types", "weft.frontends.triton.language.values"),
    ("weft.frontends.triton.language.types", "weft.frontends.triton.language.values"),
    ("weft.frontends.triton.language.promotion", "weft.frontends.triton.language.casting"),
    ("weft.frontends.triton.target", "weft.frontends.triton.tuning.do_bench"),
    ("weft.frontends.torch.execution.device_timing", "weft.frontends.torch.execution.cuda_executor"),
    ("weft.testing.fuzz.torch_programs", "weft.testing.fuzz.torch_forms"),
    ("weft.testing.fuzz.torch_programs", "weft.testing.fuzz.torch_view_forms"),
]
"""Imports inside of functions that go back: a kernel is launched, compiled and listed by what its own class does not
know when it is defined. Nothing may be added."""


def _imports(path: Path, *, deferred: bool) -> Iterator[str]:
    """What a module imports when it runs; `deferred` ones stand inside of functions."""
    nodes: list[tuple[ast.AST, bool]] = [(ast.parse(path.read_text(encoding="utf-8")), False)]
    while nodes:
        node, inside = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.ImportFrom) and (deferred or not inside):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module or ""
        elif isinstance(node, ast.Import) and (deferred or not inside):
            yield from (alias.name for alias in node.names)
        nodes += [(child, inside) for child in ast.iter_child_nodes(node)]


def _graph(*, deferred: bool) -> dict[str, set[str]]:
    return {
        name: {other for other in _imports(path, deferred=deferred) if other in MODULES and other != name}
        for name, path in MODULES.items()
    }


def _cyclic(graph: dict[str, set[str]]) -> list[str]:
    """The modules that are left when all that need none of the others are taken away, from both ends."""
    left = {name: set(others) for name, others in graph.items()}
    while True:
        wanted = set[str]().union(*left.values()) if left else set[str]()
        gone = {name for name, others in left.items() if not others or name not in wanted}
        if not gone:
            return sorted(left)
        left = {name: others - gone for name, others in left.items() if name not in gone}


def test_imports_have_no_cycle() -> None:
    assert _cyclic(_graph(deferred=False)) == []


def test_imports_inside_of_functions_make_no_cycle_but_the_known_ones() -> None:
    graph = _graph(deferred=True)
    for name, other in DEFERRED:
        assert other in graph[name], f"{name} no longer imports {other}: take it from the list"
        graph[name].discard(other)
    assert _cyclic(graph) == []
