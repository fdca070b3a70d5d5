"""A launch in a captured torch graph → `graph.launch`: the kernel as tile IR, specialised for what tracing knows.

What a graph cannot say (tensors that overlap and are written to, gaps in memory) is left to the operator itself.
"""

# torch leaves much of its library without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportPrivateUsage=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from xdsl.ir import BlockArgument, SSAValue

from weft.errors import UnsupportedError
from weft.forks import cached_property
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.frontends.torch.importer.checks import check_zero
from weft.frontends.torch.importer.strides import storage_order, unusual_strides
from weft.frontends.triton.compiler.compile_function import framed
from weft.frontends.triton.runtime.compiled import build_kernel
from weft.frontends.triton.runtime.compiling import arguments_of, builder_of, kernel_key, name_of
from weft.frontends.triton.runtime.ignored_options import tell_ignored
from weft.frontends.triton.runtime.jit import OPTIONS, JITFunction
from weft.frontends.triton.runtime.specialise import Described, Words, constant_key, describe
from weft.frontends.triton.runtime.stand_ins import MockTensor
from weft.frontends.triton.torch.bridge import arguments_in, grid_among, kernel_named, variant_with
from weft.frontends.triton.tuning.autotune import Autotuner, Heuristics, kernel_of
from weft.ir.attributes import to_attribute
from weft.ir.expr import Expr, Size
from weft.ir.types import Tensor, i64, tensor_of
from weft.lower.scalar_arguments import word_of
from weft.ops.base import View
from weft.ops.graph import LaunchOp
from weft.ops.layouts import StridedLayout, contiguous, view_layout
from weft.passes.place_launches import lies_as
from weft.tile import control_flow
from weft.tile.dialect import KernelOp

_NEW = frozenset(
    f"aten.{name}" if "." in name else f"aten.{name}.default"
    for name in (
        "empty.memory_format",
        "empty_like",
        "new_empty",
        "empty_strided",
        "new_empty_strided",
        "empty_permuted",
    )
)
_SOME_SIZE = 64
"""Stands for a size of which tracing knows nothing, where a kernel is measured."""
_NARROW, _WIDE = 7, (1 << 40) + 7
"""Stand for sizes that fit into 32 bits, and those that may not, where a kernel is specialised."""


def convert_launch(
    b: ImportBuilder,
    kernel: str,
    layout: str,
    tensors: Sequence[SSAValue],
    integers: Sequence[Size],
    numbers: Sequence[float],
    grid: Sequence[Size],
    changed: Sequence[int],
) -> tuple[SSAValue, ...]:
    """The new contents of the tensors that the kernel may change."""
    return _Launch(b, kernel, layout, tensors, integers, numbers, grid, changed).convert()


