"""`weft reduce`: from a graph that fails, or a script that compiles one, to a small script that reproduces it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft import __version__
from weft.config import Config
from weft.errors import UnsupportedError, WeftError
from weft.ops.graph import FuncOp
from weft.testing.failure import Failure, examine, examine_apart, run_apart
from weft.testing.reduce import reduce_function
from weft.tile.text import functions_of, parse_program, print_program
from weft.tools.opt import read_source
from weft.tools.terminal import Terminal, UsageError, check_folder

_TRIVIAL = """\
"graph.func"() ({
^bb0(%x: tensor<2xf32>):
  %y = "graph.neg"(%x) : (tensor<2xf32>) -> tensor<2xf32>
  "graph.return"(%y) : (tensor<2xf32>) -> ()
}) {sym_name = "trivial"} : () -> ()
"""


def reduce(terminal: Terminal, file: str, arguments: list[str], *, output: Path, seed: int, seconds: float) -> None:
    """Find what fails, shrink it, and write the script."""
    if file.endswith(".py") and not Path(file).is_file():
        raise UsageError(f"there is no script {file}")
    check_folder(output.parent, "-o")
    # Load everything once, here: each candidate runs in a child that is forked from this process.
    examine(_only(functions_of(parse_program(_TRIVIAL))))
    with terminal.working("looking for what fails"):
        found = _of_script(file, arguments) if file.endswith(".py") else functions_of(parse_program(*read_source(file)))
        if isinstance(found, _FailingCall):
            _write_call(terminal, found, output)
            return
        functions = found
        function, failure = _failing(functions, seed, seconds)
    terminal.show(f"fails with {len(list(function.block.ops)) - 1} ops: {failure.kind}: {failure.text.splitlines()[0]}")
    tried = 0

    def interesting(candidate: FuncOp) -> bool:
        found = examine_apart(candidate, seed=seed, seconds=seconds)
        return found is not None and (found.kind, found.key) == (failure.kind, failure.key)

    def progress(ops: int, candidates: int) -> None:
        nonlocal tried
        tried = candidates
        if terminal.err.is_terminal and not terminal.json:
            terminal.err.print(f"\r{ops} ops left, {candidates} candidates tried", end="")

    small = reduce_function(function, interesting, progress)
    if terminal.err.is_terminal and not terminal.json:
        terminal.err.print()
    final = examine_apart(small, seed=seed, seconds=seconds) or failure
    text = print_program(small)
    output.write_text(script(text, final, seed))
    ops = len(list(small.block.ops)) - 1
    terminal.text(text)
    terminal.show(f"{ops} ops left after {tried} candidates; `python {output}` reproduces it")
    figures = {"kind": final.kind, "failure": final.text, "ops": ops, "tried": tried, "script": str(output)}
    terminal.finish({"ok": True, **figures, "program": text})


def _only(functions: list[FuncOp]) -> FuncOp:
    (function,) = functions
    function.detach()
    return function


def _failing(functions: list[FuncOp], seed: int, seconds: float) -> tuple[FuncOp, Failure]:
    refusals: list[str] = []
    for function in functions:
        if function.parent is not None:
            function.detach()
        try:
            failure = examine_apart(function, seed=seed, seconds=seconds)
        except WeftError as error:
            refusals.append(str(error))
            continue
        if failure is not None:
            return function, failure
    refused = f"; {len(refusals)} cannot be run, the first because {refusals[0]}" if refusals else ""
    tried = "the graph does not fail" if len(functions) == 1 else f"none of {len(functions)} graphs fails"
    raise UnsupportedError(f"{tried} on random inputs{refused}", hint="try another --seed, or other sizes")


@dataclass(frozen=True)
class _FailingCall:
    """A call that cannot be imported: its text, and the error's."""

    text: str
    error: str


def _write_call(terminal: Terminal, call: _FailingCall, output: Path) -> None:
    failure = Failure("raises", "", call.error)
    output.write_text(call_script(call.text, failure))
    terminal.text(call.text)
    terminal.show(f"the import of this call fails: {call.error}; `python {output}` reproduces it")
    figures = {"kind": "raises", "failure": call.error, "ops": 1, "tried": 0, "script": str(output)}
    terminal.finish({"ok": True, **figures, "program": call.text})


def _of_script(path: str, arguments: list[str]) -> list[FuncOp] | _FailingCall:
    """The graphs that a script compiles, as they come in, one that fails first; or a call that does not come in."""

    def run() -> dict[str, Any]:
        from weft.tools.explain import explain_script

        explanation, _ = explain_script(path, arguments, programs=True, cached=False)
        for record in explanation.records:
            if record.captured is not None:
                from weft.testing.reduce_import import failing_call

                text, error = failing_call(record.captured)
                return {"call": text, "error": f"{type(error).__name__}: {error}".partition("\n")[0]}
        graphs = [(record.error is None, record.programs.get("graph")) for record in explanation.records]
        return {"graphs": [text for _, text in sorted(graphs, key=lambda each: each[0]) if text]}

    outcome = run_apart(run, seconds=3600.0)
    if isinstance(outcome, Failure):
        raise UnsupportedError(f"the script {outcome.text} before its graphs are known", location=path)
    if "refused" in outcome:
        raise UnsupportedError(outcome["refused"], location=path)
    if "call" in outcome:
        return _FailingCall(outcome["call"], outcome["error"])
    if not outcome["graphs"]:
        raise UnsupportedError("no graph of the script reached Weft", location=path)
    return [function for text in outcome["graphs"] for function in functions_of(parse_program(text, path))]


def call_script(call: str, failure: Failure) -> str:
    """A script that reproduces the failure of a call's import."""
    return f"""{_head(failure)}
import torch

from weft.testing.reduce_import import reproduce


{call}
if __name__ == "__main__":
    reproduce(call, INPUTS)
"""


def _head(failure: Failure) -> str:
    said = failure.text.splitlines()[0].replace("\\", "/").replace('"""', "'''")
    return f'''"""Reproduces a failure of Weft {__version__}: {failure.kind}, {said}

Exits with 1 as long as the failure is there. {Config.from_options()}
"""
'''


def script(program: str, failure: Failure, seed: int) -> str:
    """A script that reproduces a failure."""
    return f'''{_head(failure)}
from weft.testing.failure import reproduce

PROGRAM = r"""
{program.strip()}
"""

if __name__ == "__main__":
    reproduce(PROGRAM, seed={seed})
'''
