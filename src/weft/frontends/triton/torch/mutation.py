"""What torch asks of a kernel in `wrap_triton` and `triton_op`: which tensors it writes. Told by Weft, not by TTIR.

torch makes Triton's own IR of a kernel to find that out, and takes all tensors as written where it cannot. Kernels of
Weft are looked at as tile IR, others as before.
"""

# torch leaves what its own compilers use without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import WeftError
from weft.frontends.triton.runtime.jit import JITFunction, KernelInterface
from weft.frontends.triton.runtime.stand_ins import MockTensor

_MODULE = "torch._higher_order_ops.triton_kernel_wrap"
_NAMES = ("identify_accessed_tensors", "identify_mutated_tensors")
"""What torch calls the question: it asks what is read too since 2.12."""

_SOME_SIZE = 3
"""Stands for a symbolic size: no multiple of anything, and not 1."""


def teach_torch() -> None:
    """Have torch ask Weft about Weft's kernels, where torch is loaded."""
    if "torch" not in sys.modules:
        return
    try:
        module = importlib.import_module(_MODULE)
    except ImportError:
        return
    for name in _NAMES:
        asked: Callable[..., Any] | None = getattr(module, name, None)
        if asked is not None and not hasattr(asked, "without_weft"):
            setattr(module, name, _answering(module, name, asked))


def _answering(module: Any, name: str, asked: Callable[..., Any]) -> Callable[..., Any]:
    def answer(kernel: Any, kwargs: dict[str, Any], *more: Any) -> Any:
        if not isinstance(kernel, KernelInterface):
            return asked(kernel, kwargs, *more)
        tensors = [key for key, value in kwargs.items() if _element(value) is not None]
        changed = written_tensors(kernel, kwargs)
        written = [key for key in tensors if key in changed]
        return written if name == "identify_mutated_tensors" else _accesses(module, tensors, written)

    vars(answer)["without_weft"] = asked
    return answer


def _accesses(module: Any, read: list[str], written: list[str]) -> Any:
    dependencies = importlib.import_module("torch._inductor.dependencies")
    ordered: Any = importlib.import_module("torch.utils._ordered_set").OrderedSet
    reads, writes = (ordered(map(dependencies.StarDep, names)) for names in (read, written))
    found = dependencies.ReadWrites(reads=reads, writes=writes, index_exprs=ordered())
    return module.TensorAccesses(found, False)


def written_tensors(kernel: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The parameters through which a launch with these arguments writes; if that cannot be told, those that may be."""
    from weft.frontends.triton.compiler.stored_parameters import stored_parameters

    values, function = _chosen(kernel, given)
    try:
        return _by_tile(function, {name: _stand_in(values[name]) for name in function.arg_names if name in values})
    except (WeftError, TypeError, AttributeError):
        return stored_parameters(function)


def _chosen(kernel: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], JITFunction]:
    """The arguments with those that tuning and heuristics add: the first config stands for all."""
    from weft.frontends.triton.tuning.autotune import Autotuner, Heuristics

    values = dict(given)
    while not isinstance(kernel, JITFunction):
        if isinstance(kernel, Autotuner):
            values |= kernel.configs[0].kwargs
        elif isinstance(kernel, Heuristics):
            values |= kernel.computed(values)
        kernel = kernel.fn
    return values, kernel


def _by_tile(function: JITFunction, values: dict[str, Any]) -> tuple[str, ...]:
    from weft.forks import COMPILING
    from weft.frontends.triton.runtime.compiled import build_kernel
    from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, name_of
    from weft.frontends.triton.runtime.written_arguments import written_arguments

    described, groups = function.launcher.describe((), values)
    with COMPILING:
        op, _ = build_kernel(builder_of(function, described), arguments_of(described, groups), name_of(function))
    words = [name for name, each in zip(function.arg_names, described, strict=True) for _ in each.words]
    return tuple(dict.fromkeys(words[number] for number in written_arguments(op)))


def _element(value: Any) -> Any:
    """The type of the elements of a tensor, or of what stands for one in Inductor."""
    if hasattr(value, "data_ptr") or (hasattr(value, "untyped_storage") and hasattr(value, "dtype")):
        return value.dtype
    return value.get_dtype() if hasattr(value, "get_dtype") else None


def _stand_in(value: Any) -> Any:
    element = _element(value)
    if element is not None:
        return MockTensor(element)
    return _SOME_SIZE if type(value).__name__ == "SymInt" else value
