"""Cuts a joint graph into forward and backward so that a training step stays within a memory budget.

Answers of `passes/remat` are tried from the one of least work on; the first whose predicted peak is within the budget
is taken. So a larger budget never takes more work, nor a smaller one more memory.
"""

# torch leaves some of its functions without types, and has no public way to say what is kept.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch import partitioners

from weft.backends.target import CostFacts
from weft.config import Config, MemoryBudget
from weft.diagnostics import warn
from weft.errors import WeftError
from weft.frontends.torch.devices import target_on
from weft.frontends.torch.importer.graph_device import graph_device
from weft.frontends.torch.remat.checkpointed_draws import keep_draws_on_gpus, kept_draws, states_of_draws_alone
from weft.frontends.torch.remat.eliminate_common_nodes import eliminate_common_nodes
from weft.frontends.torch.remat.joint_problem import JointProblem, joint_problem
from weft.frontends.torch.remat.lay_out_saved import lay_out_saved
from weft.frontends.torch.remat.offload import is_worth_copying, offload, take_offload_marks
from weft.frontends.torch.remat.overwritten_arguments import keep_overwritten
from weft.frontends.torch.remat.predict_peak import predict_peak
from weft.frontends.torch.remat.quick_cuts import quick_cuts
from weft.frontends.torch.remat.recompute_cheap import recompute_cheap
from weft.frontends.torch.remat.unwritten_modules import lazy, writing_later
from weft.passes.remat.exact_choice import exact_choices
from weft.passes.remat.minimum_cut import choices, choices_by_peak, lowest_peaks, problems_by_layer
from weft.passes.remat.offload_choice import Machine, quickest_within
from weft.passes.remat.recompute_problem import Choice, RecomputeProblem

log = logging.getLogger("weft")

Parts = tuple[fx.GraphModule, fx.GraphModule]
Predict = Callable[[fx.GraphModule, fx.GraphModule], int | None]
"""The most bytes that a step of these two graphs takes at once; None where that is not known before it runs."""
PEAK = "weft.peak"
"""What the metadata of a forward graph calls the predicted peak of its step, in bytes."""
NO_COSTS = CostFacts()
_PATCHED = threading.RLock()


@dataclass
class _Chooser:
    """Stands in for torch's choice of what is kept: the first time it notes the problem, then it is told."""

    original: Callable[..., list[fx.Node]]
    wanted: frozenset[str] | None = None
    noted: JointProblem | None = None
    default: tuple[str, ...] = field(default_factory=tuple[str, ...])

    def __call__(self, graph: fx.Graph, info: Any, memory_budget: float = 1) -> list[fx.Node]:
        if self.wanted is None:
            kept = self.original(graph, info, memory_budget=1)
            self.noted = joint_problem(graph, info.is_required_fw, info.is_required_bw)
            self.default = tuple(node.name for node in kept)
            return kept
        return [node for node in graph.nodes if node.name in self.wanted]


def partition_joint(joint: fx.GraphModule, arguments: Sequence[Any], *, config: Config, **options: Any) -> Parts:
    """The forward and backward graph of a joint one: as torch cuts it, or within the budget that there is."""
    joint.graph.eliminate_dead_code()
    eliminate_common_nodes(joint.graph)
    keep_draws_on_gpus(joint.graph)
    costs = _costs_on_gpu(joint, config)
    wanted = take_offload_marks(joint.graph)
    results: int = options["num_fwd_outputs"]

    def cut(more: Collection[str] = ()) -> Parts:
        forward, backward = offload(_cut(joint, arguments, **options), {*wanted, *more}, results, costs)
        lay_out_saved(forward, backward, results)
        return forward, backward

    if not config.memory_budget:
        recompute_cheap(joint, costs)
        keep_overwritten(joint)
        return cut()
    keep_overwritten(joint)

    def predict(forward: fx.GraphModule, backward: fx.GraphModule) -> int | None:
        return predict_peak(forward, backward, results, config)

    return partition_within(joint.graph, cut, config, predict, wanted, costs)


def _cut(joint: fx.GraphModule, arguments: Sequence[Any], **options: Any) -> Parts:
    # Our own elimination has run, and our own flows cut.
    with functorch_config.patch(cse=False), quick_cuts(), kept_draws(), states_of_draws_alone(), writing_later():
        forward, backward = partitioners.min_cut_rematerialization_partition(joint, arguments, **options)
        return lazy(forward), lazy(backward)


def _costs_on_gpu(joint: fx.GraphModule, config: Config) -> CostFacts:
    """What a GPU does at most; on processors, where functions cost more than bytes, nothing is said."""
    try:
        device = graph_device(joint)
        return target_on(device, config).costs if device.type == "cuda" else CostFacts()
    except WeftError:  # the graph is compiled later, and says then what is wrong
        return CostFacts()


