"""A torch function as a program: traced with fake tensors of the arguments' types, and imported.

Nothing of it runs. What it closes over becomes constants that calls read anew, so that weights may change between them.
Random numbers are made from a seed, a constant that every call draws: they are pure, and recomputing gives the same.
"""

# Torch's values have no types that can be followed; tracing with fake tensors has no public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch import fx, nn
from torch._dynamo.exc import Unsupported
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import (
    FunctionalTensorMode,
    dispatch_functionalize,
)
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from weft.config import Config
from weft.diagnostics import calling_line, raising_line
from weft.errors import UnsupportedError
from weft.frontends.torch.capture import matrix_calls
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.margin_loss import margins_of_labels
from weft.frontends.torch.capture.stop_gradients import stop_gradients
from weft.frontends.torch.func.capturing import capturing
from weft.frontends.torch.func.complex_forms import with_complex_forms
from weft.frontends.torch.func.norm_forms import NORMS
from weft.frontends.torch.func.normalized import SHIFTED
from weft.frontends.torch.func.program import Program, slot_of
from weft.frontends.torch.func.random_numbers import Seed, drawing_from, read_seed_inside
from weft.frontends.torch.func.smooth_forms import KINKED, SMOOTH
from weft.frontends.torch.func.users_calls import UsersCalls
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.imported_graph import ImportedGraph, Passed, Returned
from weft.ops.graph import ReturnOp
from weft.passes.transform.arguments import forget_ends
from weft.passes.transform.checkpoint import read_regions

_ROWS: Any = torch.contiguous_format
_ops: Any = torch.ops.aten
_PRODUCTS = frozenset((_ops.mv.default, _ops.addmv.default, _ops.dot.default, _ops.vdot.default))
"""Left whole, though as sums of products they are as fast: a batch of them is a product of matrices."""


def fake_tensors(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the same types without contents, row by row."""
    mode = _fake_mode()
    return [_empty(mode, each.shape, each.dtype, each.device) for each in tensors]


def fake_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor without contents."""
    return _empty(_fake_mode(), shape, dtype, device)


def _fake_mode() -> FakeTensorMode:
    # Torch's loops ask for a place for sizes; functions that decide by their data are refused all the same.
    sizes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=sizes)


