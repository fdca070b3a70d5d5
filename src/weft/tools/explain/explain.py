"""`weft explain` and `weft.explain`: what compilations did, for people to read.

An `Explanation` is a list of compilation records with what Dynamo says about graph breaks. It prints as a report:
graphs, time by stage, kernels, what libraries and the framework do instead of generated code, and what was assumed of
sizes.
"""

from __future__ import annotations

import runpy
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from weft.backends.nvidia.target import NvidiaTarget
from weft.config import MODES, Config, compiling_anew
from weft.errors import UnsupportedError, WeftError
from weft.runtime.profile import Profile, profile
from weft.runtime.record import recording
from weft.tools.explain.breaks import GraphBreaks
from weft.tools.explain.report import Explanation


def explain(
    function: Callable[..., Any],
    *inputs: Any,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    **named: Any,
) -> Explanation:
    """Compile a function or module with Weft, call it with the inputs, and say what was done.

    Where gradients are wanted of what it gives, they are computed as well, and go nowhere: the backward graph is
    explained too. Nothing is taken from the disk cache, so that times are those of a compilation. `options` are fields
    of `Config`; these, `mode`, `dynamic` and `fullgraph` are what `torch.compile` takes, all else goes to the function.
    """
    if not callable(function):
        raise WeftError(
            f"weft.explain takes a module or a function, got {type(function).__name__}",
            hint="give it what is to be compiled, then its inputs: weft.explain(model, x)",
        )
    import torch

    from weft.frontends.torch.backend import weft_backend
    from weft.frontends.torch.settings import settings

    given = {**MODES[mode or "default"], **(options or {}), "cache": False} if mode in (None, *MODES) else {}
    config = settings(given, mode)

    # A backend of our own, or Dynamo would find what it compiled for `function` before.
    def backend(module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return weft_backend(module, example_inputs, options=given)

    breaks, start = GraphBreaks(), time.perf_counter()
    with recording(programs=True, blocks=True) as records, _timing() as ran:
        compiled: Any = torch.compile(  # pyright: ignore[reportUnknownMemberType]
            function, backend=backend, dynamic=dynamic, fullgraph=fullgraph
        )
        _differentiate(function, (inputs, named), compiled(*inputs, **named))
    return Explanation(tuple(records), breaks.since(), config, time.perf_counter() - start, ran.steps)


def _differentiate(function: Any, given: Any, results: Any) -> None:
    """Compute the gradients of results, if there are any, without leaving them on what they are of."""
    import torch
    from torch.utils import _pytree as pytree

    def wanted(values: Any) -> list[Any]:
        leaves = pytree.tree_leaves(values)
        return [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]

    outputs = [each for each in wanted(results) if each.grad_fn is not None]
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    leaves = {id(each): each for each in (*wanted(given), *wanted(parameters), *_leaves(outputs))}
    if outputs:
        ones = [torch.ones_like(each) for each in outputs]
        torch.autograd.grad(outputs, list(leaves.values()), ones, allow_unused=True)


def _leaves(outputs: Sequence[Any]) -> list[Any]:
    """The tensors that gradients of others would be added up on: what functions close over, too."""
    seen: set[Any] = set()
    pending, found = [each.grad_fn for each in outputs], list[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [node.variable] if hasattr(node, "variable") else []
        pending += [following for following, _ in node.next_functions]
    return found


def explain_script(
    path: str,
    arguments: Sequence[str],
    *,
    programs: bool,
    passes: bool = False,
    cached: bool,
    inputs: bool = False,
) -> tuple[Explanation, int]:
    """Run a Python script and explain what it compiled; also gives the script's exit code.

    With `programs`, records keep the programs at each level, with `passes` those after each pass, too; with `inputs`,
    what the programs were called with.
    """
    if not Path(path).is_file():
        raise UnsupportedError(f"there is no script {path}", location=path)
    with nullcontext() if cached else compiling_anew():
        return _explained_run(path, arguments, programs=programs, passes=passes, inputs=inputs)


def _explained_run(
    path: str, arguments: Sequence[str], *, programs: bool, passes: bool, inputs: bool
) -> tuple[Explanation, int]:
    breaks, start, code, failure = GraphBreaks(), time.perf_counter(), 0, None
    kept = sys.argv, sys.path
    sys.argv, sys.path = [path, *arguments], [str(Path(path).resolve().parent), *sys.path]
    kept_texts = recording(programs=programs, passes=passes, blocks=True, inputs=inputs)
    with kept_texts as records, _timing() as ran:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        except Exception as error:
            # The script's own failure is shown as Python would, and what was compiled until then is explained.
            traceback.print_exc()
            code, failure = 1, error
        finally:
            sys.argv, sys.path = kept
    seconds = time.perf_counter() - start
    return Explanation(tuple(records), breaks.since(), Config.from_options(), seconds, ran.steps, failure), code


def explain_program(
    text: str, name: str, *, programs: bool, passes: bool = False, target: NvidiaTarget | None = None
) -> Explanation:
    """Compile the functions of a graph program, for the configured target or a GPU that need not be there."""
    from weft.backends.target import find_target
    from weft.targets.nvidia import Nvidia
    from weft.tile.text import functions_of, parse_program

    config, start = Config.from_options(), time.perf_counter()
    made_for = Nvidia(target) if target is not None else find_target(config.target).here(config)
    functions = functions_of(parse_program(text, name))
    if not functions:
        raise UnsupportedError(
            "there is no graph.func to compile", location=name, hint="`weft opt` takes tile programs"
        )
    with recording(programs=programs, passes=passes, blocks=True) as records:
        for function in functions:
            function.detach()
            try:
                made_for.compile(function, config)
            except WeftError:
                if not any(record.error for record in records):
                    raise  # else the record has it
    return Explanation(tuple(records), {}, config, time.perf_counter() - start)


@contextmanager
def _timing() -> Generator[Profile]:
    """Times the steps of what runs inside, where there is a GPU; else the profile stays empty."""
    import torch

    if torch.cuda.is_available():
        with profile() as ran:
            yield ran
    else:
        yield Profile()
