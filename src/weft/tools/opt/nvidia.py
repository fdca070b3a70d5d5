"""`weft opt --level nvidia` and `--level ptx`: passes over the text of kernels, for a GPU that need not be there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.arg_spec import ArgSpec, parse_pipeline
from xdsl.utils.exceptions import ArgSpecParseError

from weft.backends.nvidia.compile import annotate, emit_llvm
from weft.backends.nvidia.ir.kernel_passes import FirstThatMatches, KernelPass, PassNote, adopt
from weft.backends.nvidia.ir.programmatic_launch import mark_fixed
from weft.backends.nvidia.ir.registry import verify_kernels
from weft.backends.nvidia.ir.trace_passes import PassTrace, TracedStep, changes
from weft.backends.nvidia.kernel_pipeline import nvidia_kernel_passes
from weft.backends.nvidia.plan.deduplicate_kernels import deduplicate_kernels
from weft.backends.nvidia.plan.fuse_horizontally import fuse_horizontally
from weft.backends.nvidia.plan.fuse_small_kernels import fuse_small_kernels
from weft.backends.nvidia.target import NvidiaTarget, llvm_to_ptx
from weft.diagnostics import nearest
from weft.errors import LoweringError
from weft.lower.constants import programs_among
from weft.lower.machine import machine_of
from weft.lower.plan import build_plan
from weft.passes.registry import PASSES
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
    """Takes what a pass that was refused says, and kernels after each pass."""
    print_after_all: bool = False
    stop_after: str | None = None
    """A pass over kernels or a choice: kernels are printed as it leaves them."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def traces(self) -> bool:
        """Whether kernels are wanted as passes on the way leave them."""
        return self.print_after_all or self.stop_after is not None


def is_kernel_pass(name: str) -> bool:
    """Whether a name is one of a kernel pass, or of the whole list of them."""
    return name == ALL or name in _named(nvidia_kernel_passes())


def is_among(name: str, passes: Sequence[KernelPass] | None) -> bool:
    """Whether a pass or a choice is one of a list, or stands in an alternative of it; None is the whole list."""
    return name in names_of(passes)


def names_of(passes: Sequence[KernelPass] | None) -> list[str]:
    """The names of the passes over kernels that there are, those in choices included; None is the whole list."""
    return list(_named(nvidia_kernel_passes() if passes is None else passes))


def divided(passes: str, last: str | None = None) -> tuple[str, list[KernelPass] | None]:
    """The passes over graphs that a text names, and those over kernels behind them; None for the whole list.

    Where the `last` one to run is one of those over kernels, and in no choice, no other comes behind it.
    """
    try:
        specs = list(parse_pipeline(passes)) if passes else []
    except ArgSpecParseError:
        return passes, None  # whoever reads it says what is wrong
    kernel = [spec for spec in specs if is_kernel_pass(spec.name)]
    first = specs.index(kernel[0]) if kernel else len(specs)
    known = [*_GRAPH_LISTS, *PASSES, ALL, *_named(nvidia_kernel_passes())]
    for spec in specs:
        if spec.name not in known:
            close = nearest(spec.name, known)
            hint = None if close else f"there are {', '.join(known)}"
            raise UsageError(f"no pass is called {spec.name}{close}", hint=hint)
    late = [spec.name for spec in specs[first:] if not is_kernel_pass(spec.name)]
    if late:
        raise UsageError(f"{late[0]} is a pass over graphs, and kernels come after these")
    before = ",".join(map(str, specs[:first]))
    listed = [each for spec in kernel for each in _passes_of(spec)] or list(nvidia_kernel_passes())
    names = [each.name for each in listed]
    if last in names:
        return before, listed[: names.index(last) + 1]
    return before, None if [spec.name for spec in kernel] in ([], [ALL]) else listed


