"""`weft reduce`: from a graph that fails, or a script that compiles one, to a small script that reproduces it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft import __version__
from weft.config import Config
from weft.errors import UnsupportedError, WeftError
from weft.ir.attributes import to_attribute
from weft.ops.graph import FuncOp
from weft.runtime.record import CompilationRecord
from weft.testing.reduce.failure import Failure, examine, examine_apart, run_apart
from weft.testing.reduce.kept_inputs import KeptInputs, keep, read_inputs
from weft.testing.reduce.reduce import reduce_function
from weft.tile.text import functions_of, parse_program, print_program
from weft.tools.opt.opt import read_source
from weft.tools.terminal import Terminal, UsageError, check_folder

_TRIVIAL = """\
"graph.func"() ({
^bb0(%x: tensor<2xf32>):
  %y = "graph.neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>
  "graph.return"(%y) : (tensor<2xf32>) -> ()
}) {sym_name = "trivial"} : () -> ()
"""


@dataclass(frozen=True)
class _Graph:
    """A graph that may fail: with the options, and the inputs, of a script."""

    function: FuncOp
    options: Mapping[str, Any]
    inputs: KeptInputs | None = None

    @property
    def config(self) -> Config:
        return Config.from_options(self.options)


def reduce(terminal: Terminal, file: str, arguments: list[str], *, output: Path, seed: int, seconds: float) -> None:
    """Find what fails, shrink it, and write the script."""
    if file.endswith(".py") and not Path(file).is_file():
        raise UsageError(f"there is no script {file}")
    check_folder(output.parent, "-o")
    # Load everything once, here: each candidate runs in a child that is forked from this process.
    examine(_only(functions_of(parse_program(_TRIVIAL))))
    with terminal.working("looking for what fails"):
        found = _of_script(file, arguments) if file.endswith(".py") else _of_text(*read_source(file))
        if isinstance(found, _FailingCall):
            _write_call(terminal, found, output)
            return
        graph, failure = _failing(found, seed, seconds)
    function = graph.function
    terminal.show(f"fails with {len(list(function.block.ops)) - 1} ops: {failure.kind}: {failure.text.splitlines()[0]}")
    tried = 0

    def interesting(candidate: FuncOp) -> bool:
        found = examine_apart(candidate, graph.config, seed, seconds, graph.inputs)
        return found is not None and (found.kind, found.key) == (failure.kind, failure.key)

    def progress(ops: int, candidates: int) -> None:
        nonlocal tried
        tried = candidates
        if terminal.err.is_terminal and not terminal.json:
            terminal.err.print(f"\r{ops} ops left, {candidates} candidates tried", end="")

    small = reduce_function(function, interesting, progress)
    if terminal.err.is_terminal and not terminal.json:
        terminal.err.print()
    final = examine_apart(small, graph.config, seed, seconds, graph.inputs) or failure
    text = print_program(small)
    inputs = None if graph.inputs is None else graph.inputs.only(small)
    output.write_text(script(text, final, seed, graph.options, inputs))
    ops = len(list(small.block.ops)) - 1
    terminal.text(text)
    terminal.show(f"{ops} ops left after {tried} candidates; `python {output}` reproduces it")
    figures = {"kind": final.kind, "failure": final.text, "ops": ops, "tried": tried, "script": str(output)}
    terminal.finish({"ok": True, **figures, "options": dict(graph.options), "program": text})


def _only(functions: list[FuncOp]) -> FuncOp:
    (function,) = functions
    function.detach()
    return function


def _failing(graphs: Sequence[_Graph], seed: int, seconds: float) -> tuple[_Graph, Failure]:
    """The first graph that fails, on the inputs that a script gave it or, if not on those, on random ones."""
    refusals: list[str] = []
    for graph in graphs:
        if graph.function.parent is not None:
            graph.function.detach()
        for tried in (graph, replace(graph, inputs=None)) if graph.inputs else (graph,):
            try:
                failure = examine_apart(tried.function, tried.config, seed, seconds, tried.inputs)
            except WeftError as error:
                refusals.append(str(error))
                continue
            if failure is not None:
                return tried, failure
    refused = f"; {len(refusals)} cannot be run, the first because {refusals[0]}" if refusals else ""
    tried = "the graph does not fail" if len(graphs) == 1 else f"none of {len(graphs)} graphs fails"
    raise UnsupportedError(f"{tried} on random inputs{refused}", hint="try another --seed, or other sizes")


@dataclass(frozen=True)
class _FailingCall:
    """A call that cannot be imported: its text, the error's, and the options."""

    text: str
    error: str
    options: Mapping[str, Any]


