"""Shrinks a random PyTorch program that fails to a few lines that fail the same way, greedily.

Moves, from coarse to fine, until none succeeds or the time is over: fewer calls; fewer outputs; leave out runs of lines
with what hangs on them; put an operand in the place of a result; smaller sizes; no gradients, no dynamic sizes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from weft.testing.fuzz.torch_case import TorchCase, names_in, targets

Interesting = Callable[[TorchCase], bool]


def shrink(case: TorchCase, interesting: Interesting, seconds: float = 60.0) -> TorchCase:
    """The smallest case found that is still interesting; the case itself must be."""
    until = time.perf_counter() + seconds
    moves = (_fewer_calls, _fewer_outputs, _fewer_lines, _operands_for_results, _plainer, _smaller_sizes, _fewer_inputs)
    shrunk = True
    while shrunk:
        shrunk = False
        for move in moves:
            while (smaller := _first(move(case), interesting, until)) is not None:
                case, shrunk = smaller, True
    return case


def _first(candidates: Iterator[TorchCase], interesting: Interesting, until: float) -> TorchCase | None:
    for candidate in candidates:
        if time.perf_counter() > until:
            return None
        if candidate.outputs and interesting(candidate):
            return candidate
    return None


def without(case: TorchCase, dropped: set[int]) -> TorchCase | None:
    """The case without some lines, and without those that use what they make; None where nothing is left."""
    gone, body = set[str](), list[str]()
    for number, line in enumerate(case.body):
        if number in dropped or gone & set(names_in(line)):
            gone |= set(targets(line))
        else:
            body.append(line)
    outputs = tuple(name for name in case.outputs if name not in gone)
    if not outputs:
        made = [name for line in body for name in targets(line)]
        outputs = (made[-1],) if made else case.arguments[:1]
    return replace(case, body=tuple(body), outputs=outputs).live()


def _fewer_calls(case: TorchCase) -> Iterator[TorchCase]:
    if len(case.calls) > 1:
        for number in range(len(case.calls)):
            yield replace(case, calls=case.calls[:number] + case.calls[number + 1 :])


def _fewer_outputs(case: TorchCase) -> Iterator[TorchCase]:
    outputs = case.outputs
    if len(outputs) > 3:
        half = len(outputs) // 2
        yield replace(case, outputs=outputs[:half])
        yield replace(case, outputs=outputs[half:])
    if len(outputs) > 1:
        for number in range(len(outputs)):
            yield replace(case, outputs=outputs[:number] + outputs[number + 1 :])


def _fewer_lines(case: TorchCase) -> Iterator[TorchCase]:
    count = len(case.body)
    width = count // 2 or 1
    while count and width >= 1:
        for start in reversed(range(0, count, width)):
            smaller = without(case, set(range(start, min(start + width, count))))
            if smaller is not None and len(smaller.body) < count:
                yield smaller
        width //= 2


def _operands_for_results(case: TorchCase) -> Iterator[TorchCase]:
    """What used a result uses an operand of its line."""
    for number in reversed(range(len(case.body))):
        line = case.body[number]
        made = targets(line)
        if len(made) != 1:
            continue
        for operand in names_in(line):
            if operand in made:
                continue
            pattern = re.compile(rf"\b{made[0]}\b")
            rest = tuple(pattern.sub(operand, other) for other in case.body[number + 1 :])
            outputs = tuple(operand if name == made[0] else name for name in case.outputs)
            yield replace(case, body=case.body[:number] + rest, outputs=tuple(dict.fromkeys(outputs))).live()


def _plainer(case: TorchCase) -> Iterator[TorchCase]:
    if case.mode != "no_grad":
        yield replace(case, mode="no_grad")
    if case.dynamic is not False:
        yield replace(case, dynamic=False)
    if any("layout" in call for call in case.calls):
        yield replace(case, calls=tuple({n: s for n, s in call.items() if n != "layout"} for call in case.calls))


def _smaller_sizes(case: TorchCase) -> Iterator[TorchCase]:
    for number, call in enumerate(case.calls):
        for name, size in call.items():
            for smaller in (1, 2, 3, 4, 8, size // 2, size - 1):
                if name != "layout" and 0 < smaller < size:
                    changed = {**call, name: smaller}
                    yield replace(case, calls=(*case.calls[:number], changed, *case.calls[number + 1 :]))


def _fewer_inputs(case: TorchCase) -> Iterator[TorchCase]:
    """One input in the place of another, and a plain one in the place of a view."""
    arguments = case.arguments
    for position, kept in enumerate(arguments):
        for other in arguments[position + 1 :]:
            pattern = re.compile(rf"\b{other}\b")
            body = tuple(pattern.sub(kept, line) for line in case.body)
            outputs = tuple(dict.fromkeys(kept if name == other else name for name in case.outputs))
            if body != case.body:
                yield replace(case, body=body, outputs=outputs).live()
    for number, line in enumerate(case.inputs):
        plain = re.sub(r"(= draw\(\(.*?\), torch\.\w+\)).+$", r"\1", line)
        if plain != line:
            yield replace(case, inputs=(*case.inputs[:number], plain, *case.inputs[number + 1 :]))
