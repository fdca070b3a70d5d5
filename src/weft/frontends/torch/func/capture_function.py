"""A torch function as a program: traced with fake tensors of the arguments' types, and imported.

Nothing of it runs. What it closes over becomes constants that calls read anew, so that weights may change between them.
Random numbers are made from a seed, a constant that every call draws: they are pure, and recomputing gives the same.
"""

# Torch's values have no types that can be followed; tracing with fake tensors has no public name.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false, reportPrivateImportUsage=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
import torch.fx.traceback as fx_traceback
import torch.utils._pytree as pytree
from torch import fx, nn
from torch._C._functorch import peek_interpreter_stack
from torch._dynamo.exc import Unsupported
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import (
    FunctionalTensor,
    FunctionalTensorMode,
    disable_functional_mode,
    dispatch_functionalize,
)
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from weft.config import Config
from weft.diagnostics import calling_line, raising_line
from weft.errors import UnsupportedError
from weft.frontends.torch.capture import matrix_calls
from weft.frontends.torch.capture.decompositions import decompositions
from weft.frontends.torch.capture.loop_states import with_own_states
from weft.frontends.torch.capture.margin_loss import margins_of_labels
from weft.frontends.torch.capture.stop_gradients import stop_gradients, stopped
from weft.frontends.torch.func import tensor_indices
from weft.frontends.torch.func.capturing import capturing
from weft.frontends.torch.func.complex_forms import with_complex_forms
from weft.frontends.torch.func.no_grad_results import NoGradResults, storage_of
from weft.frontends.torch.func.normalized import SHIFTED
from weft.frontends.torch.func.program import Program, slot_of
from weft.frontends.torch.func.random_numbers import Seed, drawing_from, read_seed_inside
from weft.frontends.torch.func.smooth_forms import KINKED, SMOOTH
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
    table = decompositions(device.type if device.type == "cuda" else "cpu") | SHIFTED | SMOOTH | matrix_calls.FORMS
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
        with _UsersCalls(tensors) as calls:
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

    with capturing(seed):
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
    )


def _trace_regions_like(tensor: torch.Tensor) -> None:
    """Let torch trace branches and turns on tensors without contents, as it does what is around them.

    It would run them on memory that nobody has filled, where indices are out of range, and no matrix can be inverted.
    """
    tracer: Any = proxy_tensor._CURRENT_MAKE_FX_TRACER
    if isinstance(tensor, FakeTensor) and tracer is not None:
        tracer.fake_tensor_mode = tensor.fake_mode


_ASKING: frozenset[Any] = frozenset(
    each.__get__ for each in vars(torch._C.TensorBase).values() if type(each).__name__ == "getset_descriptor"
)
"""What reads attributes of tensors."""


def _is_outside(leaf: Any) -> bool:
    """Whether something is a tensor that tracing has not made: one that a function closes over."""
    return type(leaf) is torch.Tensor and not (
        torch._C._functorch.is_functorch_wrapped_tensor(leaf) or torch._is_functional_tensor(leaf)
    )


_PROXY: Any = torch._C._TorchDispatchModeKey.PROXY
_DATA: Any = torch.Tensor.data.__get__
_DETACHING: tuple[Any, ...] = (torch.detach, torch.Tensor.detach)
_READING: frozenset[Any] = frozenset(
    getattr(torch.Tensor, name)
    for name in ("tolist", "numpy", "item", "__array__", "__repr__", "__format__", "__bool__", "__int__", "__float__")
)
"""What reads the numbers of a tensor, for Python: of one from outside they are known."""


