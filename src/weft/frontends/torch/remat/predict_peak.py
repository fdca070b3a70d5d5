"""The most memory that a training step takes at once, predicted from the plans of its two graphs, before there is code.

Programs for which there is a budget get and give back memory in phases (`runtime/memory.py`), so that what they take is
known byte for byte. It is what a step takes beyond what its caller holds: parameters, and other arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torch import fx

from weft.backends.target import Host, PlansMemory
from weft.config import Config
from weft.errors import WeftError
from weft.frontends.torch.devices import target_on
from weft.frontends.torch.importer.graph_device import graph_device
from weft.frontends.torch.importer.import_graph import import_graph
from weft.frontends.torch.importer.imported_graph import Calling, Passed, Returned, Viewed
from weft.frontends.torch.splitting import split_graph
from weft.lower.steps import Plan
from weft.runtime.executable import frugal_parts
from weft.runtime.memory import bytes_of, peak_of

log = logging.getLogger("weft")


def predict_peak(forward: fx.GraphModule, backward: fx.GraphModule, results: int, config: Config) -> int | None:
    """The bytes that a step takes at most, whose caller holds the first `results` of its forward until it has ended.

    None where its sizes, or its programs, are not known before it runs.
    """
    try:
        first, then = _planned(forward, "forward", config), _planned(backward, "backward", config)
    except (WeftError, NotImplementedError) as error:  # it is compiled later, and says then what is wrong
        log.info("the peak of a step is not predicted: %s", error)
        return None
    if first is None or then is None:
        return None
    sources = first.sources(forward)
    held: list[int] = []
    blocks: dict[int, list[int]] = {}
    for number, name in then.inputs(backward):
        source = sources.get(name)
        if isinstance(source, Passed):
            held.append(number)
        elif source is not None:
            blocks.setdefault(source, []).append(number)
    peak = then.peak(held, [(block, first.bytes_of([buffer])) for buffer, block in blocks.items()])
    return max(first.peak(first.plan.inputs), first.bytes_of(first.results(results)) + peak)


@dataclass(frozen=True)
class _Planned:
    """A graph as the plan that it will run by."""

    plan: Plan
    calling: Calling

    def inputs(self, module: fx.GraphModule) -> list[tuple[int, str]]:
        """The buffers of arguments, and what the graph calls them."""
        plan, names = self.plan, _names(module)
        places = [place for place in range(len(plan.inputs) + len(plan.fixed)) if place not in plan.fixed]
        called = [names[place] for place in self.calling.arguments]
        return [(n, called[place]) for n, place in zip(plan.inputs, places, strict=True) if place < len(called)]

    def results(self, count: int) -> set[int]:
        """The buffers of the first results that none of the others lies in."""
        outputs = [each.base if isinstance(each, Viewed) else each for each in self.calling.outputs]
        buffers = [self.plan.outputs[each.result] if isinstance(each, Returned) else None for each in outputs]
        return {n for n in buffers[:count] if n is not None} - {n for n in buffers[count:] if n is not None}

    def sources(self, module: fx.GraphModule) -> dict[str, Passed | int]:
        """Where arguments and results lie, by name: in what the caller passes, or in a buffer."""
        found: dict[str, Passed | int] = {name: Passed(n) for n, name in enumerate(_names(module))}
        (output,) = module.graph.find_nodes(op="output")
        for node, each in zip(output.args[0], self.calling.outputs, strict=True):
            base = each.base if isinstance(each, Viewed) else each
            if isinstance(node, fx.Node) and isinstance(base, Returned | Passed):
                found.setdefault(node.name, base if isinstance(base, Passed) else self.plan.outputs[base.result])
        return found

    def peak(self, held: Collection[int], together: Sequence[tuple[Collection[int], int]] = ()) -> int:
        """What it takes at most beyond arguments that are its caller's."""
        parts, phases = frugal_parts(self.plan, {})
        return peak_of(self.plan, {}, parts, phases, held, together).phased - self.bytes_of(held)

    def bytes_of(self, buffers: Collection[int]) -> int:
        return sum(bytes_of(self.plan, number, {}) for number in set(buffers))


def _names(module: fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.find_nodes(op="placeholder")]


def _planned(module: fx.GraphModule, name: str, config: Config) -> _Planned | None:
    target = target_on(graph_device(module), config)
    if not isinstance(target, PlansMemory) or split_graph(module) is not None:
        return None
    imported = import_graph(module, name, config, {}, target.capabilities)
    plan = target.plan(imported.function, config, Host(libraries=True))
    return None if plan.symbols else _Planned(plan, imported.calling)
