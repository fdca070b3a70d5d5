"""A whole model as one graph function, its parameters and inputs as named arguments."""

# torch leaves some of its functions without types, and has no public name for tracing a module with its parameters.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.utils._pytree as pytree
from torch import fx, nn
from torch._functorch.aot_autograd import aot_export_module
from xdsl.context import Context

from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.grouped_matmuls import with_traced_gradients
from weft.frontends.torch.capture.stop_gradients import stop_gradient_of_padding
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.imported_graph import Number, Output, Passed, Returned
from weft.ops.graph import FuncOp, ReturnOp, module_of
from weft.passes.simplify.eliminate_dead import EliminateDead


@dataclass(frozen=True)
class CapturedModel:
    """A model's function. Its arguments are the `state` of these names, the tensors among the inputs' leaves, and
    constants."""

    function: FuncOp
    state: tuple[str, ...]
    inputs: tuple[int, ...]
    """Which leaves of the inputs are arguments."""
    constants: tuple[torch.Tensor, ...]
    objects: Mapping[str, Any]
    outputs: tuple[Output, ...]
    out_spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    """The outputs' leaves that are no tensors; tensors stand as themselves, and are not to be read."""
    is_random: bool = False
    """Whether it draws random numbers, of which every rank has to draw the same."""

    def restored(self, results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> Any:
        """What the model returns, of the function's results."""
        tensors = iter([self._output(output, results, arguments) for output in self.outputs])
        found = [next(tensors) if leaf is _TENSOR else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(found, self.out_spec)

    def _output(self, output: Output, results: Sequence[torch.Tensor], arguments: Sequence[Any]) -> Any:
        match output:
            case Returned(result=number):
                return results[number]
            case Passed(argument=number):
                return arguments[number]
            case Number(value=value):
                return value
            case _:
                raise UnsupportedError("a model on many ranks returns a view of another output", hint="clone it")


_TENSOR = object()


class _Flat(nn.Module):
    """A module that takes and returns flat lists of tensors."""

    def __init__(self, model: nn.Module, leaves: Sequence[Any], spec: pytree.TreeSpec) -> None:
        super().__init__()
        self.model = model
        self.given, self.spec = list(leaves), spec
        self.out_spec: pytree.TreeSpec | None = None
        self.out_leaves: list[Any] = []

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.given]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        found, self.out_spec = pytree.tree_flatten(self.model(*args, **kwargs))
        self.out_leaves = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in found]
        return tuple(leaf for leaf in found if isinstance(leaf, torch.Tensor))


@contextmanager
def _compiling() -> Generator[None]:
    """Code that asks whether it is being compiled gets the answer yes, and reads no data."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _drop_verdict(function: FuncOp) -> None:
    """Leave out the last result, which says what is wrong with the data: ranks would have to agree on it."""
    returned = function.returned
    made = ReturnOp.make(list(returned.operands)[:-1])
    function.block.insert_op_before(made, returned)
    returned.detach()
    returned.erase()
    EliminateDead().apply(Context(), module_of(function))


def capture_model(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CapturedModel:
    """Trace a model with these inputs; every size is known, and nothing is left to torch's libraries."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    flat = _Flat(model, leaves, spec)
    device = next((tensor.device.type for tensor in tensors), "cpu")
    with _compiling(), torch.no_grad():
        traced, signature = aot_export_module(
            flat, tensors, trace_joint=False, decompositions=decompositions("cuda" if device == "cuda" else "cpu")
        )
    module = with_traced_gradients(cast(fx.GraphModule, traced))
    is_random = any(
        torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in module.graph.nodes
    )
    for node in list(module.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            module.graph.erase_node(node)
        elif node.target is torch.ops.aten.embedding.default:
            stop_gradient_of_padding(module.graph, node)
    if signature.buffers_to_mutate or getattr(signature, "user_inputs_to_mutate", None):
        raise UnsupportedError(
            "the model changes its buffers or inputs", hint="use eval mode for batch norm, and no cache"
        )
    state = tuple(name.removeprefix("model.") for name in (*signature.parameters, *signature.buffers))
    try:
        imported = import_graph(module, "forward", Config(strict=True))
    except UnsupportedError:  # what torch has to carry out runs whole, on every rank
        imported = import_graph(module, "forward", Config(fallback="quiet"))
    places = [position for position, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    used = imported.calling.arguments
    if used != tuple(range(len(state) + len(places))) or imported.calling.mutated:
        raise UnsupportedError("a model on many ranks takes tensors alone, and changes none of them")
    if imported.calling.checks:
        _drop_verdict(imported.function)
    assert flat.out_spec is not None, "traced"
    return CapturedModel(
        imported.function,
        state,
        tuple(places),
        imported.constants,
        imported.objects,
        imported.calling.outputs,
        flat.out_spec,
        tuple(flat.out_leaves),
        is_random,
    )
