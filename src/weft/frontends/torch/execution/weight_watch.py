"""Whether weights are those of the last call: one native call looks at all of them, where Python would ask each.

A model has hundreds of weights, and asking torch for the address and the count of changes of one takes as long as a
small kernel runs. What is asked here is what Python asks: the object, its address, and how often it was changed. The
library's functions take a tensor as the address of a word that holds its implementation's address; where they are
missing, or say something else than Python, Python goes on asking.
"""

# Where a tensor's implementation lies, and the count of changes, have no public names.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from weft.backends.cpu.target import compile_object, host_target
from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V, i64
from weft.forks import compiled_once
from weft.runtime.linking import link

_FUNCTION = "weft_weight_differences"
_ADDRESS, _VERSION = "aoti_torch_get_data_ptr", "_ZNK2at10TensorBase8_versionEv"
_FEWEST = 8
"""Weights from which on a call of its own is quicker."""

Unchanged: TypeAlias = Callable[[Sequence[torch.Tensor]], bool]
"""Whether a list holds the very weights, where and as they were; False if it is not sure."""


def watch_weights(weights: Sequence[torch.Tensor]) -> Unchanged | None:
    """What tells these weights from others; None where there is nothing quicker than to ask each."""
    if len(weights) < _FEWEST or any(type(each) not in (torch.Tensor, torch.nn.Parameter) for each in weights):
        return None
    if any(each.is_inference() for each in weights):
        return None  # torch does not count their changes
    differences = _differences()
    if differences is None:
        return None
    count, gone = len(weights), list[Any]()
    # An address is a tensor's own for as long as it lives: once one has gone, none is believed any more.
    references = [weakref.ref(each, gone.append) for each in weights]
    words = np.array(
        [
            *map(id, weights),
            *(each._cdata for each in weights),
            *(each.data_ptr() for each in weights),
            *(each._version for each in weights),
        ],
        np.int64,
    )
    table = words.ctypes.data

    def are_unchanged(given: Sequence[torch.Tensor]) -> bool:
        known = given.__class__ is list and len(given) == count and not gone
        return known and not differences(id(given), table, count)

    are_unchanged.kept = words, references  # pyright: ignore[reportFunctionMemberAccess]
    return are_unchanged if are_unchanged(list(weights)) else None


@compiled_once
def _differences() -> Callable[[int, int, int], int] | None:
    """`i64 differences(ptr list, ptr table, i64 count)`: the bits in which a list's tensors differ from a table.

    The table holds the objects' addresses, then those of their implementations, of their memory, and their versions.
    """
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        functions = [library[_ADDRESS], library[_VERSION], ctypes.pythonapi["PyList_GetItem"]]
    except (OSError, AttributeError):  # another system, or another torch
        return None
    target = host_target()
    module = Module(target.triple)
    b = Function(module, _FUNCTION, [("ptr", "list"), ("ptr", "table"), ("i64", "count")], result="i64")
    given, table, count = b.args
    at = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    address_of, version_of, item_of = (b.emit("ptr", f"inttoptr {i64(each)} to ptr") for each in at)
    found, place = b.alloca("i64", 1, 8), b.alloca("i64", 1, 8)
    b.store(i64(0), found, 8)

    def compare(value: V, part: int, index: V) -> None:
        kept = b.load("i64", b.gep(table, b.add(b.mul(count, i64(part)), index), "i64"), 8)
        b.store(b.binary("or", b.load("i64", found, 8), b.binary("xor", value, kept)), found, 8)

    with b.loop(i64(0), count, i64(1)) as index:
        item = b.emit("ptr", f"call ptr {item_of.name}({given}, {index})")
        compare(b.emit("i64", f"ptrtoint {item} to i64"), 0, index)
    # Other objects' implementations may be gone: theirs are not looked at.
    with b.when(b.icmp("eq", b.load("i64", found, 8), i64(0))), b.loop(i64(0), count, i64(1)) as index:
        tensor = b.gep(table, b.add(count, index), "i64")
        failed = b.emit("i32", f"call i32 {address_of.name}({tensor}, {place})")
        compare(b.load("i64", place, 8), 2, index)
        b.store(b.binary("or", b.load("i64", found, 8), b.convert("zext", failed, "i64")), found, 8)
        compare(b.emit("i64", f"call i64 {version_of.name}({tensor})"), 3, index)
    b.finish(b.load("i64", found, 8))
    code = link(compile_object(str(module), target), [_FUNCTION])
    word = ctypes.c_int64
    function: Any = ctypes.PYFUNCTYPE(word, word, word, word)(code[_FUNCTION])  # it holds the interpreter's lock
    function.library = code, library  # the function lives as long as the libraries that it calls
    return function