def partition_within(
    joint: fx.Graph,
    cut: Callable[[Collection[str]], Parts],
    config: Config,
    predict: Predict,
    wanted: Collection[str] = (),
    costs: CostFacts = NO_COSTS,
) -> Parts:
    """The forward and backward graph of a joint one whose step takes no more memory than a budget, where that can be.

    `cut` makes them, with values in the host's memory beside those that are `wanted` there. Where the peak is not known
    before the step runs, the budget is one of what is kept between the two.
    """
    with _chosen() as chooser:
        parts = cut(())
        peak, problem = predict(*parts), chooser.noted
        if problem is None:  # the backward reads nothing
            return parts
        kept = problem.bytes_of([name for name in chooser.default if peak is not None or name not in wanted])
        limit = MemoryBudget.read(config.memory_budget).limit(kept if peak is None else peak)
        if (kept if peak is None else peak) <= limit:
            return _noted(parts, peak)
        if config.offload and peak is None and costs.host_bandwidth:
            return _offloaded(joint, chooser, problem, cut, limit, costs)
        least, best = peak, parts
        known = _answers(problem.problem, by_peak=peak is not None, exact=config.memory_budget_solver == "exact")
        # What alone exceeds the limit cannot be within it, but may be the least where nothing is.
        for choice in sorted(known, key=lambda each: each.bytes > limit):
            chooser.wanted = frozenset(problem.names[number] for number in choice.kept)
            tried = cut(())
            found = predict(*tried) if peak is not None else choice.bytes
            log.debug("%d bytes kept, %d of work again: a peak of %s", choice.bytes, choice.work, found)
            if found is not None and found <= limit:
                return _noted(tried, found if peak is not None else None)
            if found is not None and found < (kept if least is None else least):
                least, best = found, tried
        _warn_of_limit(limit, kept if least is None else least)
        return _noted(best, least if peak is not None else None)


def _offloaded(
    joint: fx.Graph,
    chooser: _Chooser,
    noted: JointProblem,
    cut: Callable[[Collection[str]], Parts],
    limit: int,
    costs: CostFacts,
) -> Parts:
    """The parts that take the least time, where values may wait in the host's memory."""
    problem, nodes = noted.problem, {node.name: node for node in joint.nodes}
    movable = {number for number, name in enumerate(noted.names) if name in nodes and is_worth_copying(nodes[name])}
    numbers = {name: number for number, name in enumerate(noted.names)}
    default = problem.completed(numbers[name] for name in chooser.default if name in numbers)
    machine = Machine(costs.bandwidth, costs.host_bandwidth)
    found = quickest_within(problem, [default, *choices(problem)], movable, limit, machine)
    assert found is not None, "there is the default"
    kept = set(chooser.default) if found.choice is default else {noted.names[number] for number in found.choice.kept}
    chooser.wanted = frozenset(kept)
    moved = sum(problem.values[number].bytes for number in found.offloaded)
    log.info("%d bytes in the host's memory, %d kept, %d of work again", moved, found.bytes, found.choice.work)
    if found.bytes > limit:
        _warn_of_limit(limit, found.bytes)
    return cut({noted.names[number] for number in found.offloaded})


def _warn_of_limit(limit: int, least: int) -> None:
    what = f"a memory budget of {_size(limit)} cannot be held"
    why = "what is not kept has to be computed again, and that takes memory, too"
    warn("memory", what, why, f"the least that was found is {_size(least)}")


def _answers(problem: RecomputeProblem, *, by_peak: bool, exact: bool) -> list[Choice]:
    """What may be kept, from the least work on."""
    if not exact:
        return choices_by_peak(problem) if by_peak else choices(problem)
    found: list[Choice] = []
    for each in problems_by_layer(problem) if by_peak else [problem]:
        better = exact_choices(each, choices(each))
        log.info("the exact choice of what to keep: %s", "; ".join(map(str, better)))
        found += [answer.choice for answer in better]
    return lowest_peaks(problem, found)


def _noted(parts: Parts, peak: int | None) -> Parts:
    if peak is not None:
        parts[0].meta[PEAK] = peak
    return parts


@contextmanager
def _chosen() -> Generator[_Chooser]:
    """Let torch's partitioner ask here what is kept, in this thread alone."""
    with _PATCHED:
        chooser = _Chooser(partitioners.choose_saved_values_set)
        owner, original = threading.get_ident(), chooser.original

        def choose(*given: Any, **named: Any) -> list[fx.Node]:
            return (chooser if threading.get_ident() == owner else original)(*given, **named)

        partitioners.choose_saved_values_set = choose
        try:
            yield chooser
        finally:
            partitioners.choose_saved_values_set = original


def _size(count: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / 2**power:.1f} {unit}"
    return f"{count} bytes"
