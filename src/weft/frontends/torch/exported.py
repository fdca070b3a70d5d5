"""A program that `torch.export` saved, as the text of a graph and its weights: nothing of torch is left in it."""

# Torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import DictionaryAttr

from weft.config import Config
from weft.errors import ArtifactError, UnsupportedError
from weft.frontends.torch.capture.decompositions import exported_decompositions
from weft.frontends.torch.capture.margin_loss import margins_of_labels
from weft.frontends.torch.execution.reference import to_array
from weft.frontends.torch.importer.checks import is_of_data
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.imported_graph import ImportedGraph, Returned
from weft.ir.attributes import from_attribute, to_attribute
from weft.ops.graph import FuncOp, ReturnOp
from weft.tile.text import print_program

_ROWS: dict[str, Any] = {"memory_format": torch.contiguous_format}


def read_exported(path: Path) -> tuple[str, dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    """The text and the weights of a saved program, and what its last result says to be wrong with its data."""
    with warnings.catch_warnings():
        # torch copies what it has saved in a way that it warns of itself.
        warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)
        try:
            program = torch.export.load(path)
        except Exception as error:  # torch raises whatever it meets in a file that is none
            raise ArtifactError(f"{path} is not a program that torch.export saved: {error}") from error
        return graph_of(program, path.stem)


def graph_of(
    program: torch.export.ExportedProgram, name: str
) -> tuple[str, dict[str, np.ndarray], tuple[tuple[str, str], ...]]:
    """The text and the weights of a program, and of each mistake that it tells by its last result, kind and text."""
    stated = program.range_constraints
    with margins_of_labels():
        program = program.run_decompositions(exported_decompositions())
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
        raise UnsupportedError(
            f"the program writes to {changed[0]}, and what an artifact holds stays as it is",
            hint="let the state be an argument, and its new value a result",
        )
    tensors: dict[str, Any] = {**program.state_dict, **program.constants}
    held = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    placeholders = [node.name for node in program.graph_module.graph.find_nodes(op="placeholder")]
    frozen = {place for place, each in enumerate(placeholders) if each in held}
    _copy_outputs(program.graph_module)
    imported = import_graph(program.graph_module, _identifier(name), Config(strict=True, freeze=True), frozen)
    _return_outputs(imported)
    _state_ranges(imported.function, stated)
    if names := _result_names(program):
        imported.function.attributes["result_names"] = to_attribute(names)
    weights = {each: to_array(tensors[held[each]].cpu().contiguous()) for each in placeholders if each in held}
    own = {f"constant{n}": to_array(each.cpu().contiguous()) for n, each in enumerate(imported.constants)}
    taken = {placeholders[position] for position in imported.calling.arguments}
    kept = {each: array for each, array in weights.items() if each in taken}
    # What a kernel of the user's asserts is of the data, too, where there is no line to point to.
    mistakes = tuple((each.kind if is_of_data(each) else "data", each.message) for each in imported.calling.checks)
    return print_program(imported.function), {**kept, **own}, mistakes


def _state_ranges(function: FuncOp, stated: Mapping[Any, Any]) -> None:
    """Let sizes go as far down as the program says: tracing takes them for 2 at least, whatever that is."""
    if function.symbols is None:
        return
    least = {str(symbol): int(each.lower) for symbol, each in stated.items() if each.lower.is_Integer}
    ranges: dict[str, Any] = {name: from_attribute(each) for name, each in function.symbols.data.items()}
    found = {name: (min(low, least.get(name, low)), high) for name, (low, high) in ranges.items()}
    function.attributes["symbols"] = DictionaryAttr({name: to_attribute(each) for name, each in found.items()})


def _result_names(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """What results are called where the program gives them by name: the keys of a dictionary, fields of a class."""
    spec = program.call_spec.out_spec
    if spec is None or spec.is_leaf():
        return ()
    leaves = pytree.tree_unflatten([*range(spec.num_leaves)], spec)
    paths = [".".join(_word(key) for key in path) for path, _ in pytree.tree_flatten_with_path(leaves)[0]]
    return () if all(path.isdecimal() for path in paths) else tuple(paths)


def _word(key: Any) -> str:
    """A step of a path, without the marks of how it is taken."""
    named = next((getattr(key, each) for each in ("key", "name", "idx") if hasattr(key, each)), key)
    return str(named)


def _copy_outputs(module: fx.GraphModule) -> None:
    """Let every result be a tensor of its own, row by row: what is a view, or an argument, is copied."""
    (last,) = module.graph.find_nodes(op="output")
    made: list[Any] = []
    for value in last.args[0]:
        if not isinstance(value, fx.Node) or not isinstance(value.meta.get("val"), torch.Tensor):
            raise UnsupportedError(f"the program gives {value}, which is no tensor", hint="let it give tensors alone")
        with module.graph.inserting_before(last):
            copy = module.graph.call_function(torch.ops.aten.clone.default, (value,), _ROWS)
        copy.meta["val"] = torch.ops.aten.clone.default(value.meta["val"], **_ROWS)
        made.append(copy)
    last.args = (tuple(made),)


def _return_outputs(imported: ImportedGraph) -> None:
    """Let the function give what the program gives, in its order, then its verdict."""
    function, calling = imported.function, imported.calling
    returned = list(function.returned.operands)
    results: list[Any] = []
    for output in calling.outputs:
        if not isinstance(output, Returned) or output.is_complex:
            raise UnsupportedError(
                "the program gives complex numbers, which an artifact has no form for",
                hint="let it give real tensors: `torch.view_as_real(x)`",
            )
        results.append(returned[output.result])
    verdict = [returned[-1]] if calling.checks else []
    last = function.returned
    last.detach()
    last.drop_all_references()
    function.block.add_op(ReturnOp.make([*results, *verdict]))
    function.attributes.pop("result_strides", None)


def _identifier(name: str) -> str:
    return "".join(each if each.isalnum() and each.isascii() else "_" for each in name) or "model"
