"""`weft opt --level nvidia` and `--level ptx`: passes over the text of kernels, for a GPU that need not be there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from weft.backends.nvidia.compile import emit_llvm
from weft.backends.nvidia.ir.kernel_passes import FirstThatMatches, KernelPass, adopt
from weft.backends.nvidia.ir.programmatic_launch import mark_fixed
from weft.backends.nvidia.ir.registry import verify_kernels
from weft.backends.nvidia.plan.deduplicate_kernels import deduplicate_kernels
from weft.backends.nvidia.plan.fuse_horizontally import fuse_horizontally
from weft.backends.nvidia.plan.fuse_small_kernels import fuse_small_kernels
from weft.backends.nvidia.target import NvidiaTarget, llvm_to_ptx
from weft.diagnostics import nearest
from weft.lower.constants import programs_among
from weft.lower.machine import machine_of
from weft.lower.plan import build_plan
from weft.passes.registry import PASSES
from weft.pipelines import annotate, nvidia_kernel_passes
from weft.tile.dialect import KernelOp
from weft.tile.text import functions_of, kernels_of, print_program, verify_program
from weft.tools.terminal import UsageError

LEVELS = ("nvidia", "ptx")
_GRAPH_LISTS = ("cpu", "nvidia")
ALL = "nvidia_kernel"
"""The name that stands for the whole list of kernel passes."""


@dataclass
class NvidiaOptions:
    """What the command line asks for at these levels."""

    target: NvidiaTarget
    level: str = "nvidia"
    verify: bool = False
    locations: bool = False
    told: Callable[[str], None] = print
    """Takes what a pass that was refused says."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])


def is_kernel_pass(name: str) -> bool:
    """Whether a name is one of a kernel pass, or of the whole list of them."""
    return name == ALL or name in _named()


def choice_around(name: str) -> str | None:
    """The choice of the list in whose alternatives a pass stands, if it stands in one."""
    choices = [each for each in nvidia_kernel_passes() if isinstance(each, FirstThatMatches)]
    return next((each.name for each in choices if name in [inner.name for inner in each.passes]), None)


def divided(passes: str, last: str | None = None) -> tuple[str, list[KernelPass] | None]:
    """The passes over graphs that a text names, and those over kernels behind them; None for the whole list.

    Where the `last` one to run is one over kernels, no other comes behind it.
    """
    try:
        specs = list(parse_pipeline(passes)) if passes else []
    except ArgSpecParseError:
        return passes, None  # whoever reads it says what is wrong
    kernel = [spec for spec in specs if is_kernel_pass(spec.name)]
    first = specs.index(kernel[0]) if kernel else len(specs)
    known = [*_GRAPH_LISTS, *PASSES, ALL, *_named()]
    for spec in specs:
        if spec.name not in known:
            close = nearest(spec.name, known)
            hint = None if close else f"there are {', '.join(known)}"
            raise UsageError(f"no pass is called {spec.name}{close}", hint=hint)
    late = [spec.name for spec in specs[first:] if not is_kernel_pass(spec.name)]
    if late:
        raise UsageError(f"{late[0]} is a pass over graphs, and kernels come after these")
    listed = [each for spec in kernel for each in _passes_of(spec)] or list(nvidia_kernel_passes())
    names = [each.name for each in listed]
    whole = last not in names and [spec.name for spec in kernel] in ([], [ALL])
    return ",".join(map(str, specs[:first])), None if whole else listed[
        : names.index(last) + 1 if last in names else None
    ]


def print_kernels(module: ModuleOp, passes: Sequence[KernelPass] | None, options: NvidiaOptions) -> str:
    """The text of a program's kernels for a GPU: after some passes, or after all of them where None are given."""
    kernels = ModuleOp([])
    for kernel in [*(kernel.clone() for kernel in kernels_of(module)), *_lowered(module, options)]:
        kernels.body.block.add_op(_annotated(kernel, options) if passes is None else _passed(kernel, passes, options))
        if options.verify:
            verify_program(kernels)
            verify_kernels(kernels)
    if options.level == "nvidia":
        return print_program(kernels, locations=options.locations)
    start = time.perf_counter()
    listed = nvidia_kernel_passes()
    made = [llvm_to_ptx(emit_llvm(kernel, options.target, listed)[0], options.target) for kernel in kernels_of(kernels)]
    options.seconds["llvm"] = time.perf_counter() - start
    return "\n".join(made)


def _named() -> dict[str, KernelPass]:
    """The kernel passes by name, and the choices between alternatives of them."""
    found: dict[str, KernelPass] = {}

    def add(each: KernelPass) -> None:
        found.setdefault(each.name, each)
        for inner in (inner for one in getattr(each, "alternatives", ()) for inner in one.passes):
            add(inner)

    for each in nvidia_kernel_passes():
        add(each)
    return found


def _passes_of(spec: ArgSpec) -> list[KernelPass]:
    if spec.name == ALL:
        return list(nvidia_kernel_passes())
    known = _named()[spec.name]
    if isinstance(known, FirstThatMatches):
        return [known]
    options = {each.name: each for each in fields(known)}  # type: ignore[arg-type]
    given: dict[str, bool | int] = {}
    for name, values in spec.parameters.items():
        if name not in options or len(values) != 1 or not isinstance(values[0], bool | int):
            raise UsageError(f"{spec.name} has no option {name}", hint=f"it has {', '.join(options) or 'none'}")
        given[name] = values[0]
    return [type(known)(**given)]


def _lowered(module: ModuleOp, options: NvidiaOptions) -> list[KernelOp]:
    """The kernels that the functions of a program become."""
    start, kernels = time.perf_counter(), list[KernelOp]()
    target = options.target
    for function in programs_among(functions_of(module)):
        planned = build_plan(function, machine=machine_of(target.capabilities, target.multiprocessors))
        fuse_horizontally(planned)
        fuse_small_kernels(planned, target, nvidia_kernel_passes())
        mark_fixed(planned.plan, planned.kernels)
        deduplicate_kernels(planned)
        kernels.extend(planned.kernels.values())
    options.seconds["lower_to_tile"] = time.perf_counter() - start
    return kernels


def _annotated(kernel: KernelOp, options: NvidiaOptions) -> KernelOp:
    start = time.perf_counter()
    annotated, _ = annotate(kernel, options.target)
    options.seconds[ALL] = options.seconds.get(ALL, 0.0) + time.perf_counter() - start
    return annotated


def _passed(kernel: KernelOp, passes: Sequence[KernelPass], options: NvidiaOptions) -> KernelOp:
    """A kernel after passes; one that is refused leaves it as it was, and says so."""
    for each in passes:
        start, trial = time.perf_counter(), kernel.clone()
        match = each.matches(trial, options.target)
        refused = each.apply(trial, options.target) if match else match
        if refused is None:
            adopt(kernel, trial)
        else:
            options.told(f"{each.name} leaves {kernel.sym_name.data} as it is: {refused.reason}")
        options.seconds[each.name] = options.seconds.get(each.name, 0.0) + time.perf_counter() - start
    return kernel