def _writes(func: Any, kwargs: Any) -> bool:
    """Whether a call writes to a tensor, by its name: `add_`, `__setitem__`, `__iadd__`, or anything with `out`."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and hasattr(torch.Tensor, f"__{name[3:]}"))
    return (name.endswith("_") and name != "requires_grad_") or (kwargs or {}).get("out") is not None


class _UsersCalls(TorchFunctionMode):
    """Notes the user's line of every call; what is computed without gradients, under `no_grad()`, has none later.

    What comes from outside of the function is traced as what it computes itself: copies of it can be written to.
    """

    def __init__(self, arguments: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._arguments = {id(each): each for each in arguments if isinstance(each, FunctionalTensor)}
        self._outside: dict[int, tuple[torch.Tensor, FunctionalTensor]] = {}
        self._originals: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._given: set[int] = set()
        self._lines: dict[int, str | None] = {}
        self._no_grad = NoGradResults()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # control flow, whose regions Dynamo traces
            return func(*args, **(kwargs or {}))
        place = calling_line()
        file, _, line = (place or "").rpartition(":")
        if file:
            fx_traceback.current_meta["stack_trace"] = f'File "{file}", line {line}'
        known = self._original(args[0]) if args else None
        if func in _READING and known is not None:
            self.refuse_writes()
            with _disable_current_modes():
                return func(known, *args[1:], **(kwargs or {}))
        func = torch.Tensor.detach if func == _DATA else func  # of a parameter, torch does not trace the other
        writes = _writes(func, kwargs)
        self._given.clear()
        if func not in _ASKING:
            args, kwargs = pytree.tree_map_only(_is_outside, self._traced, (args, kwargs or {}))
        if writes:
            (first, out), rest = (args[:1], (kwargs or {}).get("out")), args[1:]
            first, out = pytree.tree_map_only(nn.Parameter, self._traced, (first, out))
            args, kwargs = (*first, *rest), {**kwargs, "out": out} if out is not None else kwargs
        no_grad = not torch.is_grad_enabled()
        if no_grad:
            args, kwargs = self._no_grad.shared((args, kwargs))
        before = self._no_grad.before_write(args) if no_grad and writes else None
        if tensor_indices.is_read(func, args):
            found = tensor_indices.read(*args)
        elif tensor_indices.is_written(func, args):
            found = tensor_indices.write(*args)
        else:
            found = func(*with_own_states(func, args), **(kwargs or {}))
        if writes:
            self._no_grad.after_write(args, before)
            self._no_grad.refresh(args)
        self._note_writes(self._outside if writes else self._given, place)
        self._refuse_written_arguments(
            self._arguments if writes else map(id, pytree.tree_leaves((args, kwargs))), place
        )
        if func not in _ASKING:
            found = pytree.tree_map_only(_is_outside, partial(self._own, args=args), found)
        if func not in _DETACHING:
            return self._no_grad.results(found, args) if no_grad else found
        found = pytree.tree_map_only(torch.Tensor, stopped, found)
        if known is not None:
            self._originals[id(found)] = found, known
        return found

    def _original(self, tensor: Any) -> torch.Tensor | None:
        """What is outside of the function, for one that has the same elements: the traced one, or it detached."""
        if _is_outside(tensor) or type(tensor) is nn.Parameter:
            return tensor
        known = self._originals.get(id(tensor))
        return None if known is None else known[1]

    def _traced(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor from outside as one of the function's own; the same one each time."""
        known = self._outside.get(id(tensor))
        if known is None and _is_old_trace() and cast(Any, peek_interpreter_stack()) is not None:
            return tensor  # what it would be wrapped in, inside of a transformation, that trace does not know
        if known is None:
            plain = tensor.detach() if isinstance(tensor, nn.Parameter) else tensor
            known = self._outside[id(tensor)] = tensor, FunctionalTensor.to_functional(_recorded(plain))
            self._originals[id(known[1])] = known[1], tensor
        self._given.add(id(tensor))
        return known[1]

    def _own(self, result: torch.Tensor, args: Any) -> torch.Tensor:
        """What a call makes of parameters alone is the function's own, unless it has the memory of one."""
        given = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, nn.Parameter)]
        memory = storage_of(result)
        if memory is not None and any(memory == storage_of(each) for each in given):
            return result
        return FunctionalTensor.to_functional(_recorded(result))

    def _note_writes(self, numbers: Iterable[int], place: str | None) -> None:
        """Remember the line of the first call that wrote to each of these."""
        for number in numbers:
            if number not in self._lines and torch._functionalize_has_data_mutation(self._outside[number][1].elem):
                self._lines[number] = place

    def _refuse_written_arguments(self, numbers: Iterable[int], place: str | None) -> None:
        """Raise where an argument among these was written to: a compiled function changes none."""
        found = (self._arguments[number] for number in numbers if number in self._arguments)
        if any(torch._functionalize_has_data_mutation(each.elem) for each in found):
            raise UnsupportedError(
                "the function writes to its arguments",
                location=place,
                hint="write to a clone, and return that; modules that keep statistics, as batch norm, take `.eval()`",
            )

    def refuse_writes(self) -> None:
        """Raise where a tensor from outside was written to: a compiled function changes none."""
        self._note_writes(self._outside, None)
        self._refuse_written_arguments(self._arguments, None)
        if self._lines:
            line = next(iter(self._lines.values()))
            raise UnsupportedError(
                "the function writes to a tensor from outside of it", location=line, hint="write to a clone of it"
            )


def _is_old_trace() -> bool:
    return cast(Any, torch.__version__) < (2, 12) and torch._C._get_dispatch_mode(_PROXY) is not None


def _recorded(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor from outside, as the trace knows it: that of torch 2.11 takes no other for one of the function's own."""
    if not _is_old_trace():
        return tensor
    with disable_functional_mode():
        return torch.ops.aten.alias.default(tensor)


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
        with torch.enable_grad(), fx_traceback.preserve_node_meta(), margins_of_labels():
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
        if "get value out of a tracing tensor" not in str(error):
            raise
        raise _decides(error) from error


def _decides(error: Exception) -> UnsupportedError:
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
