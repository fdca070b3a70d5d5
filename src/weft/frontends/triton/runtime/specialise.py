"""What a compiled kernel assumes of its arguments: types, the value 1, multiples of 16, known values, tensors apart.

A launch goes over the arguments once: each gives a part of the key under which the compiled kernel is kept, and the
words that are handed to it. Only when there is no kernel for a key yet is the argument described in full (`describe`).
"""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields, is_dataclass
from operator import index
from typing import Any, TypeAlias

import numpy as np

from weft.frontends.triton.errors import KernelTypeError
from weft.frontends.triton.language.constants import base_type, constexpr, constexpr_type, unwrap
from weft.frontends.triton.language.types import OF_STORED, block_type, dtype, pointer_type, tuple_type
from weft.frontends.triton.runtime.memory_places import READ_ONLY, address_of, place_of
from weft.ir.types import DType, dtype_of_numpy

Words: TypeAlias = list["int | float"]
Ranges: TypeAlias = "list[tuple[int, int]]"
"""Where memory begins and ends."""
Classify: TypeAlias = Callable[[Any, Words, Ranges], Hashable]
"""Gives the part of the key; appends the argument's words, and the memory in which its tensors lie."""

ALIGNMENT = 16

ANNOTATIONS = {
    **{"bool": "int1", "u1": "int1", "i1": "int1", "int": "int32", "float": "fp32", "half": "fp16", "double": "fp64"},
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"},
    **{name: name for name in ("int1", "fp16", "bf16", "fp32", "fp64")},
    **{"float8e4nv": "fp8e4nv", "float8e5": "fp8e5", "float8e4b15": "fp8e4b15", "float8_e4m3fn": "fp8e4nv"},
    **{"float8_e5m2": "fp8e5", "float8e4b8": "fp8e4b8", "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16"},
    **{name: name for name in ("fp8e4nv", "fp8e5", "fp8e4b15", "fp8e4b8", "fp8e5b16")},
}
"""Names that a parameter's or a tensor's type may go by."""


def _short(name: str) -> str:
    return "u1" if name == "int1" else name.replace("uint", "u").replace("int", "i")


SHORT_NAMES = {
    **{each: _short(name) for each, name in ANNOTATIONS.items()},
    **{"uint1": "u1", "void": "void", "float8e5b16": "fp8e5b16"},
}
"""The shortest of them: what Triton writes in signatures."""


@dataclass(frozen=True)
class Word:
    """One word that a kernel takes: a number, or the address of a tensor."""

    dtype: DType
    pointer: bool = False
    divisibility: int = 1
    read_only: bool = field(default=False, repr=False)
    """Whether it points to memory that must not be written to: a kernel that does so is refused."""


@dataclass(frozen=True)
class Described:
    """An argument in full: its type in the language, and what is known of its words."""

    type: base_type
    words: tuple[Word, ...] = ()


class Parameter:
    """A parameter of a kernel, with how its arguments are to be taken."""

    def __init__(self, number: int, parameter: inspect.Parameter, specialise: bool, align: bool) -> None:
        self.num = number
        self.name = parameter.name
        self.default = parameter.default
        self.kind = parameter.kind
        self.annotation = _annotation(parameter.annotation)
        self.is_constexpr = "constexpr" in self.annotation
        self.is_const = not self.is_constexpr and "const" in self.annotation
        self.do_not_specialize = not specialise
        self.do_not_specialize_on_alignment = not align
        self.scalar = ANNOTATIONS.get(self.annotation)
        """The type of the language that the author gave a number, if he did."""
        known = _Numbers(specialise, align)
        self.classifiers: dict[type, Classify] = {}
        self.numbers = known

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    @property
    def annotation_type(self) -> str:
        """The type that the author gave a number, or nothing."""
        return self.scalar or ""

    def classifier(self, value: Any) -> Classify:
        """How an argument of this Python type is classified; found once for each type."""
        found = self.classifiers.get(type(value))
        if found is None:
            found = self.classifiers[type(value)] = self._classifier(value)
        return found

    def _classifier(self, value: Any) -> Classify:
        if self.is_constexpr or isinstance(value, constexpr):
            return _constant
        if self.scalar is not None and isinstance(value, int | float):
            return _Annotated(self.scalar, self.numbers)
        try:
            return classifier_of(value, self.numbers)
        except KernelTypeError as error:
            raise KernelTypeError(f"argument {self.name}: {error.message}", hint=error.hint) from error


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty or annotation is None:
        return ""
    if isinstance(annotation, str):
        return annotation.strip().removeprefix("tl.")
    if isinstance(annotation, dtype):
        return str(annotation)
    return str(getattr(annotation, "__name__", annotation))


