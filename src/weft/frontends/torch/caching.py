"""Compiled graphs on disk: found by the text of the captured graph, before anything is imported.

The key holds all that changes the code: the graph with types, strides and the contents of its constants, the
configuration, the versions of everything that takes part, and the processor.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false, reportPrivateUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import fx
from torch._library.fake_class_registry import FakeScriptObject
from torch._subclasses.fake_tensor import unset_fake_temporarily

import weft.backends.cpu.target as cpu_target
from weft.backends.nvidia.code import DeviceCode
from weft.config import Config
from weft.errors import ParseError
from weft.frontends.torch.importer.aliasing import shared_arguments
from weft.frontends.torch.importer.checks import Check
from weft.frontends.torch.importer.donated_placeholders import DONATED
from weft.frontends.torch.importer.encoding import operator_named
from weft.frontends.torch.importer.facts import size_facts
from weft.frontends.torch.importer.float_sizes import FloatFormula
from weft.frontends.torch.importer.imported_graph import Calling, Number, Passed, Returned, Viewed
from weft.frontends.torch.importer.sizes import Source, SymbolReader, SymbolRule
from weft.frontends.torch.locations import location_of
from weft.frontends.torch.report import Fallback
from weft.ir.expr import Expr, symbols_of
from weft.ir.locations import line_of
from weft.lower.steps import CallStep, Plan, all_steps
from weft.runtime import stored_programs
from weft.runtime.blas import blas_symbols
from weft.runtime.cache import cache_key
from weft.runtime.codec import table
from weft.runtime.single_flight import Flight
from weft.runtime.sources import source_digest, versions

T = TypeVar("T")

_CLASSES = table(
    *(Calling, Returned, Viewed, Passed, Number, Check, Fallback, SymbolReader, SymbolRule, Source, FloatFormula)
)


def graph_key(
    module: fx.GraphModule, name: str, config: Config, frozen: Iterable[int] = (), target: str = ""
) -> str | None:
    """The key of a captured graph, or None where it holds something that has no stable text.

    Which arguments are `frozen` is part of it; their contents are not: no code depends on them. Nor are lines of the
    user's program, unless the code is to state them. `target` is what code is made for, by default this machine.
    """
    lines: list[str] = [name, f"frozen {sorted(frozen)}", f"donated {module.meta.get(DONATED, ())}"]
    for node in module.graph.nodes:
        if node.op == "get_attr":
            described = _constant(module, str(node.target))
            if described is None:
                return None
            lines.append(described)
            continue
        if node.op == "call_function" and not _has_stable_name(node.target):
            return None
        lines.append(
            f"{node.name} {node.op} {node.target} {node.args} {node.kwargs} {_described(node.meta.get('val'))}"
        )
        if config.debug_lines:
            lines.append(f"line {line_of(location_of(node))}")
    lines.extend(size_facts(module))
    lines.extend(shared_arguments(module.graph))
    target = target or repr(cpu_target.host_target())
    numbers = str(torch.get_default_dtype())
    made_with = (*versions(), torch.__version__, numbers, f"blas {sorted(blas_symbols())}")
    return cache_key("torch graph", "\n".join(lines), config.key(), made_with, target, source_digest())


def _has_stable_name(target: Any) -> bool:
    if isinstance(target, torch._ops.OpOverload) or getattr(target, "__module__", "") in ("_operator", "math"):
        return True
    return getattr(target, "_name", None) == "with_effects"  # whose operator is among its arguments


def _constant(module: fx.GraphModule, path: str) -> str | None:
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor) or value.is_sparse or value.is_quantized:
        return None
    # Tracing is still under way, which would make a fake tensor of whatever is computed here.
    with unset_fake_temporarily(), torch.no_grad():
        content = value.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{path} {_described(value)} {hashlib.sha256(content).hexdigest()}"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = f"{value.dtype} {tuple(value.shape)} {value.layout} {value.device}"
        if value.layout != torch.strided:
            return text
        read = f"{' conjugated' * value.is_conj()}{' negated' * value.is_neg()}"
        return f"{text} {value.stride()} from {value.storage_offset()}{read}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(_described(item) for item in value)}]"
    if isinstance(value, FakeScriptObject):
        return "object"  # whose address is another one in every process
    return str(value)


def lead(key: str, load: Callable[[], T | None]) -> tuple[Flight, T | None]:
    """The right to compile a graph, or what `load` gives of one that another process has compiled meanwhile."""
    return stored_programs.disk_cache().lead(key, load)


def load(key: str) -> tuple[Plan, bytes | DeviceCode, Calling] | None:
    """A stored graph; what cannot be read, or run, is as good as not stored."""
    return stored_programs.load(key, Calling, _CLASSES, _check_calling)


def _check_calling(calling: Calling, plan: Plan) -> None:
    """Raise where the call cannot give the plan what it needs, or wants of it what it does not have."""
    known: set[str] = set()
    for rule in calling.symbols.rules:
        if rule.formula is not None:
            rule.formula.check()
        if rule.scale == 0 or not rule.needed <= known:
            raise ParseError(f"a stored rule for {rule.name} cannot be followed")
        known.add(rule.name)
    expected = len(plan.inputs) + len(plan.fixed)
    tensors = len(calling.arguments) + len(calling.constants)
    views = [output for output in calling.outputs if isinstance(output, Viewed)]
    bases = [output.base if isinstance(output, Viewed) else output for output in calling.outputs]
    results = [base.result for base in bases if isinstance(base, Returned)] + [result for _, result in calling.mutated]
    arguments = [base.argument for base in bases if isinstance(base, Passed)] + [
        number for number, _ in calling.mutated
    ]
    numbers = [output.value for output in calling.outputs if isinstance(output, Number)]
    named = {name for view in views for name in view.symbols}
    for number in numbers:
        if isinstance(number, FloatFormula):
            number.check()
            named |= number.symbols
        elif isinstance(number, Expr):
            named |= symbols_of(number)
    if (
        tensors != expected
        or not {*plan.symbols, *named} <= known
        or any(result not in range(len(plan.outputs)) for result in results)
        or any(place not in range(tensors) for place in calling.resolved_arguments)
        or any(number < 0 for number in (*arguments, *calling.arguments))
        or any(rule.source.argument < 0 for rule in calling.symbols.rules)
    ):
        raise ParseError("a stored call does not fit its plan")
    for step in all_steps(plan.steps):
        if isinstance(step, CallStep):
            operator_named(step.target)
            if not {"args", "kwargs", "results"} <= set(json.loads(step.arguments)):
                raise ParseError(f"a stored call of {step.target} without arguments")
