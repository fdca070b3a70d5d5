"""What a model is asked when it is loaded, whether its shapes are known or not: are there all of its operators?"""

from __future__ import annotations

from weft.frontends.onnx.functions import has_function, no_converter, version_of
from weft.frontends.onnx.model import Model
from weft.frontends.onnx.operators.table import converter_of


def require_operators(model: Model) -> None:
    """Refuse a model with a node that nothing can import.

    Nodes of branches and bodies are not looked at: they may never be taken.
    """
    for node in model.graph.nodes:
        version = version_of(node, model.opsets)
        if (node.domain, node.op, node.overload) in model.functions or converter_of(node.domain, node.op, version):
            continue
        if not has_function(node, version):
            raise no_converter(node, version)
