"""How much memory an operator's compilation and first call take at most, against eager's: every OpInfo entry, enlarged.

`python -m weft.testing.op_memory` enlarges a sample of each operator along one dimension until its largest tensor has
the size asked for, and measures both in a child process. What eager does not take in that form is left out, and listed.
"""

# torch's testing package has no types, and some of torch's own arguments have none.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportMissingTypeStubs=false

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from weft.testing.bench.benchmark import EAGER, WEFT, describe
from weft.testing.child import Answer, Child, serve_requests
from weft.testing.conformance.journal import Journal, commit
from weft.testing.peak_memory import SETTINGS, give_back, peak, reset_peak

FACTOR, ALLOWANCE = 1.5, 64 << 20
"""What Weft may take: so many times eager's peak, and so many bytes more for the compiler itself."""
LONGEST_EAGER_SECONDS = 20.0
MOST_TRIES = 6


def exceeds(weft: int, eager: int) -> bool:
    """Whether a peak is more than it may be."""
    return weft > FACTOR * eager + ALLOWANCE


def enlarged(sample: Any, size: int) -> Iterator[tuple[Sequence[Any], dict[str, Any]]]:
    """A sample's arguments with its tensors repeated along a dimension until the largest has `size` bytes.

    There are none of a sample with sparse tensors, which torch does not repeat.
    """
    leaves, structure = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    if any(isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided for leaf in leaves):
        return
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    largest = max(tensors, key=lambda tensor: tensor.numel() * tensor.itemsize, default=None)
    if largest is None or not largest.numel():
        return
    times = max(1, size // (largest.numel() * largest.itemsize))
    for dim in dict.fromkeys((0, largest.dim() - 1)):
        length = largest.shape[dim]

        def longer(leaf: Any, dim: int = dim, length: int = length) -> Any:
            if not isinstance(leaf, torch.Tensor) or leaf.dim() <= dim or leaf.shape[dim] != length:
                return leaf
            return leaf.detach().repeat_interleave(times, dim)

        first, args, kwargs = pytree.tree_unflatten([longer(leaf) for leaf in leaves], structure)
        yield (first, *args), kwargs


def peak_of(call: Callable[[], Any]) -> int:
    """By how many bytes the resident memory grows at most during a call, whose results are dropped."""
    give_back()
    before = reset_peak()
    result = call()
    grown = max(0, peak() - before)
    del result
    return grown


def measured(name: str, size: int, begin: Callable[[str], None] = lambda who: None) -> dict[str, Any]:
    """The peaks of eager and Weft for an operator, or why there are none; `begin` is told whose turn it is."""
    from torch.testing._internal.common_methods_invocations import op_db

    (op,) = [each for each in op_db if each.formatted_name == name]
    why = "no sample of it can be enlarged"
    tries = 0
    for sample in op.sample_inputs("cpu", torch.float32):
        for args, kwargs in enlarged(sample, size):
            tries += 1
            if tries > MOST_TRIES:
                return {"left_out": why}
            try:
                begin(EAGER)
                began = time.perf_counter()
                with torch.no_grad():
                    eager = peak_of(partial(op.op, *copy.copy(args), **kwargs))
                if time.perf_counter() - began > LONGEST_EAGER_SECONDS:
                    why = "eager takes too long"
                    continue
            except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
                why = f"eager refuses it: {describe(error)}"
                continue
            begin(WEFT)
            torch.compiler.reset()

            def function(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
                return op.op(*args, **kwargs)

            compiled = torch.compile(function, backend="weft", options={"cache": False}, dynamic=False)
            with torch.no_grad():
                weft = peak_of(partial(compiled, args, kwargs))
            return {"eager": eager, "weft": weft, "exceeds": exceeds(weft, eager)}
    return {"left_out": why}


def _first(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ x, 0)


def _prepare(settings: dict[str, Any]) -> Callable[[dict[str, Any], Answer], None]:
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    # What the compiler and Dynamo themselves take when they are first used is no operator's.
    torch.compile(_first, backend="weft", options={"cache": False})(torch.randn(64, 64))
    measured("contiguous", 1 << 12)

    def handle(request: dict[str, Any], answer: Answer) -> None:
        try:
            answer(measured(request["op"], settings["size"], lambda who: answer({"turn": who})))
        except Exception as error:  # it is the verdict on this operator
            answer({"left_out": f"Weft failed: {describe(error)}"})

    return handle


def outcome(child: Child, time_limit: float) -> dict[str, Any]:
    """A child's answer; where it died or took too long, in whose turn that was."""
    turn, until = EAGER, time.monotonic() + time_limit
    while (answer := child.receive(max(0.0, until - time.monotonic()))) is not None:
        if "turn" not in answer:
            return answer
        turn = answer["turn"]
    return {"left_out": f"{'Weft' if turn == WEFT else 'eager'} failed: {child.epitaph(time_limit)}"}


def main() -> int:
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(prog="python -m weft.testing.op_memory", description=__doc__)
    parser.add_argument("ops", nargs="*", help="names of operators; all by default")
    parser.add_argument("--megabytes", type=int, default=64, help="the size of the largest tensor")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no operator after so many seconds")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one operator")
    parser.add_argument("--log", type=Path, default=Path("reports/op-memory.jsonl"), help="results, for the next run")
    given = parser.parse_args()
    names = given.ops or [op.formatted_name for op in op_db if torch.float32 in op.dtypes]
    journal, until = Journal(given.log, f"{commit()} {given.megabytes}"), time.monotonic() + given.seconds
    with Child("weft.testing.op_memory", {"size": given.megabytes << 20}, SETTINGS) as child:
        for name in names:
            if name in journal.results() or time.monotonic() > until:
                continue
            child.send({"op": name})
            answer = outcome(child, given.limit)
            journal.add(name, answer)
            if answer.get("exceeds"):
                print(f"{name}: {answer['weft'] >> 20} MiB, eager {answer['eager'] >> 20}", flush=True)
            elif " failed: " in str(answer.get("left_out")):
                print(f"{name}: {answer['left_out']}", flush=True)
    results = {name: found for name, found in journal.results().items() if name in names}
    above = [name for name, found in results.items() if found.get("exceeds")]
    judged = [name for name, found in results.items() if "weft" in found]
    print(f"{len(judged)} of {len(names)} operators measured, {len(above)} take more than they may")
    return 1 if above else 0


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdecimal():  # as a child: the number of its pipe
        serve_requests(_prepare)
    else:
        sys.exit(main())
