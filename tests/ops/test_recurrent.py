"""Recurrent layers against NumPy in float64, with the conventions of torch and of ONNX."""

from collections.abc import Callable

import numpy as np
import pytest

from weft.backends.reference.graph import run
from weft.config import Config
from weft.errors import UnsupportedError
from weft.frontends.text import compile_text
from weft.ir.expr import symbol
from weft.ir.types import Tensor, f32, f64, i32
from weft.ops.control import LoopOp
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.movement import Copy
from weft.ops.recurrent import Form, Weights, activation, gru, lstm, rnn

T, B, SIZE, H = 6, 3, 5, 4
GATES = {"rnn": 1, "lstm": 4, "gru": 3}
ORDERS = {"rnn": "h", "lstm": "ifgo", "gru": "rzn"}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def layer(
    kind: str, dtype=f64, turns=T, peepholes: bool = False, lengths: bool = False, projection=0, **form
) -> FuncOp:
    state = projection or H
    shapes = {
        "x": (turns, B, SIZE),
        "h": (B, state),
        "c": (B, H),
        "w": (GATES[kind] * H, SIZE),
        "r": (GATES[kind] * H, state),
    }
    shapes |= {"wb": (GATES[kind] * H,), "rb": (GATES[kind] * H,), "p": (3, H), "q": (projection or 1, H)}
    types = {name: Tensor(dtype, shape) for name, shape in shapes.items()} | {"n": Tensor(i32, (B,))}
    function = FuncOp.make(kind, types)
    b = GraphBuilder(function.block)
    x, h, c, w, r, wb, rb, p, q, n = function.block.args
    rows = [b.reshape(b.slice(p, starts=(k, 0), shape=(1, H), steps=(1, 1)), shape=(H,)) for k in range(3)]
    weights = Weights(w, r, wb, rb, q if projection else None, dict(zip("ifo", rows, strict=True)) if peepholes else {})
    form = Form(form.pop("order", ORDERS[kind]), lengths=n if lengths else None, **form)
    match kind:
        case "lstm":
            results = lstm(b, x, h, c, weights, form)
        case "gru":
            results = gru(b, x, h, weights, form)
        case _:
            results = rnn(b, x, h, weights, form)
    b.insert(ReturnOp.make(results))
    return function


def arrays(kind: str, turns: int = T, projection: int = 0, dtype=np.float64) -> list[np.ndarray]:
    rng = np.random.default_rng(len(kind) + turns)
    gates, state = GATES[kind], projection or H
    shapes = [
        (turns, B, SIZE),
        (B, state),
        (B, H),
        (gates * H, SIZE),
        (gates * H, state),
        (gates * H,),
        (gates * H,),
        (3, H),
    ]
    made = [rng.standard_normal(shape).astype(dtype) * dtype(0.7) for shape in (*shapes, (projection or 1, H))]
    return [*made, np.array([turns, 0, max(turns - 2, 0)], np.int32)]


def expected(
    kind: str, given: list[np.ndarray], step: Callable[..., tuple[np.ndarray, ...]], reverse=False, lengths=False
):
    """All turns of one step function in float64."""
    x, h, c, w, r, wb, rb, p, q, n = given
    states = (h, c) if kind == "lstm" else (h,)
    outputs = np.zeros((len(x), B, h.shape[1]))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        new = step(x[t], states, w, r, wb, rb, p, q)
        alive = (t < n)[:, None] if lengths else np.ones((B, 1), bool)
        states = tuple(np.where(alive, after, before) for after, before in zip(new, states, strict=True))
        outputs[t] = np.where(alive, new[0], 0)
    return [outputs, *states]


def lstm_step(order="ifgo", peepholes=False, projection=False, clip=None, coupled=False):
    def step(x, states, w, r, wb, rb, p, q):
        h, c = states
        parts = dict(zip(order, np.split(x @ w.T + h @ r.T + wb + rb, 4, axis=1), strict=True))
        peep = dict(zip("ifo", p if peepholes else np.zeros_like(p), strict=True))
        clipped = (lambda z: np.clip(z, -clip, clip)) if clip else (lambda z: z)
        i = sigmoid(clipped(parts["i"] + peep["i"] * c))
        f = 1 - i if coupled else sigmoid(clipped(parts["f"] + peep["f"] * c))
        new = f * c + i * np.tanh(clipped(parts["g"]))
        state = sigmoid(clipped(parts["o"] + peep["o"] * new)) * np.tanh(new)
        return (state @ q.T if projection else state), new

    return step


def gru_step(order="rzn", reset_after=True):
    def step(x, states, w, r, wb, rb, p, q):
        (h,) = states
        given = dict(zip(order, np.split(x @ w.T + wb, 3, axis=1), strict=True))
        rows, biases = (dict(zip(order, np.split(each, 3), strict=True)) for each in (r, rb))
        reset, z = (sigmoid(given[g] + h @ rows[g].T + biases[g]) for g in "rz")
        seen = reset * (h @ rows["n"].T + biases["n"]) if reset_after else (reset * h) @ rows["n"].T + biases["n"]
        return ((1 - z) * np.tanh(given["n"] + seen) + z * h,)

    return step


