"""`graph.if` and `graph.loop`: text, meaning, and compiled programs, by the launcher alone and by the host."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from xdsl.context import Context
from xdsl.ir import Operation

from weft.backends.reference.graph import run
from weft.config import Config
from weft.errors import ParseError, ShapeError
from weft.frontends.text import compile_text
from weft.ir.expr import symbol
from weft.ir.types import Tensor, boolean, f32, i64
from weft.lower.steps import IfStep, LoopStep, Step
from weft.ops.control import ControlOp, functions_run, if_else, loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp, module_of
from weft.passes.outline_regions import OutlineRegions
from weft.runtime.executable import Executable
from weft.tile.text import functions_of, parse_program

CONFIG = Config(cache=False, verify=True)


def built(name: str, types: dict[str, Tensor], build: Callable[..., Sequence[object]]) -> FuncOp:
    function = FuncOp.make(name, types)
    b = GraphBuilder(function.block)
    b.insert(ReturnOp.make(build(b, *function.block.args)))
    return function


def recurrence() -> FuncOp:
    """A loop over a symbolic number of slices, backwards, and a branch behind it."""
    turns = symbol("s0")

    def build(b, x, w, h, c):
        def turn(b, index, states, slices):
            new = b.tanh(b.add(b.dot(states[0], w), slices[0]))
            new = b.add(new, b.cast(index, dtype=f32))
            return [new, b.add(states[1], new)], [new, b.mul(new, new)]

        finals, stacks = loop(b, turn, [h, h], [x], trip_count=turns, directions=[-1], stack_directions=[1, -1])
        (chosen,) = if_else(b, c, lambda b: [b.exp(finals[0])], lambda b: [finals[1]])
        return [*finals, *stacks, chosen]

    tensors = {"x": (turns, 4, 8), "w": (8, 8), "h": (4, 8)}
    return built("f", {**{k: Tensor(f32, v) for k, v in tensors.items()}, "c": Tensor(boolean, ())}, build)


def search() -> FuncOp:
    """A loop with a condition and a bound, what is the same in all turns, a branch inside, and states that change
    places."""

    def build(b, x, n, w):
        def turn(b, index, states, slices):
            same = b.softplus(b.dot(w, w), beta=1.0, threshold=20.0)
            total = b.sum(states[0], dims=(0, 1), keep=False)
            (state,) = if_else(
                b,
                b.gt(total, b.full_like(total, 0)),
                lambda b: [b.sub(states[0], b.dot(states[0], same))],
                lambda b: [b.add(states[0], b.full_like(total, 1.5))],
            )
            state = b.tanh(state)
            _, one, other = states
            return [state, other, b.add(one, other)], [state], b.lt(b.add(index, b.full_like(index, 1)), n)

        one = b.full(value=1.0, shape=(), dtype=f32)
        finals, stacks = loop(b, turn, [x, one, one], trip_count=12, condition=b.gt(n, b.full_like(n, 0)))
        return [*finals, *stacks]

    return built("g", {"x": Tensor(f32, (4, 8)), "n": Tensor(i64, ()), "w": Tensor(f32, (8, 8))}, build)


def arrays_of(function: FuncOp, turns: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    if function.sym_name.data == "f":
        shapes = ((turns, 4, 8), (8, 8), (4, 8))
        x, w, h = (rng.standard_normal(shape).astype(np.float32) * np.float32(0.3) for shape in shapes)
        return [x, w, h, np.array(turns % 2 == 0)]
    x, w = (rng.standard_normal(shape).astype(np.float32) * np.float32(0.3) for shape in ((4, 8), (8, 8)))
    return [x, np.array(turns), w]


def test_text_is_read_back_as_it_was_printed():
    for function in (recurrence(), search()):
        assert str(functions_of(parse_program(str(function)))[0]) == str(function)


def test_the_reference_runs_turns_as_a_loop_in_python_does():
    function = recurrence()
    x, w, h, c = arrays_of(function, 5)
    first, second, forward, backward, chosen = run(function, [x, w, h, c])
    state, total, made = h, h, []
    for turn in range(5):
        state = np.tanh(state @ w + x[4 - turn]) + np.float32(turn)
        total = total + state
        made.append(state)
    np.testing.assert_allclose(first, state, rtol=1e-6)
    np.testing.assert_allclose(second, total, rtol=1e-6)
    np.testing.assert_allclose(forward, np.stack(made), rtol=1e-6)
    np.testing.assert_allclose(backward, np.stack(made[::-1]) ** 2, rtol=1e-6)
    np.testing.assert_allclose(chosen, total, rtol=1e-6)


def decide_by_host(monkeypatch):
    """Let no launcher run loops and branches, as is so on a GPU."""
    inside = Executable.is_apart

    def is_apart(self: Executable, step: Step) -> bool:
        return isinstance(step, LoopStep | IfStep) or inside(self, step)

    monkeypatch.setattr(Executable, "is_apart", is_apart)


@pytest.mark.parametrize("by_host", [False, True], ids=["launcher", "host"])
@pytest.mark.parametrize("constant", [False, True], ids=["argument", "constant"])
@pytest.mark.parametrize("make", [recurrence, search])
def test_compiled_loops_and_branches_do_what_the_reference_does(make, constant, by_host, monkeypatch):
    if by_host:
        decide_by_host(monkeypatch)
    function = make()
    names = [each.data for each in function.arg_names]
    weights = arrays_of(function, 0)[names.index("w")]
    compiled = compile_text(str(function), config=CONFIG, constants={"w": weights} if constant else None)
    for turns in (0, 1, 7, 30):
        given = arrays_of(function, turns)
        given[names.index("w")] = weights
        expected = run(function, given)
        taken = [each for name, each in zip(names, given, strict=True) if not (constant and name == "w")]
        for found, wanted in zip(compiled(*taken), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_host", [False, True], ids=["launcher", "host"])
def test_a_branch_looks_at_its_part_of_what_holds_conditions(by_host, monkeypatch):
    def build(b, x, flags):
        def turn(b, index, states, slices):
            chosen = if_else(b, slices[0], lambda b: [b.exp(b.neg(states[0]))], lambda b: [b.neg(states[0])])
            return list(chosen), []

        finals, _ = loop(b, turn, [x], [flags], trip_count=4)
        first = b.reshape(b.slice(flags, starts=(0,), shape=(1,), steps=(1,)), shape=())
        return [*finals, *if_else(b, first, lambda b: [b.exp(x)], lambda b: [b.neg(x)])]

    if by_host:
        decide_by_host(monkeypatch)
    function = built("h", {"x": Tensor(f32, (4,)), "flags": Tensor(boolean, (4,))}, build)
    compiled = compile_text(str(function), config=CONFIG)
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    for flags in (np.array([True, False, False, True]), np.array([False, True, True, True])):
        for found, wanted in zip(compiled(x, flags), run(function, [x, flags]), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("by_host", [False, True], ids=["launcher", "host"])
def test_fewer_turns_than_none_are_none(by_host, monkeypatch):
    def build(b, x, h):
        return loop(b, lambda b, i, states, slices: ([b.exp(states[0])], []), [h], trip_count=symbol("s0") - 5)[0]

    if by_host:
        decide_by_host(monkeypatch)
    function = built("k", {"x": Tensor(f32, (symbol("s0"),)), "h": Tensor(f32, (4,))}, build)
    compiled = compile_text(str(function), config=CONFIG)
    h = np.linspace(-1, 1, 4, dtype=np.float32)
    for size, wanted in ((3, h), (4, h), (5, h), (6, np.exp(h))):
        np.testing.assert_allclose(compiled(np.zeros(size, np.float32), h)[0], wanted, rtol=1e-5)


def test_what_all_turns_compute_alike_is_computed_before_the_loop():
    compiled = compile_text(str(search()), config=CONFIG)
    steps = compiled.executor.executable.plan.steps
    (turns,) = (step for step in steps if isinstance(step, LoopStep))
    assert not any("softplus" in getattr(step, "label", "") for step in turns.body)
    assert any("softplus" in step.label for step in steps)


def test_the_functions_of_an_op_are_found_without_a_walk_into_others(monkeypatch):
    module = module_of(search())
    OutlineRegions().apply(Context(), module)
    runners = [op for op in module.walk() if isinstance(op, ControlOp)]

    def walked(*args, **kwargs):
        raise AssertionError("every loop of a program would be walked for each of them")

    monkeypatch.setattr(Operation, "walk", walked)
    found = [[each.sym_name.data for each in functions_run(op)] for op in runners]
    assert found == [list(op.names) for op in runners]
    assert any(found)


def test_a_cached_program_has_its_loops():
    function, config = search(), Config(cache=True)
    given = arrays_of(function, 5)
    first = compile_text(str(function), config=config)(*given)
    for found, wanted in zip(compile_text(str(function), config=config)(*given), first, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_branches_of_different_types_are_refused():
    def build(b, c, x):
        return if_else(b, c, lambda b: [x], lambda b: [b.reshape(x, shape=(2, 2))])

    with pytest.raises(ShapeError, match="branches"):
        built("f", {"c": Tensor(boolean, ()), "x": Tensor(f32, (4,))}, build)


@pytest.mark.parametrize(
    ("found", "instead", "said"),
    [
        ('trip_count = #graph.size<"s0">', "trip_count = 3 : i64", "3 slices"),
        ("carried = 2", "carried = 7", "fewer operands"),
        ("conditional = false", "conditional = true", "condition"),
        ("scanned = [-1 : i64]", "scanned = [2 : i64]", "directions"),
    ],
)
def test_text_that_does_not_fit_is_refused(found, instead, said):
    text = str(recurrence())
    assert found in text
    with pytest.raises(ParseError, match=said):
        parse_program(text.replace(found, instead))