class _Numbers:
    """How integers are classified: which facts about their values go into the key."""

    def __init__(self, specialise: bool, align: bool) -> None:
        self.specialise, self.align = specialise, align

    def integer(self, value: int, words: Words, storages: Ranges) -> Hashable:
        if self.specialise:
            if value == 1:
                return "1"
            if self.align and value % ALIGNMENT == 0:
                words.append(value)
                return "i32:16" if -0x80000000 <= value <= 0x7FFFFFFF else _wide(value) + ":16"
        words.append(value)
        return "i32" if -0x80000000 <= value <= 0x7FFFFFFF else _wide(value)

    def tensor(self, value: Any, words: Words, storages: Ranges) -> Hashable:
        address = address_of(value)
        words.append(address)
        storages.append(_range_of_storage(value))
        return value.dtype, self.align and address % ALIGNMENT == 0, place_of(value)

    def array(self, value: np.ndarray, words: Words, storages: Ranges) -> Hashable:
        address: int = value.__array_interface__["data"][0]
        words.append(address)
        storages.append(_range_of_array(value))
        return value.dtype, self.align and address % ALIGNMENT == 0, value.flags.writeable or READ_ONLY

    def pointer(self, value: Any, words: Words, storages: Ranges) -> Hashable:
        """Anything with an address and a type of elements: wrapped tensors, mock tensors."""
        address = value.data_ptr()
        words.append(address)
        base = getattr(value, "base", None)
        owned = hasattr(base, "untyped_storage")
        # One byte where the size is not known; what stands for a tensor in a warm-up lies nowhere.
        storages.append(_range_of_storage(base) if owned else (address, address + 1 if address else 0))
        place = place_of(base) if owned else True
        return value.dtype, self.align and address % ALIGNMENT == 0, place

    def items(self, value: tuple[Any, ...], words: Words, storages: Ranges) -> Hashable:
        return type(value), tuple([classifier_of(item, self)(item, words, storages) for item in value])

    def descriptor(self, value: Any, words: Words, storages: Ranges) -> Hashable:
        base = classifier_of(value.base, self)(value.base, words, storages)
        numbers = [_whole(number, "sizes and strides of a descriptor") for number in (*value.shape, *value.strides)]
        words.extend(numbers)
        sizes = tuple(not number % ALIGNMENT for number in numbers)
        return "descriptor", base, tuple(value.block_shape), value.padding, sizes


def _whole(value: Any, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise KernelTypeError(f"{what} are integers, not {value!r}") from None


def _wide(value: int) -> str:
    if -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        return "i64"
    if 0 <= value <= 0xFFFFFFFFFFFFFFFF:
        return "u64"
    raise KernelTypeError(f"{value} does not fit into 64 bits")


def _range_of_storage(value: Any) -> tuple[int, int]:
    storage = value.untyped_storage()
    start: int = storage.data_ptr()
    return start, start + storage.nbytes()


def _range_of_array(value: np.ndarray) -> tuple[int, int]:
    base: Any = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    start: int = base.__array_interface__["data"][0]
    if not base.size:
        return start, start
    steps = [(size - 1) * stride for size, stride in zip(base.shape, base.strides, strict=True)]
    low, high = sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
    return start + low, start + high + base.itemsize


def classifier_of(value: Any, numbers: _Numbers) -> Classify:
    """How an argument is classified that is not a constexpr by its parameter."""
    kind = type(value)
    if value is None or isinstance(value, constexpr | dtype | str):
        return _constant
    if kind is bool or isinstance(value, np.bool_):
        return _boolean
    if isinstance(value, int | np.integer):
        return numbers.integer
    if isinstance(value, float | np.floating):
        return _float
    if isinstance(value, tuple):
        return numbers.items
    if isinstance(value, np.ndarray):
        return numbers.array
    if hasattr(value, "block_shape") and hasattr(value, "base"):
        return numbers.descriptor
    if hasattr(value, "untyped_storage") and hasattr(value, "data_ptr"):
        return numbers.tensor
    if hasattr(value, "data_ptr") and hasattr(value, "dtype"):
        return numbers.pointer
    if callable(value):
        return _constant
    raise KernelTypeError(
        f"a kernel cannot take a {kind.__qualname__}",
        hint="pass tensors, NumPy arrays, numbers, None, or tuples of them; mark what is known as tl.constexpr",
    )


def _boolean(value: Any, words: Words, storages: Ranges) -> Hashable:
    words.append(int(value))
    return "u1"


def _float(value: Any, words: Words, storages: Ranges) -> Hashable:
    words.append(float(value))
    return "fp32"


def _constant(value: Any, words: Words, storages: Ranges) -> Hashable:
    return constant_key(value)


def constant_key(value: Any) -> Hashable:
    """A key for a value known at compile time: the same only where the value and its type are."""
    value = unwrap(value)
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, tuple | list):
        return type(value), tuple(constant_key(item) for item in value)
    if isinstance(value, int | str | dtype) or value is None:
        return type(value), value
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple(constant_key(getattr(value, each.name)) for each in fields(value))
    try:
        hash(value)
    except TypeError:
        return type(value), repr(value)
    # What is equal to others may hold 1 in place of True: the text tells them apart.
    return (type(value), value) if type(value).__eq__ is object.__eq__ else (type(value), value, repr(value))


