"""The `stream` dialect: which vectors flow from where to where, before it is decided when and in which unit.

Its ops are the instructions of the machine, and its values are streams of vectors. It stands between the mapping, which
writes it, and the scheduler, which reads it: there are no cycles, no planes, no slices and no queues yet.

    "stream.program"() ({
      %x = "stream.tensor"() {tensor_name = "x", role = "argument", …} : () -> !stream.tensor<i8>
      %w = "stream.tile"() {number = 0} : () -> !stream.tensor<i8>
      %y = "stream.tensor"() {tensor_name = "t1", role = "result", …} : () -> !stream.tensor<i32>
      "stream.layer"() ({
        %0 = "stream.read"(%w) {block = 0, places = array<i64: 0, 320, 1, 1, 0>} : … -> !stream.vectors<320, i8>
        %1 = "stream.load_weights"(%0) {columns = false, first_tile = 0, tiles = 20} : … -> !stream.weights
        %2 = "stream.install_weights"(%1) : (!stream.weights) -> !stream.weights
        %3 = "stream.read"(%x) {block = 0, places = array<i64: 0, 64, 1, 1, 0>} : … -> !stream.vectors<64, i8>
        %4 = "stream.multiply"(%3, %2) : (!stream.vectors<64, i8>, !stream.weights) -> !stream.vectors<64, i32>
        %5 = "stream.accumulate"(%4) : (!stream.vectors<64, i32>) -> !stream.vectors<64, i32>
        %6 = "stream.alu"(%5) {function = "COPY_I32"} : (!stream.vectors<64, i32>) -> !stream.vectors<64, i32>
        "stream.write"(%6, %y) {block = 0, places = …, order = …} : …
      }) {origin = 0} : () -> ()
    }) {lanes = 320, …} : () -> ()

A layer is what the scheduler starts at once. Places are the vectors of a tensor, the border counted, as five numbers
for each pattern: first, count, step, repetitions, and the step between these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from xdsl.dialects.builtin import (
    BoolAttr,
    DenseArrayBase,
    IntegerAttr,
    IntegerType,
    StringAttr,
    f32,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    attr_def,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    opt_attr_def,
    opt_operand_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import IsolatedFromAbove, NoTerminator
from xdsl.utils.exceptions import VerifyException

from weft.ir.operations import WeftOp
from weft.spatial.isa import MEANINGS, Function

ROLES = ("argument", "constant", "result", "local")
ELEMENTS: dict[type[np.generic], Attribute] = {np.int8: i8, np.int32: i32, np.float32: f32}
"""The types of a machine's vectors."""


@irdl_attr_definition
class VectorsType(ParametrizedAttribute, TypeAttribute):
    """A stream of so many vectors, an element in each lane: `!stream.vectors<64, i8>`."""

    name = "stream.vectors"
    length: IntegerAttr
    element: Attribute

    @classmethod
    def of(cls, count: int, element: Attribute) -> Self:
        return cls(IntegerAttr(count, i64), element)

    @property
    def count(self) -> int:
        return self.length.value.data


@irdl_attr_definition
class WeightsType(ParametrizedAttribute, TypeAttribute):
    """The weights of a plane."""

    name = "stream.weights"


@irdl_attr_definition
class TensorType(ParametrizedAttribute, TypeAttribute):
    """Vectors in memory."""

    name = "stream.tensor"
    element: Attribute


@irdl_op_definition
class TensorOp(WeftOp):
    """A tensor that has a place in memory. `image` is height, width and channels, `packing` how rows share vectors."""

    name = "stream.tensor"
    tensor_name = attr_def(StringAttr)
    number = attr_def(IntegerAttr)
    role = attr_def(StringAttr)
    shape = attr_def(DenseArrayBase)
    image = attr_def(DenseArrayBase)
    border = attr_def(IntegerAttr)
    fill = attr_def(IntegerAttr)
    packing = attr_def(DenseArrayBase)
    order = opt_attr_def(DenseArrayBase)
    """The channel of each lane, over all blocks."""
    shift = opt_attr_def(IntegerAttr)
    first_block = opt_attr_def(IntegerAttr)
    data = opt_attr_def(IntegerAttr)
    """The number of the array that a constant holds."""
    within = opt_operand_def(TensorType)
    """A tensor that this one is a part of: its vectors from `shift` on, of its blocks from `first_block` on."""
    made = result_def(TensorType)

    def verify_(self) -> None:
        if self.role.data not in ROLES:
            raise VerifyException(f"the role of {self.tensor_name.data} is {self.role.data!r}, not {', '.join(ROLES)}")
        if (self.within is None) != (self.shift is None):
            raise VerifyException(f"{self.tensor_name.data} is part of a tensor where it has a shift, and only there")
        if len(self.image) != 3 or len(self.packing) != 6:
            raise VerifyException(f"{self.tensor_name.data} has an image of 3 numbers and a packing of 6")
        if min(numbers(self.image)) < 1 or numbers(self.packing)[0] < 1 or self.border.value.data < 0:
            raise VerifyException(f"{self.tensor_name.data} has sizes above 0")


