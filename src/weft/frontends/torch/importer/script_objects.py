"""Objects among a graph's arguments that are no tensors: the meshes of DTensors, which are taken apart around it."""

from __future__ import annotations

from torch import fx
from torch._library.fake_class_registry import FakeScriptObject


def is_passed_on(node: fx.Node) -> bool:
    """Whether an argument is such an object, and the graph does nothing but give it back."""
    return isinstance(node.meta.get("val"), FakeScriptObject) and all(user.op == "output" for user in node.users)