class _Annotated:
    """A number whose type the author wrote down: the value says nothing about the type."""

    def __init__(self, name: str, numbers: _Numbers) -> None:
        self.name = name
        self.integer = name.startswith(("int", "uint")) and name != "int1"
        self.specialise = numbers.specialise and self.integer
        self.align = numbers.align

    def __call__(self, value: Any, words: Words, storages: Ranges) -> Hashable:
        words.append(_whole(value, f"arguments of type {self.name}") if self.integer else value)
        return f"{self.name}:16" if self.specialise and self.align and value % ALIGNMENT == 0 else self.name


def alias_groups(storages: Ranges) -> tuple[int, ...] | None:
    """Which tensors share memory: a group number for each, or None where each has its own."""
    end = -1
    for start, stop in sorted(storages):
        if start < end:
            return _grouped(storages)
        end = stop
    return None


def _grouped(storages: Ranges) -> tuple[int, ...]:
    heads: dict[int, int] = {}
    head, end = -1, -1
    for number in sorted(range(len(storages)), key=storages.__getitem__):
        start, stop = storages[number]
        if start >= end:
            head = number
        heads[number] = head
        end = max(end, stop)
    groups: dict[int, int] = {}
    return tuple(groups.setdefault(heads[number], len(groups)) for number in range(len(storages)))


# -- in full -------------------------------------------------------------------------------------------------------


def describe(parameter: Parameter, value: Any, key: Hashable) -> Described:
    """An argument in full, from the part of the key that it gave."""
    try:
        if parameter.is_constexpr:
            return Described(constexpr_type(unwrap(value)))
        return _describe(value, key, parameter)
    except KernelTypeError as error:
        raise KernelTypeError(f"argument {parameter.name}: {error.message}", hint=error.hint) from error


def _describe(value: Any, key: Hashable, parameter: Parameter) -> Described:
    match key:
        case "1":
            return Described(constexpr_type(1))
        case str():
            name, _, aligned = key.partition(":")
            scalar = dtype(ANNOTATIONS[name])
            return Described(scalar, (Word(scalar.stored, divisibility=ALIGNMENT if aligned else 1),))
        case ("descriptor", _, _, _, _):
            return _describe_descriptor(value, key, parameter)
        case (kind, tuple() as keys) if isinstance(kind, type) and isinstance(value, tuple):
            items = [_describe(item, part, parameter) for item, part in zip(value, keys, strict=True)]
            names = getattr(kind, "_fields", None)
            return Described(tuple_type([item.type for item in items], names), sum((i.words for i in items), ()))
        case (element, bool() as aligned, bool() | int() as place):
            device = getattr(getattr(value, "base", value), "device", None)
            if place < 0 and getattr(device, "type", None) != "cuda":
                raise KernelTypeError(f"the tensor is on {device}", hint="move it to the CPU: tensor.cpu()")
            language = element_type(element)
            divisibility = ALIGNMENT if aligned else 1
            word = Word(language.stored, True, divisibility, read_only=place == READ_ONLY)
            return Described(pointer_type(language, const=parameter.is_const), (word,))
        case _:
            return Described(constexpr_type(unwrap(value)))


def _describe_descriptor(value: Any, key: Any, parameter: Parameter) -> Described:
    from weft.frontends.triton.language.descriptors import tensor_descriptor_type

    base = _describe(value.base, key[1], parameter)
    assert isinstance(base.type, pointer_type)
    rank = len(value.block_shape)
    # Rows of what a descriptor is made of are a multiple of 16 bytes apart.
    apart = max(1, ALIGNMENT // base.type.element_ty.stored.bytes)
    kinds = [("int32", 1)] * rank + [("int64", apart)] * (rank - 1) + [("int64", 1)]
    pairs = zip(kinds, key[4], strict=True)
    sizes = [Word(dtype(name).stored, divisibility=ALIGNMENT if even else least) for (name, least), even in pairs]
    made = tensor_descriptor_type(block_type(base.type.element_ty, list(value.block_shape)))
    made.padding = value.padding
    return Described(made, (*base.words, *sizes))


def element_type(element: Any) -> dtype:
    """The language's type of the elements of a tensor: of a torch, NumPy or own type."""
    if isinstance(element, dtype):
        return element
    if isinstance(element, np.dtype):
        return OF_STORED[dtype_of_numpy(element)]
    name = ANNOTATIONS.get(str(element).removeprefix("torch."))
    if name is None:
        raise KernelTypeError(f"tensors of {element} cannot be passed to a kernel")
    return dtype(name)