@irdl_op_definition
class TileOp(WeftOp):
    """Weights of a whole plane that are in memory from the start: the array of this number."""

    name = "stream.tile"
    number = attr_def(IntegerAttr)
    made = result_def(TensorType)


@irdl_op_definition
class ConstantOp(WeftOp):
    """A number for each channel, in f32, in memory from the start: the array of this number."""

    name = "stream.constant"
    number = attr_def(IntegerAttr)
    made = result_def(TensorType)


@irdl_op_definition
class ReadOp(WeftOp):
    """Vectors of a tensor. Beside a product, `window` is the offset and the stride by which pixels are taken."""

    name = "stream.read"
    tensor = operand_def(TensorType)
    block = attr_def(IntegerAttr)
    places = attr_def(DenseArrayBase)
    window = opt_attr_def(DenseArrayBase)
    made = result_def(VectorsType)

    def verify_(self) -> None:
        _check_places(self.places, self.made)
        if _element(self.tensor) != _element(self.made):
            raise VerifyException(f"{_element(self.tensor)} is read as {_element(self.made)}")


@irdl_op_definition
class LoadWeightsOp(WeftOp):
    """Vectors as the rows of a plane's weights or, `columns`, as its columns; of each the lanes of some tiles."""

    name = "stream.load_weights"
    vectors = operand_def(VectorsType)
    columns = attr_def(BoolAttr)
    first_tile = attr_def(IntegerAttr)
    tiles = attr_def(IntegerAttr)
    made = result_def(WeightsType)

    def verify_(self) -> None:
        if _element(self.vectors) != i8:
            raise VerifyException(f"weights are of 8 bits, and these are {_element(self.vectors)}")


@irdl_op_definition
class InstallWeightsOp(WeftOp):
    """Weights that were loaded, as those that vectors meet."""

    name = "stream.install_weights"
    weights = operand_def(WeightsType)
    made = result_def(WeightsType)


@irdl_op_definition
class MultiplyOp(WeftOp):
    """Vectors times installed weights."""

    name = "stream.multiply"
    vectors = operand_def(VectorsType)
    weights = operand_def(WeightsType)
    made = result_def(VectorsType)

    def verify_(self) -> None:
        if not isinstance(self.weights.owner, InstallWeightsOp):
            raise VerifyException("vectors meet weights that are not installed")
        if (_element(self.vectors), _element(self.made)) != (i8, i32) or _count(self.vectors) != _count(self.made):
            raise VerifyException("a product of vectors in i8 is as many in i32")


@irdl_op_definition
class AccumulateOp(WeftOp):
    """A product, added to the sums so far where there are some."""

    name = "stream.accumulate"
    product = operand_def(VectorsType)
    sums = opt_operand_def(VectorsType)
    made = result_def(VectorsType)

    def verify_(self) -> None:
        if not isinstance(self.product.owner, MultiplyOp):
            raise VerifyException("what is accumulated is a product")
        if self.sums is not None and not isinstance(self.sums.owner, AccumulateOp):
            raise VerifyException("a product is added to sums")
        if any(each.type != self.made.type for each in self.operands):
            raise VerifyException("sums are as many as the products")


@irdl_op_definition
class AluOp(WeftOp):
    """A function of the vector unit; a constant is the same for all vectors."""

    name = "stream.alu"
    function = attr_def(StringAttr)
    taken = var_operand_def()
    made = result_def(VectorsType)

    def verify_(self) -> None:
        if self.function.data not in Function.__members__:
            raise VerifyException(f"no function of an ALU is called {self.function.data}")
        meaning = MEANINGS[Function[self.function.data]]
        if [_element(each) for each in self.taken] != [ELEMENTS[each] for each in meaning.operands]:
            types = ", ".join(str(_element(each)) for each in self.taken)
            raise VerifyException(f"{self.function.data} does not take {types}")
        if _element(self.made) != ELEMENTS[meaning.result]:
            raise VerifyException(f"{self.function.data} does not make {_element(self.made)}")
        streams = [each for each in self.taken if isinstance(each.type, VectorsType)]
        constants = [each for each in self.taken if not isinstance(each.type, VectorsType)]
        if any(_count(each) != _count(self.made) for each in streams):
            raise VerifyException("operands of an ALU are as many vectors as its result")
        if any(not isinstance(each.owner, ConstantOp) for each in constants):
            raise VerifyException("an ALU takes streams and constants")


