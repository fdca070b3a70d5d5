"""Statically scheduled processors: from a graph to a program in which every unit's every cycle is decided beforehand.

    graph ── mapping ──► stream ── scheduler ──► schedule ──┬── verify    ten invariants
                                                            └── simulate  bits and cycles

`machine` describes the hardware as data. What verifies and what simulates reads the schedule only, and shares nothing
with what made it but the description and the instruction set.
"""