def print_kernels(module: ModuleOp, passes: Sequence[KernelPass] | None, options: NvidiaOptions) -> str:
    """The text of a program's kernels for a GPU: after some passes, or after all of them where None are given."""
    kernels, missed = ModuleOp([]), list[str]()
    for kernel in [*(kernel.clone() for kernel in kernels_of(module)), *_lowered(module, options)]:
        made, steps = _annotated(kernel, options) if passes is None else _passed(kernel, passes, options)
        if options.stop_after is not None:
            last = next((n for n, step in enumerate(steps) if step.name == options.stop_after), None)
            missed += [kernel.sym_name.data] if last is None else []
            steps, made = (steps, made) if last is None else (steps[: last + 1], steps[last].kernel)
        if options.print_after_all:
            _print_steps(kernel, steps, options)
        kernels.body.block.add_op(made)
        if options.verify:
            verify_program(kernels)
            verify_kernels(kernels)
    if missed:
        _complain(missed, len(missed) == len(kernels_of(kernels)), options)
    if options.level == "nvidia":
        return print_program(kernels, locations=options.locations)
    start = time.perf_counter()
    listed = nvidia_kernel_passes()
    made = [llvm_to_ptx(emit_llvm(kernel, options.target, listed)[0], options.target) for kernel in kernels_of(kernels)]
    options.seconds["llvm"] = time.perf_counter() - start
    return "\n".join(made)


def _complain(missed: Sequence[str], by_all: bool, options: NvidiaOptions) -> None:
    """Say which kernels do not have the pass to stop after: where none has it, that is a mistake."""
    if by_all:
        raise UsageError(
            f"{options.stop_after} is in no alternative that is taken for {', '.join(missed)}",
            hint="--print-after-all shows the passes that are, and `weft explain` why others are not",
        )
    options.told(f"{options.stop_after} is no pass of {', '.join(missed)}: printed after all passes")


def _print_steps(kernel: KernelOp, steps: Sequence[TracedStep], options: NvidiaOptions) -> None:
    """Tell what a kernel is after each pass that changed it."""
    for _, step, text in changes(kernel, steps, locations=options.locations):
        taken = zip(step.inside[::2], step.inside[1::2], strict=True)
        inside = "".join(f", {choice}: {alternative}" for choice, alternative in taken)
        options.told(f"// after {step.name} of {kernel.sym_name.data}{inside}\n{text}")


def _named(passes: Sequence[KernelPass]) -> dict[str, KernelPass]:
    """Kernel passes by name, those of alternatives and the choices between these among them."""
    found: dict[str, KernelPass] = {}

    def add(each: KernelPass) -> None:
        found.setdefault(each.name, each)
        for inner in (inner for one in getattr(each, "alternatives", ()) for inner in one.passes):
            add(inner)

    for each in passes:
        add(each)
    return found


def _passes_of(spec: ArgSpec) -> list[KernelPass]:
    if spec.name == ALL:
        return list(nvidia_kernel_passes())
    known = _named(nvidia_kernel_passes())[spec.name]
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


def _annotated(kernel: KernelOp, options: NvidiaOptions) -> tuple[KernelOp, list[TracedStep]]:
    """A kernel after all passes, and as each of them left it."""
    start, trace, notes = time.perf_counter(), PassTrace(), list[PassNote]()
    passes = nvidia_kernel_passes()
    try:
        annotated, _ = annotate(kernel, options.target, trace.watch(passes) if options.traces else passes, notes)
    except LoweringError:
        if options.print_after_all:  # how far it came
            _print_steps(kernel, trace.steps_of(kernel.sym_name.data, notes), options)
        raise
    options.seconds[ALL] = options.seconds.get(ALL, 0.0) + time.perf_counter() - start
    return annotated, trace.steps_of(kernel.sym_name.data, notes)


def _passed(
    kernel: KernelOp, passes: Sequence[KernelPass], options: NvidiaOptions
) -> tuple[KernelOp, list[TracedStep]]:
    """A kernel after passes, and as each of them left it; one that is refused leaves it as it was, and says so."""
    made, steps, name = kernel.clone(), list[TracedStep](), kernel.sym_name.data
    for each in passes:
        start, trial, trace, notes = time.perf_counter(), made.clone(), PassTrace(), list[PassNote]()
        trace.watch([each])[0].run(trial, options.target, notes)
        if notes[0].refused is None:
            adopt(made, trial)
            steps += trace.steps_of(name, notes)
        else:
            options.told(f"{each.name} leaves {name} as it is: {notes[0].refused}")
            steps.append(TracedStep(each.name, (), made.clone()))
        options.seconds[each.name] = options.seconds.get(each.name, 0.0) + time.perf_counter() - start
    return made, steps
