"""How many programs share a block of keys in attention's backward, where query heads share keys.

    8 query heads to a key head, 128 blocks of keys, causal      → 128 programs, the longest twice the mean
    the same in 4 parts of 2 heads each                          → 512 programs, 1.1 times the mean, and sums of 4 parts

A model of time decides: how long the last multiprocessor takes, and what it takes to write partial sums and add them
up.
"""

from __future__ import annotations

from weft.ir.expr import product
from weft.ir.types import f32, tensor_of
from weft.lower.machine import Machine
from weft.lower.schedule.schedule import are_gradients_apart, choose_gradient_blocks
from weft.ops.matmul.attention_gradients import AttentionGradients

_RATE, _BANDWIDTH = 4.5e12, 3.0e12
"""What a multiprocessor multiplies in a second, and what memory moves."""
_JOINING_SECONDS, _PROGRAM_TURNS = 5e-6, 2.0
"""What another kernel takes, and what a program takes beside its turns."""
_TOGETHER, _APART = 4, 5
"""Products of a turn: keys and values together, and apart."""


def gradient_parts(op: AttentionGradients, machine: Machine) -> int:
    """Into how many parts the members of a group are best divided: 1 where that gains nothing, or cannot be told."""
    q, k, v = (tensor_of(value.type) for value in op.operands[1:4])
    *lead, members, queries, width = q.shape
    sizes = product(lead), members, queries, k.shape[-2], width, v.shape[-1]
    known = [size for size in sizes if isinstance(size, int) and size > 0]
    if len(known) < len(sizes) or not machine.capabilities.matrix_units:
        return 1
    heads, members, queries, keys, width, across = known
    apart = are_gradients_apart((width, across), machine)
    dropped = bool(op.params.get("dropout"))
    chosen = choose_gradient_blocks("keys", (queries, keys, width, across), machine, dropped=dropped)
    rows, columns, *depths = chosen.sides
    blocks, turns = -(-keys // columns), -(-queries // rows)
    seconds = (_APART if apart else _TOGETHER) * rows * columns * sum(depths) / _RATE
    lengths = [turns - min(turns, block * columns // rows) if op.params["causal"] else turns for block in range(blocks)]
    longest, total = max(lengths), heads * sum(lengths)
    moved = 2 * heads * keys * (width + across) * f32.bytes / _BANDWIDTH

    def cost(parts: int) -> float:
        each = members // parts
        programs = heads * blocks * parts
        work = (total * members + programs * _PROGRAM_TURNS) / machine.multiprocessors
        waves = -(-programs // machine.multiprocessors) * (longest * each + _PROGRAM_TURNS)
        last = max(work, longest * each + _PROGRAM_TURNS) if op.params["causal"] else waves
        return last * seconds + (moved * parts + _JOINING_SECONDS if parts > 1 else 0)

    return min((parts for parts in range(1, members + 1) if members % parts == 0), key=cost)