def _write_call(terminal: Terminal, call: _FailingCall, output: Path) -> None:
    failure = Failure("raises", "", call.error)
    output.write_text(call_script(call.text, failure, call.options))
    terminal.text(call.text)
    terminal.show(f"the import of this call fails: {call.error}; `python {output}` reproduces it")
    figures = {"kind": "raises", "failure": call.error, "ops": 1, "tried": 0, "script": str(output)}
    terminal.finish({"ok": True, **figures, "program": call.text})


def _of_text(text: str, name: str) -> list[_Graph]:
    return [_Graph(function, {}) for function in functions_of(parse_program(text, name))]


def _of_script(path: str, arguments: list[str]) -> list[_Graph] | _FailingCall:
    """The graphs that a script compiles, as they come in, one that fails first; or a call that does not come in."""

    def run() -> dict[str, Any]:
        from weft.tools.explain.explain import explain_script

        explanation, _ = explain_script(path, arguments, programs=True, cached=False, inputs=True)
        for record in explanation.records:
            if record.captured is not None:
                from weft.testing.reduce.reduce_import import failing_call

                text, error = failing_call(record.captured, record.config)
                said = f"{type(error).__name__}: {error}".partition("\n")[0]
                return {"call": text, "error": said, "options": _options(record.config)}
        records = sorted(explanation.records, key=lambda record: record.error is None)
        return {"graphs": [_kept(record) for record in records if record.programs.get("graph")]}

    outcome = run_apart(run, seconds=3600.0)
    if isinstance(outcome, Failure):
        raise UnsupportedError(f"the script {outcome.text} before its graphs are known", location=path)
    if "refused" in outcome:
        raise UnsupportedError(outcome["refused"], location=path)
    if "call" in outcome:
        return _FailingCall(outcome["call"], outcome["error"], outcome["options"])
    if not outcome["graphs"]:
        raise UnsupportedError("no graph of the script reached Weft", location=path)
    return [
        _Graph(function, kept["options"], kept["inputs"] and read_inputs(kept["inputs"]))
        for kept in outcome["graphs"]
        for function in map(_numbered, functions_of(parse_program(kept["graph"], path)))
    ]


def _kept(record: CompilationRecord) -> dict[str, Any]:
    inputs = None if record.inputs is None else keep(record.inputs, record.checks)
    return {
        "graph": record.programs["graph"],
        "options": _options(record.config),
        "inputs": inputs and inputs.as_text(),
    }


def _options(config: Config | None) -> dict[str, Any]:
    """What a script asked for beyond the defaults."""
    default, given = vars(Config()), vars(config or Config())
    return {name: value for name, value in given.items() if value != default[name] and name not in ("cache", "tune")}


def _numbered(function: FuncOp) -> FuncOp:
    """The function with the names for its arguments that candidates of a reduction have."""
    names = tuple(f"x{number}" for number in range(len(function.block.args)))
    function.attributes["arg_names"] = to_attribute(names)
    return function


def call_script(call: str, failure: Failure, options: Mapping[str, Any]) -> str:
    """A script that reproduces the failure of a call's import."""
    given = f", options={dict(options)!r}" if options else ""
    return f"""{_head(failure)}
import torch

from weft.testing.reduce.reduce_import import reproduce


{call}
if __name__ == "__main__":
    reproduce(call, INPUTS{given})
"""


def _head(failure: Failure) -> str:
    said = failure.text.splitlines()[0].replace("\\", "/").replace('"""', "'''")
    return f'''"""Reproduces a failure of Weft {__version__}: {failure.kind}, {said}

Exits with 1 as long as the failure is there. {Config.from_options()}
"""
'''


def script(
    program: str, failure: Failure, seed: int, options: Mapping[str, Any], inputs: KeptInputs | None = None
) -> str:
    """A script that reproduces a failure."""
    given = f", options={dict(options)!r}" if options else ""
    kept = "" if inputs is None else f"INPUTS = {inputs.as_text()!r}\n\n"
    given += "" if inputs is None else ", inputs=INPUTS"
    return f'''{_head(failure)}
from weft.testing.reduce.failure import reproduce

PROGRAM = r"""
{program.strip()}
"""

{kept}if __name__ == "__main__":
    reproduce(PROGRAM, seed={seed}{given})
'''
