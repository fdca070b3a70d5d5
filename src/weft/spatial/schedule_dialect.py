"""The `schedule` dialect: a program as text, an op for each queue with its instructions as columns of numbers.

    "schedule.program"() ({
      "schedule.queue"() {unit = "MEM west 28", queue = 28, port = 0, words = array<i32: …>,
                          columns = {cycle = array<i32: 0>, count = array<i32: 20>, …}} : () -> ()
      …
    }) {machine = "tsp1", digest = "…", cycles = 117, …} : () -> ()

A model's schedule has hundreds of thousands of instructions, so there is no op for each. What memory holds at the start
lies beside the text, as arrays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import DenseArrayBase, DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i32, i64
from xdsl.ir import Block, Dialect, Region
from xdsl.irdl import attr_def, irdl_op_definition, region_def, traits_def
from xdsl.traits import IsolatedFromAbove, NoTerminator

from weft.errors import ParseError
from weft.ir.operations import WeftOp
from weft.spatial.machine import streaming_machine
from weft.spatial.program import INSTRUCTION, Image, Port, Program, Text
from weft.spatial.read_files import read_arrays, read_json, read_text
from weft.tile.text import parse_program, print_program


@irdl_op_definition
class QueueOp(WeftOp):
    """What one queue issues; a memory slice has one for reads (port 0) and one for writes (port 1)."""

    name = "schedule.queue"
    unit = attr_def(StringAttr)
    queue = attr_def(IntegerAttr)
    port = attr_def(IntegerAttr)
    columns = attr_def(DictionaryAttr)
    words = attr_def(DenseArrayBase)


@irdl_op_definition
class ProgramOp(WeftOp):
    """All queues of a chip, the machine they are for, and how many cycles they take."""

    name = "schedule.program"
    machine = attr_def(StringAttr)
    digest = attr_def(StringAttr)
    overrides = attr_def(StringAttr)
    origins = attr_def(StringAttr)
    bounds = attr_def(StringAttr)
    cycles = attr_def(IntegerAttr)
    body = region_def("single_block")
    traits = traits_def(NoTerminator(), IsolatedFromAbove())


Schedule = Dialect("schedule", [QueueOp, ProgramOp], [])
_MOST_ISSUES = 1 << 26
"""Of instructions, with repetitions: the verifier has a row for each."""
_COLUMNS = [name for name in INSTRUCTION.names or () if name != "queue"]


def module_of(program: Program) -> ModuleOp:
    """A program in the dialect; words count instructions within their own queue."""
    block = Block()
    for text in program.texts:
        words = text.words.copy()
        own = words[words[:, 0] == 0, 1]
        words[words[:, 0] == 0, 1] = np.arange(len(own))
        columns = {name: _array(program.instructions[name][own]) for name in _COLUMNS}
        block.add_op(
            QueueOp.create(
                attributes={
                    "unit": StringAttr(program.units.name(text.queue)),
                    "queue": IntegerAttr(text.queue, i64),
                    "port": IntegerAttr(text.port, i64),
                    "words": _array(words.reshape(-1)),
                    "columns": DictionaryAttr(columns),
                }
            )
        )
    facts = program.machine.facts
    overrides = {path: fact.value for path, fact in facts.items() if fact.source == "override"}
    made = ProgramOp.create(
        attributes={
            "machine": StringAttr(program.machine.name),
            "digest": StringAttr(program.machine.digest),
            "overrides": StringAttr(json.dumps(overrides)),
            "origins": StringAttr(json.dumps(list(program.origins))),
            "bounds": StringAttr(json.dumps(dict(program.bounds))),
            "cycles": IntegerAttr(program.cycles, i64),
        },
        regions=[Region(block)],
    )
    return ModuleOp([made])


def save_program(program: Program, path: Path) -> None:
    """Write the schedule to a file, and beside it, in a `.npz`, what memory holds and where arguments lie."""
    path.write_text(print_program(module_of(program)), encoding="utf-8")
    image = program.image
    arrays = {"slices": image.slices, "addresses": image.addresses, "tags": image.tags, "data": image.data}
    ports: list[dict[str, Any]] = []
    for role, given in (("input", program.inputs), ("output", program.outputs)):
        for number, port in enumerate(given):
            ports.append(
                {"role": role, "name": port.name, "shape": port.shape, "dtype": port.dtype.str, "fill": port.fill}
            )
            for name in _PORT_ARRAYS:
                arrays[f"{role}{number}_{name}"] = getattr(port, name)
    arrays["ports"] = np.array(json.dumps(ports))
    np.savez_compressed(path.with_suffix(".npz"), **cast(Any, arrays))


_PORT_ARRAYS = ("index", "slices", "addresses", "vectors", "bytes", "tags")


def load_program(path: Path) -> Program:
    """A program that `save_program` wrote. What it does is not checked here: that is the verifier's."""
    module = parse_program(read_text(path), str(path), [Schedule])
    found = [op for op in module.ops if isinstance(op, ProgramOp)]
    if len(found) != 1:
        raise ParseError(f"{path} is not one schedule", hint="`weft spatial compile` writes them")
    head = found[0]
    machine = streaming_machine(head.machine.data, _json(head.overrides.data, dict, f"{path}: overrides"))
    if machine.digest != head.digest.data:
        raise ParseError(f"{path} is for another description of {machine.name} than this one", hint="compile it again")
    groups: list[np.ndarray] = []
    texts: list[Text] = []
    count = issued = 0
    for op in head.body.block.ops:
        if not isinstance(op, QueueOp):
            raise ParseError(f"{op.name} is not part of a schedule")
        columns = {name: _numbers(op.columns.data.get(name), f"{op.unit.data}: {name}") for name in _COLUMNS}
        if len({len(values) for values in columns.values()}) != 1:
            raise ParseError(f"{op.unit.data}: columns of different lengths")
        issued += int(columns["count"].sum())
        if (columns["count"] < 0).any() or issued > _MOST_ISSUES:
            raise ParseError(
                f"{op.unit.data}: an instruction is repeated less than 0 times, or all over {_MOST_ISSUES:,} times"
            )
        rows = np.zeros(len(columns["cycle"]), INSTRUCTION)
        rows["queue"] = op.queue.value.data
        for name, values in columns.items():
            rows[name] = values
        words = _numbers(op.words, f"{op.unit.data}: words")
        if len(words) % 3:
            raise ParseError(f"{op.unit.data}: words are of three numbers")
        words = words.reshape(-1, 3).astype(np.int64)
        words[words[:, 0] == 0, 1] += count
        groups.append(rows)
        texts.append(Text(op.queue.value.data, op.port.value.data, words))
        count += len(rows)
    image, inputs, outputs = _load_data(path.with_suffix(".npz"))
    return Program(
        machine,
        np.concatenate(groups) if groups else np.zeros(0, INSTRUCTION),
        texts,
        image,
        inputs,
        outputs,
        _json(head.origins.data, list, f"{path}: origins"),
        head.cycles.value.data,
        _json(head.bounds.data, dict, f"{path}: bounds"),
    )