class _Launch:
    def __init__(
        self,
        b: ImportBuilder,
        kernel: str,
        layout: str,
        tensors: Sequence[SSAValue],
        integers: Sequence[Size],
        numbers: Sequence[float],
        grid: Sequence[Size],
        changed: Sequence[int],
    ) -> None:
        self.b, self.tensors, self.integers, self.numbers = b, tensors, integers, numbers
        self.grid, self.changed = grid, list(changed)
        self.nodes: list[fx.Node] = list(b.node.args[2])
        self.metas: list[torch.Tensor] = [node.meta["val"] for node in self.nodes]
        text = json.loads(layout)
        self.given, self.variants = text["given"], text["variants"]
        self.whole = kernel_named(kernel)
        self.function = kernel_of(self.whole)

    def convert(self) -> tuple[SSAValue, ...]:
        if self.function.is_interpreted() or self.function.pre_run_hooks:
            raise UnsupportedError("the kernel is interpreted, or has hooks")
        self._check_memory()
        number = self._chosen() if len(self.variants) > 1 else 0
        values = {**self._stand_ins(), **self.variants[number]}
        options = {name: value for name, value in values.items() if name not in self.function.arg_names}
        tell_ignored(options, self.function.__name__, on_gpu=False)
        described, words = self._described(values)
        debug = bool(values.get("debug", self.function.debug))
        op, checks = self._built(described, words, debug)
        return self._launch(op, checks, words, self.grid[3 * number : 3 * number + 3])

    # -- memory ----------------------------------------------------------------------------------------------------

    def _check_memory(self) -> None:
        storages = [meta.untyped_storage()._cdata for meta in self.metas]
        for place, (value, meta) in enumerate(zip(self.tensors, self.metas, strict=True)):
            if meta.is_complex() or meta.device.type != "cpu":
                raise UnsupportedError(f"a kernel on {meta.dtype} on the device {meta.device}")
            if place in self.changed and storages.count(storages[place]) > 1:
                raise UnsupportedError("a kernel writes to a tensor that shares its memory with another")
            try:
                storage_order(meta)
            except UnsupportedError:
                wanted = unusual_strides(meta)
                if (
                    place in self.changed
                    or wanted is None
                    or not lies_as(value, self._layout(value), StridedLayout(wanted))
                ):
                    raise

    @cached_property
    def _arguments(self) -> dict[SSAValue, torch.Tensor]:
        """What tracing recorded of the function's arguments."""
        placeholders = self.b.node.graph.find_nodes(op="placeholder")
        metas = [meta for node in placeholders if isinstance(meta := node.meta.get("val"), torch.Tensor)]
        return dict(zip(self.b.block.args, metas, strict=False))

    def _layout(self, value: SSAValue) -> StridedLayout | None:
        if isinstance(value.owner, View):
            source = self._layout(value.owner.operands[0])
            return None if source is None else view_layout(value.owner, source)
        strides = unusual_strides(self._arguments[value]) if isinstance(value, BlockArgument) else None
        return StridedLayout(strides) if strides else contiguous(tensor_of(value.type))

    # -- the choice of a config ------------------------------------------------------------------------------------

    def _chosen(self) -> int:
        """The variant that tuning chooses: by what it measured before, or now, on tensors of the sizes traced with."""
        with unset_fake_temporarily():
            tensors = [_example(meta) for meta in self.metas]
            integers = [_hint(value) for value in self.b.node.args[3]]
            given = arguments_in(self.given, tensors, integers, self.numbers)
            grid = grid_among(self.variants, [_hint(side) for side in self.b.node.args[5]])
            return variant_with(self.variants, _resolved(self.whole, given, grid))

    # -- specialising ----------------------------------------------------------------------------------------------

    def _stand_ins(self) -> dict[str, Any]:
        """The arguments by name, with something in place of tensors and of sizes that are not known."""
        mocks = [MockTensor(meta.dtype) for meta in self.metas]
        sizes = {"integer": _NARROW, "long": _WIDE}
        values = arguments_in(self.given, mocks, self.integers, self.numbers)
        for name, kind, _ in self.given:
            if isinstance(values[name], Expr):
                values[name] = sizes[kind]
        return values

    def _described(self, values: dict[str, Any]) -> tuple[list[Described], list[tuple[str, Any]]]:
        """What the kernel is compiled for, and the words that it takes: tensors by their places, or numbers."""
        places = {name: (kind, place) for name, kind, place in self.given}
        wrong = [name for name in values if name not in self.function.arg_names and name not in OPTIONS]
        wrong += [name for name in self.function.arg_names if name not in values]
        if wrong:
            raise UnsupportedError(f"arguments that do not fit the parameters: {', '.join(wrong)}")
        described: list[Described] = []
        words: list[tuple[str, Any]] = []
        for parameter in self.function.params:
            value = values[parameter.name]
            numbers: Words = []
            if parameter.is_constexpr:
                key = constant_key(value)
            else:
                key = parameter.classifier(value)(value, numbers, [])
            described.append(_unaligned(describe(parameter, value, key)))
            kind, place = places.get(parameter.name, ("constant", 0))
            if kind == "tensor":
                words.append(("tensor", place))
                continue
            if kind in ("integer", "long") and numbers:
                numbers = [self.integers[place]]  # type: ignore[list-item]
            words += [(word.dtype.name, n) for word, n in zip(described[-1].words, numbers, strict=True)]
        return described, words

    def _built(
        self, described: list[Described], words: Sequence[tuple[str, Any]], debug: bool
    ) -> tuple[KernelOp, tuple[tuple[str, str], ...]]:
        """The kernel as tile IR, made once for all launches that it is the same for."""
        groups = tuple(place for kind, place in words if kind == "tensor")
        arguments = arguments_of(described, groups)
        key = kernel_key(self.function, described, arguments, debug, "graph")
        known = self.function.launcher.tiles
        if key is None or key not in known:
            with framed(self.function):
                op, checks = build_kernel(builder_of(self.function, described), arguments, name_of(self.function))
            digest = hashlib.sha256((key or str(op)).encode()).hexdigest()[:12]
            op.attributes["sym_name"] = to_attribute(f"{name_of(self.function)}_{digest}")
            if key is None:
                return op, checks
            known[key] = op, checks
        op, checks = known[key]
        return op.clone(), checks

    # -- the op ----------------------------------------------------------------------------------------------------

    def _launch(
        self, op: KernelOp, checks: Sequence[tuple[str, str]], words: Sequence[tuple[str, Any]], grid: Sequence[Size]
    ) -> tuple[SSAValue, ...]:
        b = self.b
        fresh = [place for place in self.changed if str(self.nodes[place].target) in _NEW]
        read = [place for place in range(len(self.tensors)) if place not in fresh]
        operands = [self.tensors[place] for place in read]
        results: list[Tensor] = [tensor_of(self.tensors[place].type) for place in self.changed]
        tied = [-1 if place in fresh else read.index(place) for place in self.changed]
        strides = tuple(unusual_strides(self.metas[place]) for place in read)
        result_strides = tuple(unusual_strides(self.metas[place], exact=True) for place in self.changed)
        arguments: list[tuple[str, Any]] = []
        for kind, value in words:
            if kind != "tensor":
                word_of(kind, value)  # a number that is too large for its type is found here
                arguments.append((kind, value))
            elif value in self.changed:
                arguments.append(("result", self.changed.index(value)))
            else:
                arguments.append(("operand", read.index(value)))
        if checks:
            operands.append(b.emit("full", value=0, shape=(1,), dtype=i64))
            arguments.append(("result", len(results)))
            tied.append(len(operands) - 1)
            results.append(Tensor(i64, (1,)))
            strides, result_strides = (*strides, None), (*result_strides, None)
        else:
            arguments.append(("i64", 0))
        arguments += [("i64", side) for side in reversed(grid)]
        made = LaunchOp.make(op, operands, results, arguments, tied, grid, b.location)
        if any(strides):
            made.attributes["arg_strides"] = to_attribute(strides)
        if any(result_strides):
            made.attributes["result_strides"] = to_attribute(result_strides)
        if checks or any(isinstance(each, control_flow.PrintOp) for each in op.walk()):
            made.attributes["pure"] = to_attribute(False)
        b.insert(made)
        for number, (message, location) in enumerate(checks, 1):
            text = f"{name_of(self.function)}: device_assert failed: {message}"
            check_zero(b, made.results[-1], number, text, location)
        return tuple(made.results[: len(self.changed)])


