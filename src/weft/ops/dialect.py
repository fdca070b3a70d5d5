"""The graph dialect as xDSL knows it: what a context needs to parse the text of graph programs."""

from __future__ import annotations

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.ir import Dialect

import weft.ops  # pyright: ignore[reportUnusedImport]  # noqa: F401  the registry has to be full
from weft.errors import ParseError
from weft.ir.attributes import SizeAttr
from weft.ir.parser import TextParser
from weft.ir.sharding import MeshAttr, ShardingAttr
from weft.ir.types import SizesAttr
from weft.ops.base import REGISTRY
from weft.ops.collectives import COLLECTIVES
from weft.ops.control import IfOp, LoopOp
from weft.ops.custom import CustomOp
from weft.ops.graph import FuncOp, GroupOp, LaunchOp, OpaqueOp, ReturnOp, YieldOp

Graph = Dialect(
    "graph",
    [FuncOp, ReturnOp, GroupOp, YieldOp, OpaqueOp, LaunchOp, IfOp, LoopOp, CustomOp, *COLLECTIVES, *REGISTRY.classes()],
    [SizesAttr, SizeAttr, MeshAttr, ShardingAttr],
)


def weft_context() -> Context:
    """A context that parses graph programs."""
    context = Context()
    context.load_dialect(Builtin)
    context.load_dialect(Graph)
    return context


def parse_module(text: str, name: str = "<text>") -> ModuleOp:
    """Read a module of graph functions and check it."""
    module = TextParser(weft_context(), text, name, "a graph program").program()
    try:
        module.verify()
    except Exception as error:  # a verifier may meet what no program has
        raise ParseError(f"the program is not valid: {error}", location=name) from error
    return module
