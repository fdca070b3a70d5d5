"""What a graph asks of its symbolic sizes: type rules that are applied again once the sizes of a call are known.

A rule cannot tell whether 4 elements from 3 lie within s0 of them, and lets it pass. Whoever runs a graph that no front
end has made for these very sizes asks here first: kernels read and write where the graph says, without a look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Operation

from weft.errors import ShapeError, WeftError
from weft.ir.attributes import from_attribute
from weft.ir.expr import Expr, Size, evaluate, is_nonnegative, product
from weft.ir.types import Tensor, tensor_of
from weft.ops.base import Elementwise, GraphOp, params_of
from weft.ops.graph import FuncOp
from weft.ops.indexing.index import Take
from weft.ops.matmul.dot import Dot
from weft.ops.movement import Concat, Copy
from weft.ops.reduce import DimensionReduction
from weft.ops.scan import DimensionScan
from weft.ops.shape import Broadcast, Permute, Reshape

Symbols: TypeAlias = Mapping[str, int]
Params: TypeAlias = tuple[Any, ...]
_Rule: TypeAlias = tuple[type[GraphOp], tuple[Tensor, ...], tuple[tuple[str, Any], ...], tuple[Tensor, ...]]
_STRIDES = ("arg_strides", "result_strides")
_MOST_KNOWN = 4096
_FOR_ALL_SIZES = (Elementwise, Permute, Reshape, Broadcast, Copy, Concat, Dot, DimensionReduction, DimensionScan, Take)
"""Ops whose rules compare sizes with each other: what is equal as an expression is so for all values."""


class SizeChecks:
    """The rules of a function's ops, each once: layers that repeat ask the same."""

    def __init__(self, function: FuncOp) -> None:
        ops = list(function.walk())
        self.name = function.sym_name.data
        self._rules = tuple(dict.fromkeys(_rule(op) for op in ops if isinstance(op, GraphOp)))
        self._tensors = tuple(dict.fromkeys(tensors_of(function)))
        self._strides = tuple(_strides(function))
        self._fitting: set[tuple[tuple[str, int], ...]] = set()

    @property
    def may_fail(self) -> bool:
        """Whether sizes exist that the program is not right for, as far as can be told without them."""
        sizes = [size for tensor in self._tensors for size in tensor.shape]
        free = [rule[0] for rule in self._rules if _is_open(rule)]
        return (
            not all(issubclass(cls, _FOR_ALL_SIZES) for cls in free)
            or not all(map(is_nonnegative, sizes))
            or bool(self._strides)
        )

    def __call__(self, symbols: Symbols) -> None:
        """Raise unless the program is right for these sizes."""
        key = tuple(sorted(symbols.items()))
        if key in self._fitting:
            return
        try:
            self._check(symbols)
        except ZeroDivisionError:
            raise ShapeError(f"{self.name} divides by a size that is 0, for {_told(symbols)}") from None
        except WeftError as error:
            raise ShapeError(
                f"{self.name} cannot run for {_told(symbols)}: {error.message}", hint="its graph allows no such size"
            ) from error
        if len(self._fitting) >= _MOST_KNOWN:
            self._fitting.clear()
        self._fitting.add(key)

    def _check(self, symbols: Symbols) -> None:
        for tensor in self._tensors:
            known = _tensor(tensor, symbols)
            if any(size < 0 for size in known.shape if isinstance(size, int)):
                raise ShapeError(f"a value of {tensor} would be {known}")
        for cls, operands, params, results in self._rules:
            given = {name: _at(value, symbols) for name, value in params}
            found = cls.infer(*(_tensor(each, symbols) for each in operands), **given)
            found = (found,) if isinstance(found, Tensor) else found
            expected = tuple(_tensor(each, symbols) for each in results)
            if found != expected:
                raise ShapeError(f"{cls.name} gives {', '.join(map(str, found))} in place of {results[0]}")
        for tensor, strides in self._strides:
            shape, steps = (tuple(evaluate(size, symbols) for size in each) for each in (tensor.shape, strides))
            last = sum((size - 1) * step for size, step in zip(shape, steps, strict=True))
            if 0 not in shape and (min(steps, default=0) < 0 or last >= evaluate(product(shape), symbols)):
                raise ShapeError(f"{tensor} in strides of {', '.join(map(str, strides))} leaves its memory")


def tensors_of(function: FuncOp) -> list[Tensor]:
    """The types of all values of a function."""
    values = [*function.block.args, *(result for op in function.walk() for result in op.results)]
    values += [value for op in function.walk() for region in op.regions for value in region.block.args]
    return [tensor_of(value.type) for value in values if _is_tensor(value.type)]


def _is_tensor(attribute: Attribute) -> bool:
    return isinstance(attribute, TensorType)


def _rule(op: GraphOp) -> _Rule:
    operands, results = (tuple(tensor_of(value.type) for value in values) for values in (op.operands, op.results))
    return type(op), operands, tuple(params_of(op).items()), results


def _is_open(rule: _Rule) -> bool:
    """Whether a rule has anything symbolic to look at."""
    _, operands, params, _ = rule

    def symbolic(value: Any) -> bool:
        return isinstance(value, Expr) or (isinstance(value, tuple) and any(map(symbolic, cast("Params", value))))

    return not all(each.is_static for each in operands) or any(symbolic(value) for _, value in params)


def _strides(function: FuncOp) -> list[tuple[Tensor, tuple[Size, ...]]]:
    """The tensors that a function says the strides of."""
    found: list[tuple[Tensor, tuple[Size, ...]]] = []
    sides = (function.block.args, function.returned.operands)
    for name, values in zip(_STRIDES, sides, strict=True):
        attribute = function.attributes.get(name)
        stated: Any = () if attribute is None else from_attribute(attribute)
        if stated and len(stated) != len(values):
            raise ShapeError(f"{function.sym_name.data} has {len(values)} values and {name} of {len(stated)}")
        for value, strides in zip(values, stated, strict=False):
            tensor = tensor_of(value.type)
            if strides is not None and len(strides) != tensor.rank:
                raise ShapeError(f"{function.sym_name.data}: {len(strides)} strides of {tensor}")
            if strides is not None:
                found.append((tensor, strides))
    return found


def states_strides(op: Operation) -> bool:
    """Whether an op says where its values lie, which is the compiler's to say of all but functions."""
    return not isinstance(op, FuncOp) and any(name in op.attributes for name in _STRIDES)


def _at(value: Any, symbols: Symbols) -> Any:
    if isinstance(value, Expr):
        return evaluate(value, symbols)
    if isinstance(value, tuple):
        return tuple(_at(item, symbols) for item in cast("Params", value))
    return value


def _tensor(tensor: Tensor, symbols: Symbols) -> Tensor:
    return tensor if tensor.is_static else Tensor(tensor.dtype, tuple(evaluate(size, symbols) for size in tensor.shape))


def _told(symbols: Symbols) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sorted(symbols.items())) or "its sizes"