def rnn_step(x, states, w, r, wb, rb, p, q):
    return (np.tanh(x @ w.T + states[0] @ r.T + wb + rb),)


CASES = [
    ("rnn", {}, rnn_step),
    ("lstm", {}, lstm_step()),
    ("lstm", {"order": "iofg", "peepholes": True, "clip": 0.8}, lstm_step("iofg", peepholes=True, clip=0.8)),
    ("lstm", {"coupled": True}, lstm_step(coupled=True)),
    ("lstm", {"projection": 2}, lstm_step(projection=True)),
    ("gru", {}, gru_step()),
    ("gru", {"order": "zrn", "reset_after": False}, gru_step("zrn", reset_after=False)),
]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("lengths", [False, True], ids=["whole", "lengths"])
@pytest.mark.parametrize(("kind", "form", "step"), CASES)
def test_a_layer_is_its_step_turn_by_turn(kind, form, step, lengths, reverse):
    given = arrays(kind, projection=form.get("projection", 0))
    function = layer(kind, reverse=reverse, lengths=lengths, **form)
    for found, wanted in zip(run(function, given), expected(kind, given, step, reverse, lengths), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
@pytest.mark.parametrize("ends", [(3, 0, 2), (0, 0, 0), (-1, 9, 1), (4, 4, 4), (-9, -1, -1)], ids=str)
@pytest.mark.parametrize(("kind", "form", "step"), [CASES[0], CASES[2], CASES[5]])
def test_a_layer_stops_behind_the_longest_sequence(kind, form, step, ends, reverse):
    """Inputs behind it are not looked at: they are no numbers here. Lengths out of range are as the nearest in it."""
    given = [*arrays(kind)[:-1], np.array(ends, np.int32)]
    longest = max(0, min(T, *[max(ends)]))
    wanted = expected(kind, given, step, reverse, True)
    given[0][longest:] = np.nan
    function = layer(kind, reverse=reverse, lengths=True, **form)
    compiled = compile_text(str(function), config=Config(cache=False, verify=True))
    for results in (run(function, given), compiled(*given)):
        for found, exact in zip(results, wanted, strict=True):
            np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "form", "step"), CASES)
@pytest.mark.parametrize(("turns", "loops", "copies"), [(1, 0, False), (2, 1, True)])
def test_one_turn_gains_nothing_from_a_loop_or_a_copy(kind, form, step, turns, loops, copies):
    given = arrays(kind, turns, form.get("projection", 0))
    function = layer(kind, turns=turns, lengths=True, **form)
    for found, wanted in zip(run(function, given), expected(kind, given, step, False, True), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert sum(isinstance(op, LoopOp) for op in function.block.ops) == loops
    assert any(isinstance(op, Copy) for op in function.block.ops) == copies


@pytest.mark.parametrize(("kind", "form", "step"), [CASES[0], CASES[2], CASES[5], CASES[6]])
def test_compiled_layers_take_any_number_of_turns(kind, form, step):
    function = layer(kind, f32, symbol("s0"), reverse=True, lengths=True, **form)
    names = [each.data for each in function.arg_names]
    fixed = {name: arrays(kind, dtype=np.float32)[names.index(name)] for name in ("w", "r", "wb", "rb", "p", "q")}
    compiled = compile_text(str(function), constants=fixed, config=Config(cache=False))
    for turns in (6, 1, 0, 40):
        given = [fixed.get(name, each) for name, each in zip(names, arrays(kind, turns, dtype=np.float32), strict=True)]
        wide = [each.astype(np.float64) if each.dtype == np.float32 else each for each in given]
        taken = [each for name, each in zip(names, given, strict=True) if name not in fixed]
        for found, wanted in zip(compiled(*taken), expected(kind, wide, step, True, True), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_activations_go_by_onnx_names():
    x = np.linspace(-3, 3, 13)
    wanted = {
        "Affine": 2 * x + 0.5,
        "LeakyRelu": np.where(x > 0, x, 2 * x),
        "ThresholdedRelu": np.where(x > 2, x, 0),
        "ScaledTanh": 2 * np.tanh(0.5 * x),
        "HardSigmoid": np.clip(2 * x + 0.5, 0, 1),
        "Softsign": x / (1 + abs(x)),
        "Elu": np.where(x > 0, x, 2 * np.expm1(x)),
    }
    for name, values in wanted.items():
        function = FuncOp.make("f", {"x": Tensor(f64, (13,))})
        b = GraphBuilder(function.block)
        b.insert(ReturnOp.make([activation(name, 2.0, 0.5)(b, function.block.args[0])]))
        np.testing.assert_allclose(run(function, [x])[0], values, rtol=1e-12)
    with pytest.raises(UnsupportedError, match="Sine"):
        activation("Sine")
