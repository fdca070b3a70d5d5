"""The base of every graph op and the registry that the rest of Weft is generated from.

One class is the whole op: type rule, NumPy reference, gradient, batching and lowering rule are its static methods; its
names in other systems and its samples are arguments of the `@op` decorator:

    @op("tanh", aten="tanh.default", onnx="Tanh", stablehlo="tanh", samples=unary(-8, 8))
    class Tanh(Elementwise):
        \"\"\"Hyperbolic tangent.\"\"\"

        @staticmethod
        def reference(x): return np.tanh(x)

        @staticmethod
        def vjp(b, grads, operands, results):
            (y,) = results
            return (b.mul(grads[0], b.sub(b.full_like(y, 1), b.mul(y, y))),)

        @staticmethod
        def tile(body, x): return body.math("tanh", x)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, TypeVar

from xdsl.dialects.builtin import DYNAMIC_INDEX, LocationAttr, TensorType
from xdsl.ir import Operation, OpResult, SSAValue
from xdsl.irdl import irdl_op_definition, var_operand_def, var_result_def
from xdsl.utils.exceptions import VerifyException

from weft.errors import DTypeError, ShapeError, WeftError
from weft.ir.attributes import Value, from_attribute, to_attribute
from weft.ir.expr import Size
from weft.ir.operations import WeftOp
from weft.ir.types import DType, Tensor, boolean, tensor_of, tensor_type
from weft.ops.samples import Sample

Precision = Literal["narrow", "wide", "follow"]


class GraphOp(WeftOp):
    """An op of the graph dialect: pure, over whole tensors.

    A subclass gives `infer` and `reference(*arrays, **params)`, what its kind (`Elementwise`, `Movement`, …) needs to
    be lowered, and, where they exist, two rules that append ops by the builder `b`:

    - `vjp(b, grads, operands, results, **params)`: the gradient of each operand, or None where none flows, from those
      of the results. Where an operand was broadcast its gradient is not: whoever calls sums it back to the shape.
    - `batch(b, operands, batched, **params)`: the results with a batch dimension in front, where the operands that
      `batched` marks have it in front. At least one has.

    An op that sums products says by `contracted(*tensors, **params)` along which dimensions of each operand: `quantize`
    gives what lies along these one factor.
    """

    args = var_operand_def(TensorType)
    outs = var_result_def(TensorType)

    EFFECTS: ClassVar[bool] = False
    """Whether the op does more than to make its results, and must be carried out once, in its turn."""
    NO_RULE: ClassVar[Mapping[str, str]] = {}
    """Why the op has no rule, where it could have one: by the rule's name, `vjp` or `batch`."""
    CHEAP: ClassVar[bool] = False
    """Whether computing the op again costs less than reading its result from memory (constants, iota, views)."""
    AUTOCAST: ClassVar[Precision] = "wide"
    """In which floats `autocast` computes the op: narrow ones, wide ones, or those that its operands come in."""

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor | tuple[Tensor, ...]:
        """The types of the results."""
        raise NotImplementedError(cls.name)

    @classmethod
    def make(cls, *operands: SSAValue, location: LocationAttr | None = None, **params: Value) -> Self:
        """Create the op; result types come from the type rule."""
        tensors = [tensor_of(operand.type) for operand in operands]
        results = cls.infer(*tensors, **params)
        if isinstance(results, Tensor):
            results = (results,)
        return cls.create(
            operands=operands,
            result_types=[tensor_type(result) for result in results],
            attributes={key: to_attribute(value) for key, value in params.items()},
            location=location,
        )

    @property
    def params(self) -> dict[str, Any]:
        """The op's parameters as Python values; an attribute with a dot in its name is an annotation, none of them."""
        return params_of(self)

    def verify_(self) -> None:
        try:
            results = type(self).infer(*(tensor_of(operand.type) for operand in self.operands), **self.params)
        except KeyError as error:
            given = ", ".join(self.params) or "none"
            raise VerifyException(f"{self.name} has no attribute {error}; it has {given}") from error
        except (WeftError, TypeError, ZeroDivisionError) as error:
            # The rule may have named the op itself.
            raise VerifyException(f"{self.name}: {str(error).removeprefix(f'{self.name}: ')}") from error
        results = (results,) if isinstance(results, Tensor) else results
        if any(DYNAMIC_INDEX in tensor.shape for tensor in results):
            raise VerifyException(f'{self.name}: a size of ? has no name; write tensor<?xf32, #graph.sizes<["s0"]>>')
        if any(isinstance(size, int) and size < 0 for result in results for size in result.shape):
            raise VerifyException(f"{self.name}: a size of {', '.join(map(str, results))} is negative")
        expected = [tensor_type(t) for t in results]
        if expected != list(self.result_types):
            raise VerifyException(f"{self.name}: results are {self.result_types}, the type rule gives {expected}")


def params_of(op: Operation) -> dict[str, Any]:
    return {key: from_attribute(value) for key, value in op.attributes.items() if "." not in key}


@dataclass(frozen=True)
class OpSpec:
    """What the registry knows of an op beside its class."""

    name: str
    cls: type[GraphOp]
    aten: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    stablehlo: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()


@dataclass
class Registry:
    """All graph ops by name, filled by `@op`."""

    specs: dict[str, OpSpec] = field(default_factory=dict[str, OpSpec])

    def __getitem__(self, name: str) -> OpSpec:
        return self.specs[name]

    def __iter__(self) -> Iterator[OpSpec]:
        return iter(self.specs.values())

    def classes(self) -> list[type[GraphOp]]:
        return [spec.cls for spec in self.specs.values()]


