"""Loops as LLVM code, with what they carry in registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.llvm.builder import Function
from weft.backends.llvm.values import V


def loop_with(
    b: Function,
    lower: V,
    upper: V,
    step: V,
    initial: Sequence[Sequence[V]],
    body: Callable[[V, list[list[V]]], list[list[V]]],
    *,
    unrolled: bool = True,
    following: Callable[[], V] | None = None,
) -> list[list[V]]:
    """`for (i = lower; i < upper; i += step)` with values carried in registers from iteration to iteration.

    One that must not be `unrolled` takes no more registers than an iteration needs. What comes next may be found by an
    iteration: `following` tells it then.
    """
    before, head, inside, after = b.block, b.label("head"), b.label("body"), b.label("after")
    b.branch(head)
    b.start(head)
    variable = V(lower.type, b.fresh("i"))
    carried = [[V(value.type, b.fresh()) for value in values] for values in initial]
    position = len(b.lines)
    b.lines += [""] * (1 + sum(map(len, carried)))
    if not unrolled:
        b.do('call void asm sideeffect ".pragma \\22nounroll\\22;", ""()')
    b.branch_if(b.icmp("slt", variable, upper), inside, after)
    b.start(inside)
    yielded = body(variable, [list(values) for values in carried])
    next_one = b.add(variable, step) if following is None else following()
    latch = b.block
    b.branch(head)
    phis = [(variable, lower, next_one)]
    for names, firsts, nexts in zip(carried, initial, yielded, strict=True):
        phis += zip(names, firsts, nexts, strict=True)
    for number, (name, first, next_) in enumerate(phis):
        text = f"phi {name.type} [ {first.name}, %{before} ], [ {next_.name}, %{latch} ]"
        b.lines[position + number] = f"  {name.name} = {text}"
    b.start(after)
    return carried