def _unaligned(described: Described) -> Described:
    """Where a tensor begins is not known before a call."""
    words = tuple(replace(word, divisibility=1) if word.pointer else word for word in described.words)
    return replace(described, words=words)


def _resolved(kernel: Any, given: dict[str, Any], grid: Any) -> dict[str, Any]:
    """What heuristics and tuning add to what is given."""
    match kernel:
        case Heuristics():
            added = kernel.computed(given)
            return {**added, **_resolved(kernel.fn, {**given, **added}, grid)}
        case Autotuner():
            chosen = kernel.chosen((), grid, given).all_kwargs()
            return {**chosen, **_resolved(kernel.fn, {**given, **chosen}, grid)}
        case _:
            assert isinstance(kernel, JITFunction)
            return {}


def _hint(value: Any) -> int:
    """A size as a number: what tracing saw."""
    value = value.meta["val"] if isinstance(value, fx.Node) else value
    if not isinstance(value, torch.SymInt):
        return int(value)
    hint = value.node.hint
    return _SOME_SIZE if hint is None else int(hint)


def _example(meta: torch.Tensor) -> torch.Tensor:
    """A tensor like the one that tracing saw. Integers are 0: they may be places in other tensors."""
    shape, strides = [[_hint(size) for size in sizes] for sizes in (meta.shape, meta.stride())]
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if 0 not in shape else 0
    memory = torch.zeros(reach, dtype=meta.dtype)
    if meta.dtype.is_floating_point and meta.dtype.itemsize > 1:
        memory.normal_()
    return memory.as_strided(shape, strides)