def _load_data(path: Path) -> tuple[Image, list[Port], list[Port]]:
    if not path.is_file():
        raise ParseError(f"there is no {path}", hint="it lies beside the schedule, with the data at the start")
    arrays = read_arrays(path)
    found: dict[str, list[Port]] = {"input": [], "output": []}
    try:
        image = Image(arrays["slices"], arrays["addresses"], arrays["tags"], arrays["data"])
        for port in read_json(str(arrays["ports"]), f"{path}: ports"):
            role = port["role"]
            own = {name: arrays[f"{role}{len(found[role])}_{name}"] for name in _PORT_ARRAYS}
            shape, dtype = tuple(port["shape"]), np.dtype(port["dtype"])
            found[role].append(Port(port["name"], shape, dtype, fill=port["fill"], **own))
    except (KeyError, TypeError, ValueError) as error:
        raise ParseError(f"{path} is not the data of a schedule: {error}", hint="compile it again") from error
    return image, found["input"], found["output"]


def _json(text: str, kind: type, what: str) -> Any:
    found = read_json(text, what)
    if not isinstance(found, kind):
        raise ParseError(f"{what} is not a {kind.__name__}")
    return found


def _array(values: np.ndarray) -> DenseArrayBase:
    return DenseArrayBase.from_list(i32, [int(value) for value in values])


def _numbers(attribute: Any, what: str) -> np.ndarray:
    if not isinstance(attribute, DenseArrayBase):
        raise ParseError(f"{what} is not an array of integers")
    return np.array(attribute.get_values(), np.int64)
