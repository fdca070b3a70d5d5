"""What was computed before is not written again: within a block, and in those that it dominates."""

from __future__ import annotations

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V


def _function() -> Function:
    return Function(Module("nvptx64-nvidia-cuda"), "f", [("i32", "a"), ("i1", "c")], numbers_values=True)


def test_an_instruction_is_written_once() -> None:
    b = _function()
    first, again = (b.mul(b.args[0], V("i32", "33")) for _ in range(2))
    assert first == again
    assert len(b.lines) == 1


def test_what_has_effects_is_written_each_time() -> None:
    b = _function()
    for _ in range(2):
        b.load("i32", V("ptr", "%p"), 4)
        b.emit("i32", 'call i32 asm sideeffect "x;", "=r"()')
    assert len(b.lines) == 4


def test_a_branch_knows_what_came_before_it_and_not_what_its_neighbour_did() -> None:
    b, number = _function(), V("i32", "33")
    before = b.mul(b.args[0], number)
    yes, no, after = b.label("yes"), b.label("no"), b.label("after")
    b.branch_if(b.args[1], yes, no)
    b.start(yes)
    assert b.mul(b.args[0], number) == before
    inside = b.add(before, number)
    b.branch(after)
    b.start(no)
    assert b.add(before, number) != inside
    b.branch(after)
    b.start(after)
    assert b.mul(b.args[0], number) == before
    assert b.add(before, number) not in (inside,)


def test_what_the_head_of_a_loop_computes_is_known_after_it_and_what_its_body_does_is_not() -> None:
    b, one = _function(), V("i32", "1")
    with b.loop(V("i32", "0"), b.args[0], one):
        inside = b.mul(b.args[0], b.args[0])
        with b.when(b.args[1]):
            assert b.mul(b.args[0], b.args[0]) == inside
    assert b.mul(b.args[0], b.args[0]) != inside


def test_without_being_asked_for_all_is_written() -> None:
    b = Function(Module("x86_64-linux"), "f", [("i32", "a")])
    assert b.mul(b.args[0], V("i32", "33")) != b.mul(b.args[0], V("i32", "33"))
