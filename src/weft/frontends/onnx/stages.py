"""Runs an imported model: compiled functions, with host steps and looks at data between them.

A `State` is a place in the model: the nodes that are left, and what is known of the values that they read. For each
signature of the arrays at hand it has a `Step`, made when the signature is first met: a compiled function, perhaps a
call on the host, and the state that follows.
"""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.ir import SSAValue

from weft.config import Config
from weft.errors import ModelError, UnsupportedError, WeftError
from weft.frontends.onnx.checks import Verdict, combined
from weft.frontends.onnx.import_nodes import Importer, NeedsElements, RunsOnHost, StageFull, Target, call_host
from weft.frontends.onnx.model import Model, ValueType, free_names
from weft.frontends.onnx.order_of_use import sort_by_use
from weft.frontends.onnx.other_sizes import other_sizes
from weft.frontends.onnx.stage_functions import Elsewhere, StageFunction, StageFunctions
from weft.frontends.onnx.steps import HostCall, Source, State, Step
from weft.frontends.onnx.stored_steps import Imported, StoredStep, StoredSteps
from weft.frontends.onnx.values import Absent, Items, Known, Slot, Traced, Value
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.runtime.collection import without_collection

_KEPT = 256
"""Signatures that a state keeps steps for; the oldest goes first."""