@irdl_op_definition
class WriteOp(WeftOp):
    """Vectors into a tensor; `order` is which of the tensor's own vectors each is, the border not counted."""

    name = "stream.write"
    vectors = operand_def(VectorsType)
    tensor = operand_def(TensorType)
    block = attr_def(IntegerAttr)
    places = attr_def(DenseArrayBase)
    order = attr_def(DenseArrayBase)

    def verify_(self) -> None:
        _check_places(self.places, self.vectors)
        _check_places(self.order, self.vectors)
        if not isinstance(self.tensor.owner, TensorOp) or self.tensor.owner.role.data in ("argument", "constant"):
            raise VerifyException("what is written is a tensor of the program, no argument or constant")
        if _element(self.tensor) != _element(self.vectors):
            raise VerifyException(f"{_element(self.vectors)} is written as {_element(self.tensor)}")


@irdl_op_definition
class LayerOp(WeftOp):
    """Streams that are scheduled at once; `origin` is a line of the program's table of graph ops."""

    name = "stream.layer"
    origin = attr_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator())

    def verify_(self) -> None:
        written = {op.tensor for op in self.body.block.ops if isinstance(op, WriteOp)}
        if len(written) != 1:
            raise VerifyException(f"a layer writes one tensor, and this one {len(written)}")


@irdl_op_definition
class ProgramOp(WeftOp):
    """A whole graph as streams. `macs` counts the products that the graph asks for."""

    name = "stream.program"
    lanes = attr_def(IntegerAttr)
    macs = attr_def(IntegerAttr)
    origins = attr_def(StringAttr)
    returned = attr_def(DenseArrayBase)
    """The numbers of the tensors that are returned, in order."""
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), IsolatedFromAbove())


STREAM_OPS: list[type[Operation]] = [
    *(TensorOp, TileOp, ConstantOp, ReadOp, LoadWeightsOp, InstallWeightsOp, MultiplyOp, AccumulateOp, AluOp, WriteOp),
    *(LayerOp, ProgramOp),
]
Streams = Dialect("stream", STREAM_OPS, [VectorsType, WeightsType, TensorType])


def integers(values: Sequence[int] | np.ndarray) -> DenseArrayBase[IntegerType]:
    """Numbers as an attribute."""
    return DenseArrayBase.from_list(i64, [int(value) for value in values])


def numbers(attribute: DenseArrayBase[Any]) -> tuple[int, ...]:
    values: tuple[Any, ...] = attribute.get_values()
    return tuple(int(value) for value in values)


def places_of(values: np.ndarray) -> DenseArrayBase[IntegerType]:
    """Places as patterns: runs that go on by one step, and repetitions of a run."""
    starts: list[tuple[int, int, int]] = []
    at, steps = 0, np.diff(values)
    breaks = np.flatnonzero(np.diff(steps)) + 1
    while at < len(values):
        # The next change of step after the one that this run takes; the break belongs to the next run.
        following = int(np.searchsorted(breaks, at, side="right"))
        end = int(breaks[following]) + 1 if following < len(breaks) else len(values)
        starts.append((int(values[at]), end - at, int(steps[at]) if end - at > 1 else 1))
        at = end
    found: list[list[int]] = []
    for first, count, step in starts:
        last = found[-1] if found else None
        like = last is not None and last[1:3] == [count, step]
        if like and last is not None and last[3] == 1:
            last[3:] = [2, first - last[0]]
        elif like and last is not None and first == last[0] + last[3] * last[4]:
            last[3] += 1
        else:
            found.append([first, count, step, 1, 0])
    return integers([number for each in found for number in each])


def listed(attribute: DenseArrayBase) -> np.ndarray:
    """The places that patterns stand for."""
    found = [np.zeros(0, np.int64)]
    for first, count, step, times, jump in np.array(numbers(attribute), np.int64).reshape(-1, 5).tolist():
        found.append((first + jump * np.arange(times)[:, None] + step * np.arange(count)).reshape(-1))
    return np.concatenate(found)


def _check_places(attribute: DenseArrayBase, vectors: SSAValue) -> None:
    patterns = numbers(attribute)
    if len(patterns) % 5 or any(number < 1 for number in (*patterns[1::5], *patterns[3::5])):
        raise VerifyException("places are patterns of five numbers, the second and the fourth above 0")
    count = sum(a * b for a, b in zip(patterns[1::5], patterns[3::5], strict=True))
    if count != _count(vectors):
        raise VerifyException(f"{count} places of {_count(vectors)} vectors")


def _element(value: SSAValue) -> Attribute:
    assert isinstance(value.type, VectorsType | TensorType), value.type
    return value.type.element


def _count(value: SSAValue) -> int:
    assert isinstance(value.type, VectorsType), value.type
    return value.type.count