REGISTRY = Registry()

_Op = TypeVar("_Op", bound=type[GraphOp])


def op(
    name: str,
    *,
    aten: str | tuple[str, ...] = (),
    onnx: str | tuple[str, ...] = (),
    stablehlo: str | tuple[str, ...] = (),
    samples: Sequence[Sample] = (),
) -> Callable[[_Op], _Op]:
    """Register a class as the graph op `graph.<name>`."""

    def names(value: str | tuple[str, ...]) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else value

    def decorate(cls: _Op) -> _Op:
        cls.name = sys.intern(f"graph.{name}")
        defined = irdl_op_definition(cls)
        if name in REGISTRY.specs:
            raise ValueError(f"two ops are called {name}")
        REGISTRY.specs[name] = OpSpec(name, defined, names(aten), names(onnx), names(stablehlo), tuple(samples))
        return defined

    return decorate


def broadcast_shapes(*shapes: Sequence[Size]) -> tuple[Size, ...]:
    """NumPy's broadcasting, on symbolic sizes: sizes must be equal expressions, or 1."""
    return _broadcast(*map(tuple, shapes))


@lru_cache(maxsize=4096)  # layers repeat the same shapes
def _broadcast(*shapes: tuple[Size, ...]) -> tuple[Size, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Size] = []
    for position in range(-rank, 0):
        size: Size = 1
        for shape in shapes:
            candidate = shape[position] if -position <= len(shape) else 1
            if candidate == 1 or candidate == size:
                continue
            if size != 1:
                raise ShapeError(
                    f"shapes {' and '.join(str(tuple(map(str, s))) for s in shapes)} do not broadcast",
                    hint="sizes must be equal or 1, aligned at the last dimension",
                )
            size = candidate
        result.append(size)
    return tuple(result)


def same_dtype(name: str, tensors: Sequence[Tensor]) -> DType:
    """The one element type of all operands."""
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) != 1:
        raise DTypeError(f"{name} takes operands of one type, got {', '.join(map(str, tensors))}", hint="insert a cast")
    return dtypes.pop()


class Elementwise(GraphOp):
    """An op whose result at an index depends on its operands at that index alone; operands broadcast.

    A subclass gives `reference(*arrays, **params)` and `tile(body, *values, **params)`, and `result` where the element
    type of the result is not the operands'. All share one batching rule.
    """

    AUTOCAST: ClassVar[Precision] = "follow"

    @classmethod
    def infer(cls, *tensors: Tensor, **params: Any) -> Tensor:
        return Tensor(cls.result(*(t.dtype for t in tensors), **params), broadcast_shapes(*(t.shape for t in tensors)))

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        if len(set(dtypes)) != 1:
            raise DTypeError(f"{cls.name} takes operands of one type, got {', '.join(map(str, dtypes))}")
        return dtypes[0]

    @classmethod
    def batch(cls, b: Any, operands: Sequence[SSAValue], batched: Sequence[bool], **params: Any) -> SSAValue:
        tensors = [tensor_of(operand.type) for operand in operands]
        rank = max(tensor.rank - flag for tensor, flag in zip(tensors, batched, strict=True))
        aligned = list(operands)
        for position, (tensor, flag) in enumerate(zip(tensors, batched, strict=True)):
            missing = rank - (tensor.rank - flag)
            if flag and missing:  # broadcasting aligns at the end; the batch has to stay in front
                shape = (tensor.shape[0], *(1,) * missing, *tensor.shape[1:])
                aligned[position] = b.reshape(operands[position], shape=shape)
        return b.emit(cls.name.removeprefix("graph."), *aligned, **params)


class Comparison(Elementwise):
    """An elementwise op that gives booleans."""

    @classmethod
    def result(cls, *dtypes: DType, **params: Any) -> DType:
        super().result(*dtypes)
        return boolean


class Movement(GraphOp):
    """An op that copies elements: its result at an index is one element of an operand, or a constant.

    A subclass gives `infer`, `reference` and `pull(body, index, *operands, **params)`.
    """

    AUTOCAST: ClassVar[Precision] = "follow"


class View(Movement):
    """A movement whose result is the operand's memory seen through other strides, where the operand's own allow it."""

    CHEAP: ClassVar[bool] = True


def viewed(value: SSAValue) -> SSAValue:
    """What a value is a view of: itself, if nothing else."""
    while isinstance(value, OpResult) and isinstance(value.op, View):
        value = value.op.operands[0]
    return value


class Reduction(GraphOp):
    """An op whose result at an index combines many elements.

    A subclass gives `KIND` (a combiner of `weft.tile.functions`), `ranges(*tensors, **params)`, the sizes of the
    variables that are combined over, and `element(body, index, over, *operands, **params)`, what is combined; `index`
    is the result's, `over` the reduction variables. `finish(body, value, ...)` may map the combined value.
    """

    KIND: ClassVar[str] = "sum"


class Scatter(GraphOp):
    """An op that is a copy of its first operand with some elements replaced or combined, in order.

    A subclass gives `KIND` or a parameter `kind` (assign, add, mul, max, min), `updates(*tensors, **params)`, the
    shape of the update space, `target(body, index, *operands, **params)`, the index in the result that the update at
    `index` goes to, and `update(body, index, *operands, **params)`, the value.
    """


class Scan(GraphOp):
    """An op whose result along the parameter `dim` combines all elements up to there. `KIND` names the combiner."""

    KIND: ClassVar[str] = "sum"


class Structured(GraphOp):
    """An op with a kernel of its own (dot, convolution, attention, sort): `lower/` has a file for it."""