@dataclass
class StagedProgram:
    """A model with its states. It may be called from several threads at once; they compile one after the other."""

    model: Model
    config: Config
    device: str = "cpu"
    threads: int | None = None
    checked: bool = True
    """Whether indices that are out of range are looked for."""
    whole: bool = False
    """Whether the program is to be one graph, as far as it can."""

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._starts: dict[Any, State] = {}
        self._open = any(_is_open(each.type) for each in self.model.graph.inputs)
        self._functions = StageFunctions(self.config, self.device, self.threads, self._open)
        self._names = itertools.count()
        self._outputs = tuple(each.name for each in self.model.graph.outputs)
        kept = StoredSteps(self.model, self.config, self.device, self.threads)
        self._stored = kept if self.config.cache else None

    def fresh(self, name: str) -> str:
        """A name that no model has: of values in bodies that are put in the place of calls."""
        return f"{name}\0{next(self._names)}"

    def start(self, inputs: Mapping[str, Value]) -> State:
        """The state before the first node; inputs are slots, or sequences of them."""
        structure = tuple((name, _structure(value)) for name, value in inputs.items())
        with self._lock:
            if structure not in self._starts:
                values: dict[str, Value] = {name: Known(each) for name, each in self.model.graph.initializers.items()}
                values.update(inputs)
                self._starts[structure] = State(tuple(self.model.graph.nodes), values, structure=structure)
            return self._starts[structure]

    def run(self, state: State, slots: list[np.ndarray], step: Step | None = None) -> list[Any]:
        """The results of the model, from a state on; `step` is what is done there, where that is known."""
        while True:
            step = step or self.step(state, slots)
            made = step.made(slots)
            if step.verdict is not None:
                step.verdict.raise_if(int(made[step.verdict.place]))
            if step.made_results is not None:
                return [made[place] for place in step.made_results]
            from_host: Sequence[np.ndarray] = ()
            if step.host is not None:
                operands = [_taken(each, slots, made, ()) for each in step.host.operands]
                from_host = call_host(step.host.node, step.host.function, operands)
            if step.following is None:
                return _results(step.results, slots, made, from_host)
            slots = [_taken(each, slots, made, from_host) for each in step.carried]
            state, step = step.following, None

    def prepare(self, state: State, slots: Sequence[np.ndarray]) -> None:
        """Import and compile what does not depend on elements of the arrays: only their types are looked at."""
        with self._lock:
            if state.by_value or state.key(slots) in state.steps:
                return
            made = self._import(state, slots)
            if made is not None:
                state.steps[state.key(slots)] = made

    def step(self, state: State, slots: Sequence[np.ndarray]) -> Step:
        """What to do for arrays like these; imported and compiled at first sight."""
        found = state.steps.get(state.key(slots))
        if found is not None:
            return found
        with self._lock:
            while True:
                key = state.key(slots)
                if key in state.steps:
                    return state.steps[key]
                made = self._import(state, slots)
                if made is not None:
                    state.steps[state.key(slots)] = made
                    if len(state.steps) > _KEPT:
                        state.steps.popitem(last=False)
                    return made

    def _import(self, state: State, slots: Sequence[np.ndarray]) -> Step | None:
        """A step; None where the elements of one slot more turned out to matter."""
        with without_collection():
            return self._step_for(state, slots)

    def _step_for(self, state: State, slots: Sequence[np.ndarray]) -> Step | None:
        kept = self._stored if state.structure is not None else None
        stored = None if kept is None else kept.find(slots, state.structure, state.by_value)
        if isinstance(stored, StoredStep):
            return Step(stored.function, stored.arguments, None, (), None, stored.results, stored.verdict)
        if stored is not None:
            state.by_value |= stored
            return None
        self.model.read_weights()
        known_before = frozenset(state.by_value)
        values = {name: _given(value, slots, state.by_value) for name, value in state.values.items()}
        pending = list(reversed(state.pending))
        importer = Importer(self.model.opsets, self.model.functions, self.fresh, values, pending, whole=self.whole)
        importer.open = self._open
        importer.declare_arguments()
        host: RunsOnHost | None = None
        needed: Traced | Slot | None = None
        try:
            importer.run()
        except NeedsElements as stop:
            place = stop.value.place if isinstance(stop.value, Slot) else importer.target.place_of(stop.value.value)
            if place is not None:
                state.by_value.add(place)
                if kept is not None and importer.repeatable:
                    kept.keep_need(slots, state.structure, known_before, place)
                return None
            needed = stop.value
        except RunsOnHost as stop:
            host = stop
        except StageFull:
            if state.pending == tuple(reversed(importer.pending)):
                raise UnsupportedError(f"{importer.pending[-1]} does not fit into one stage") from None
        if not importer.pending:
            step, made = self._last(importer, lambda: self._elsewhere(state, slots))
            if kept is not None and importer.repeatable:
                kept.keep_step(slots, state.structure, known_before, step.results, made, step.verdict, importer.tables)
            return step
        return self._cut(importer, host, needed)

    def _elsewhere(self, state: State, slots: Sequence[np.ndarray]) -> tuple[FuncOp, Mapping[str, np.ndarray]] | None:
        """The whole model imported at other sizes, with its constants, if it is one stage there."""
        if state.structure is None or state.by_value:
            return None
        types = {each.name: each.type.shape for each in self.model.graph.inputs}
        shapes = {value.place: types.get(name) for name, value in state.values.items() if isinstance(value, Slot)}
        if sorted(shapes) != list(range(len(slots))):
            return None
        for arrays in other_sizes([shapes[place] for place in range(len(slots))], slots):
            program = ImportedStages(self.model, replace(self.config, cache=False), checked=self.checked)
            try:
                step = program._step_for(State(state.pending, state.values), arrays)
            except WeftError:  # sizes that the model does not take
                continue
            if step is not None and step.following is None and len(program.functions) == 1:
                return program.functions[0]
        return None

    def _last(self, importer: Importer, elsewhere: Elsewhere) -> tuple[Step, Imported]:
        export = _Export(importer.target)
        if missing := [name for name in self._outputs if name not in importer.values]:
            raise ModelError(f"no node has made the output {missing[0]!r}, which the model gives")
        values = self._given_back(importer, [importer.values[name] for name in self._outputs])
        results = tuple(export.source(value) for value in values)
        verdict = self._verdict(importer, export)
        made = self._compiled(importer.target, tuple(export.wanted), elsewhere)
        return Step(made.function, made.arguments, None, (), None, results, verdict), made

    def _given_back(self, importer: Importer, values: Sequence[Value]) -> Sequence[Value]:
        """The results; the call around the compiled function copies inputs, constants, and what comes twice."""
        return values

    def _cut(self, importer: Importer, host: RunsOnHost | None, needed: Traced | Slot | None) -> Step:
        """The step up to where the import stopped, and the state that follows."""
        export = _Export(importer.target)
        if host is not None:
            importer.pending.pop()
        live = set(self._outputs).union(*(free_names(node) for node in importer.pending))
        made_by_host = {} if host is None else {n: name for n, name in enumerate(host.node.outputs) if name in live}
        carried: list[Source] = []
        values: dict[str, Value] = {}
        places: dict[Any, int] = {}
        for name in sorted(live & importer.values.keys()):
            values[name] = _carried(importer.values[name], export, carried, places)
        call = None
        if host is not None:
            call = HostCall(host.node, host.function, tuple(export.source(each) for each in host.values))
            for n, name in made_by_host.items():
                values[name] = Slot(len(carried), np.dtype(np.void), ())
                carried.append(("host", n))
        following = State(tuple(reversed(importer.pending)), values)
        if needed is not None:
            source = export.source(needed)
            following.by_value |= {place for place, each in enumerate(carried) if each == source}
        verdict = self._verdict(importer, export)
        made = self._compiled(importer.target, tuple(export.wanted), lambda: None)
        return Step(made.function, made.arguments, call, tuple(carried), following, verdict=verdict)

    def _verdict(self, importer: Importer, export: _Export) -> Verdict | None:
        """What the checks of a stage have found becomes the last of its results."""
        if not self.checked:
            return None
        block = importer.target.block
        found = combined(GraphBuilder(block), block, importer.checks)
        return (
            None if found is None else replace(found[1], place=export.wanted.setdefault(found[0], len(export.wanted)))
        )

    def _compiled(self, target: Target, wanted: Sequence[SSAValue], elsewhere: Elsewhere) -> Imported:
        """The function that gives the values that are wanted of a stage, and the slots that it takes."""
        if not wanted:
            return Imported(None, ())
        function = target.function
        target.block.add_op(ReturnOp.make(wanted))
        arguments = _pruned(target)
        if self._open:
            arguments = sort_by_use(target.block, arguments)
        constants = {f"c{n}": each for n, each in enumerate(arguments) if isinstance(each, np.ndarray)}
        names = [f"c{n}" if isinstance(each, np.ndarray) else f"x{n}" for n, each in enumerate(arguments)]
        function.attributes["arg_names"] = ArrayAttr(StringAttr(name) for name in names)
        made = self._function(constants, function, elsewhere)
        slots = tuple(each for each in arguments if isinstance(each, int))
        return Imported(made.call, slots, made.text, made.constants)

    def _function(self, constants: Mapping[str, np.ndarray], function: FuncOp, elsewhere: Elsewhere) -> StageFunction:
        """The compiled function of a stage."""
        return self._functions.of(constants, function, elsewhere)