def _empty(mode: FakeTensorMode, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    with mode:
        return torch.empty(tuple(shape), dtype=dtype, device=device)


def decompositions_of_functions(device: torch.device) -> dict[Any, Callable[..., Any]]:
    """What operators of a function that is going to be transformed are taken apart into, while it is traced."""
    table = (
        decompositions(device.type if device.type == "cuda" else "cpu") | SHIFTED | SMOOTH | NORMS | matrix_calls.FORMS
    )
    kept = {target: rule for target, rule in table.items() if target not in _PRODUCTS and target not in KINKED}
    return with_complex_forms(kept)


def capture(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
    """Trace a function for arguments, of which only the types of tensors matter."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    own: dict[str, Any] = {}
    if isinstance(function, nn.Module):
        own = dict([*function.named_parameters(), *function.named_buffers()])
    device = next((each.device for each in (*given, *own.values())), torch.device("cpu"))
    seed = Seed(torch.zeros(1, dtype=torch.int64, device=device))
    first = seed.value
    shape: dict[str, Any] = {}

    def flat(*tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        whole = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        taken, named = pytree.tree_unflatten(whole, spec)
        state = {name: next(rest) for name in own}
        with UsersCalls(tensors) as calls:
            if isinstance(function, nn.Module):
                returned = torch.func.functional_call(function, state, taken, named)
            else:
                returned = function(*taken, **named)
        calls.refuse_writes()
        found, shape["spec"] = pytree.tree_flatten(returned)
        shape["leaves"] = tuple(slot_of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in found)
        return [leaf.clone(memory_format=_ROWS) for leaf in found if isinstance(leaf, torch.Tensor)]

    table = decompositions_of_functions(device) | drawing_from(seed)
    functional: Any = functionalized(flat)

    def seeded(*tensors: torch.Tensor) -> Any:
        seed.value = tensors[-1]  # operators are taken apart where nothing is mutated any more
        _trace_regions_like(tensors[-1])
        return functional(*tensors)

    with capturing(seed) as captured:
        module = traced(seeded, fake_tensors([*given, *own.values(), first]), table)
        *_, seed.argument = module.graph.find_nodes(op="placeholder")
        module.graph.eliminate_dead_code()  # transformations of torch's own leave tensors without memory behind
        stop_gradients(module.graph)
        read_seed_inside(module, seed.value)
        imported = _imported(module)
    read_regions(imported.function.block)
    if imported.calling.arguments != tuple(range(len(given) + len(own) + 1)) or imported.calling.mutated:
        raise UnsupportedError(
            "the function writes to its arguments", location=calling_line(), hint="return new values instead"
        )
    _return_outputs(imported)
    return Program(
        forget_ends(imported.function),
        len(given),
        (*own.values(), first, *imported.constants),
        shape["spec"],
        shape["leaves"],
        device,
        imported.calling.checks,
        imported.objects,
        len(own) if seed.draws else None,
        captured.reads_numbers,
    )


def _trace_regions_like(tensor: torch.Tensor) -> None:
    """Let torch trace branches and turns on tensors without contents, as it does what is around them.

    It would run them on memory that nobody has filled, where indices are out of range, and no matrix can be inverted.
    """
    tracer: Any = proxy_tensor._CURRENT_MAKE_FX_TRACER
    if isinstance(tensor, FakeTensor) and tracer is not None:
        tracer.fake_tensor_mode = tensor.fake_mode


_ALSO_COMPILED: Any = partial(torch._dynamo.config.patch, error_on_nested_fx_trace=False)
"""Let functions that `torch.compile` has made be traced as they were: the whole is going to be compiled."""


def functionalized(flat: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose trace writes to nothing; factorisations that may fail are looked at when the graph has run."""
    mode = FunctionalTensorMode()
    dispatch = mode.__torch_dispatch__

    def checked(_: FunctionalTensorMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._linalg_check_errors.default:
            dispatch(matrix_calls.check_matrices.default, types, args[:2], {})
            return None
        return dispatch(func, types, args, kwargs)

    # On the mode itself: operators with regions know its very class.
    object.__setattr__(mode, "__torch_dispatch__", MethodType(checked, mode))
    return dispatch_functionalize(flat, mode)


def traced(flat: Callable[..., Any], inputs: Sequence[torch.Tensor], table: Mapping[Any, Any]) -> fx.GraphModule:
    try:
        with torch.enable_grad(), fx_traceback.preserve_node_meta(), margins_of_labels(), _ALSO_COMPILED():
            return make_fx(flat, table, _allow_non_fake_inputs=True)(*inputs)
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode) as error:
        raise _decides(error) from error
    except Unsupported as error:
        raise UnsupportedError(
            f"torch does not trace control flow here: {str(error).partition(chr(10))[0]}",
            location=raising_line(error) or calling_line(),
            hint="transform the function from outside: `vmap(jvp(f, ...))`, not `jvp` in a function that has a batch",
        ) from error
    except RuntimeError as error:
        if isinstance(error, NotImplementedError) and str(error).startswith("FlexAttention"):
            what = "FlexAttention is not differentiated inside of a function that is captured"
            hint = "transform the function that calls it: weft.grad(weft.grad(f))"
            raise UnsupportedError(what, location=raising_line(error) or calling_line(), hint=hint) from error
        if "randomness error mode" in str(error):
            raise UnsupportedError(
                "random numbers under vmap: the same for all of the batch, or different ones?",
                location=raising_line(error) or calling_line(),
                hint='say `vmap(f, randomness="different")` or "same"',
            ) from error
        if not any(words in str(error) for words in ("get value out of a tracing tensor", ".numpy() is not supp")):
            raise
        raise _decides(error) from error


def _decides(error: Exception) -> UnsupportedError:
    if "_ctc_loss" in str(error):
        return UnsupportedError(
            "ctc_loss looks at its data, and is not transformed",
            location=raising_line(error) or calling_line(),
            hint="transform what gives its logarithms, and call ctc_loss on the result: autograd goes on",
        )
    return UnsupportedError(
        f"the function decides by its data: {str(error).partition(chr(10))[0]}",
        location=raising_line(error) or calling_line(),
        hint="`torch.where` or `torch.cond` decides inside of the graph",
    )


def _imported(module: fx.GraphModule) -> ImportedGraph:
    try:
        return import_graph(module, "function", Config(strict=True))
    except UnsupportedError:  # what torch has to carry out can still stand beside what is transformed
        return import_graph(module, "function", Config(fallback="quiet"))


def _return_outputs(imported: ImportedGraph) -> None:
    """Let the function give what the program gives, in its order, then its verdict."""
    function, calling = imported.function, imported.calling
    returned, results = list(function.returned.operands), []
    for output in calling.outputs:
        if isinstance(output, Passed):
            results.append(function.block.args[output.argument])
        elif isinstance(output, Returned):
            results.append(returned[output.result])
        else:
            raise UnsupportedError("the function returns what is no tensor of its graph", location=calling_line())
    verdict = [returned[-1]] if calling.checks else []
    last = function.returned
    last.detach()
    last.erase()
    function.block.add_op(ReturnOp.make([*results, *verdict]))