class ImportedStages(StagedProgram):
    """A model whose stages are kept as they were imported, and not compiled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.functions: list[tuple[FuncOp, Mapping[str, np.ndarray]]] = []

    def _function(self, constants: Mapping[str, np.ndarray], function: FuncOp, elsewhere: Elsewhere) -> StageFunction:
        self.functions.append((function, constants))
        return StageFunction(function, "", constants)


def _pruned(target: Target) -> list[int | np.ndarray]:
    """Take out what nothing reads: ops of nodes that were begun and not finished, and arguments."""
    for op in reversed(list(target.block.ops)):
        if not isinstance(op, ReturnOp) and not any(result.uses for result in op.results):
            op.detach()
            op.erase()
    kept: list[int | np.ndarray] = []
    for argument, source in zip(tuple(target.block.args), target.arguments, strict=True):
        if argument.uses:
            kept.append(source)
        else:
            target.block.erase_arg(argument)
    return kept


class _Export:
    """Collects the values of a stage's graph that leave it."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.wanted: dict[SSAValue, int] = {}
        """In order, each with its place."""

    def source(self, value: Value) -> Source:
        match value:
            case Known() | Absent():
                return value
            case Slot():
                return "slot", value.place
            case Items():
                return "items", tuple(self.source(each) for each in value.values)
            case Traced(ssa):
                place = self._target.place_of(ssa)
                if place is not None:
                    return "slot", place
                return "made", self.wanted.setdefault(ssa, len(self.wanted))


def _carried(value: Value, export: _Export, carried: list[Source], places: dict[Any, int]) -> Value:
    """A value as the next stage sees it: its arrays are slots, in the order in which they are carried over."""
    if isinstance(value, Items):
        return Items(tuple(_carried(each, export, carried, places) for each in value.values))
    if isinstance(value, Known | Absent):
        return value
    source = export.source(value)
    if source not in places:
        places[source] = len(carried)
        carried.append(source)
    return Slot(places[source], np.dtype(np.void), ())


def _given(value: Value, slots: Sequence[np.ndarray], by_value: set[int]) -> Value:
    """A value of a state for the arrays of a call."""
    match value:
        case Slot():
            array = slots[value.place]
            if value.place in by_value:
                return Known(np.array(array))
            return Slot(value.place, array.dtype, array.shape)
        case Items():
            return Items(tuple(_given(each, slots, by_value) for each in value.values))
        case _:
            return value


def _is_open(type_: ValueType) -> bool:
    return type_.shape is None or not all(isinstance(size, int) for size in type_.shape)


def _structure(value: Value) -> Any:
    if isinstance(value, Items):
        return tuple(_structure(each) for each in value.values)
    return value.place if isinstance(value, Slot) else None


def _taken(source: Source, slots: Sequence[np.ndarray], made: Sequence[np.ndarray], host: Sequence[np.ndarray]) -> Any:
    match source:
        case Known(array):
            return array
        case Absent():
            return None
        case ("slot", place):
            return slots[place]
        case ("made", place):
            return made[place]
        case ("host", place):
            return host[place]
        case (_, several):
            return [_taken(each, slots, made, host) for each in several]


def _results(
    sources: Sequence[Source], slots: Sequence[np.ndarray], made: Sequence[np.ndarray], host: Sequence[np.ndarray]
) -> list[Any]:
    """Results that share no memory with anything else: what a compiled function made is new, unless it comes twice."""
    taken = [_taken(each, slots, made, host) for each in sources]
    new = {("made", place) for place in range(len(made))}
    found: list[Any] = []
    for source, result in zip(sources, taken, strict=True):
        fresh = isinstance(source, tuple) and source in new
        found.append(result if fresh else _own(result))
        new.discard(source if fresh else ("", 0))
    return found


def _own(result: Any) -> Any:
    """A result that shares no memory with an argument or a constant."""
    if isinstance(result, list):
        return [_own(each) for each in result]
    return None if result is None else np.array(result)
