"""Recurrent layers as operators that stay whole: one for each layer and direction, and one for its gradients.

Dynamo traces `nn.LSTM`, `nn.GRU` and `nn.RNN` where `torch._dynamo.config.allow_rnn` lets it; AOTAutograd would write
out all of their turns. `weft::lstm_layer` and its like are loops of the graph dialect (`ops/recurrent.py`). Layers on a
GPU are left to the vendor's library, and so are packed sequences to torch.
"""

# Torch's operators have no types that can be followed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from weft.diagnostics import calling_line
from weft.errors import DataError

_library = torch.library.Library("weft", "FRAGMENT")
_WEIGHTS = "Tensor w, Tensor r, Tensor? wb, Tensor? rb"
_library.define(
    f"lstm_layer(Tensor x, Tensor h, Tensor c, {_WEIGHTS}, Tensor? p, bool reverse)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    f"gru_layer(Tensor x, Tensor h, {_WEIGHTS}, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(f"rnn_layer(Tensor x, Tensor h, {_WEIGHTS}, bool relu, bool reverse) -> (Tensor, Tensor)")
_library.define(
    "lstm_gradients(Tensor[] grads, Tensor x, Tensor h, Tensor c, Tensor w, Tensor r, Tensor? p, Tensor y,"
    " Tensor[] kept, bool reverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "gru_gradients(Tensor[] grads, Tensor x, Tensor h, Tensor w, Tensor r, Tensor y, Tensor[] kept, bool reverse)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "rnn_gradients(Tensor[] grads, Tensor x, Tensor h, Tensor w, Tensor r, Tensor y, bool relu, bool reverse)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_operators: Any = torch.ops.weft


# -- what they compute, where torch carries them out -------------------------------------------------------------------


def _order(count: int, reverse: bool) -> Sequence[int]:
    return range(count - 1, -1, -1) if reverse else range(count)


def _stack(values: Sequence[Tensor], like: Tensor, reverse: bool) -> Tensor:
    return torch.stack(list(values)[::-1] if reverse else list(values)) if values else like.new_empty(0, *like.shape)


def _lstm(
    x: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, wb: Any, rb: Any, p: Tensor | None, reverse: bool
) -> tuple[Tensor, ...]:
    rows: list[list[Tensor]] = [[] for _ in range(6)]
    for turn in _order(x.shape[0], reverse):
        parts = (functional.linear(x[turn], w, wb) + functional.linear(h, r, rb)).chunk(4, 1)
        i, f, o = (torch.sigmoid(parts[place]) for place in (0, 1, 3))
        g = torch.tanh(parts[2])
        c = f * c + i * g
        h = o * torch.tanh(c)
        h = h if p is None else h @ p.t()
        for row, value in zip(rows, (h, i, f, g, o, c), strict=True):
            row.append(value)
    y, *kept = (_stack(row, like, reverse) for row, like in zip(rows, (h, c, c, c, c, c), strict=True))
    return y, h.clone(), c.clone(), *kept


def _gru(x: Tensor, h: Tensor, w: Tensor, r: Tensor, wb: Any, rb: Any, reverse: bool) -> tuple[Tensor, ...]:
    rows: list[list[Tensor]] = [[] for _ in range(5)]
    for turn in _order(x.shape[0], reverse):
        given, made = (v.chunk(3, 1) for v in (functional.linear(x[turn], w, wb), functional.linear(h, r, rb)))
        reset, z = (torch.sigmoid(given[place] + made[place]) for place in (0, 1))
        n = torch.tanh(given[2] + reset * made[2])
        h = n + z * (h - n)
        for row, value in zip(rows, (h, reset, z, n, made[2]), strict=True):
            row.append(value)
    y, *kept = (_stack(row, h, reverse) for row in rows)
    return y, h.clone(), *kept


def _rnn(
    x: Tensor, h: Tensor, w: Tensor, r: Tensor, wb: Any, rb: Any, relu: bool, reverse: bool
) -> tuple[Tensor, Tensor]:
    rows: list[Tensor] = []
    for turn in _order(x.shape[0], reverse):
        h = functional.linear(x[turn], w, wb) + functional.linear(h, r, rb)
        h = torch.relu(h) if relu else torch.tanh(h)
        rows.append(h)
    return _stack(rows, h, reverse), h.clone()


def _before(states: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """The state before each turn, of those behind each."""
    start = first.unsqueeze(0)
    return torch.cat([states[1:], start] if reverse else [start, states[:-1]])[: states.shape[0]]


def _of_weights(given: Tensor, made: Tensor, x: Tensor, before: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Gradients of x, both matrices and both biases, of what came to the gates from x and from the state."""
    outer = [torch.einsum("tbm,tbn->mn", left, right) for left, right in ((given, x), (made, before))]
    return given @ w, *outer, given.sum((0, 1)), made.sum((0, 1))


def _lstm_gradients(
    grads: Sequence[Tensor],
    x: Tensor,
    h: Tensor,
    c: Tensor,
    w: Tensor,
    r: Tensor,
    p: Tensor | None,
    y: Tensor,
    kept: Sequence[Tensor],
    reverse: bool,
) -> tuple[Tensor, ...]:
    to_y, to_h, to_c = grads
    i, f, g, o, cells = kept
    seen, old = torch.tanh(cells), _before(cells, c, reverse)
    gates, wholes = x.new_zeros(*x.shape[:2], w.shape[0]), torch.zeros_like(y)
    for turn in _order(x.shape[0], not reverse):
        wholes[turn] = whole = to_y[turn] + to_h
        state = whole if p is None else whole @ p
        to_c = to_c + state * o[turn] * (1 - seen[turn] ** 2)
        parts = (to_c * g[turn], to_c * old[turn], to_c * i[turn], state * seen[turn])
        slopes = (i[turn] * (1 - i[turn]), f[turn] * (1 - f[turn]), 1 - g[turn] ** 2, o[turn] * (1 - o[turn]))
        gates[turn] = torch.cat([part * slope for part, slope in zip(parts, slopes, strict=True)], 1)
        to_h, to_c = gates[turn] @ r, to_c * f[turn]
    gx, gw, gr, gb, _ = _of_weights(gates, gates, x, _before(y, h, reverse), w)
    projection = w.new_empty(0) if p is None else torch.einsum("tbm,tbn->mn", wholes, o * seen)
    return gx, to_h.clone(), to_c.clone(), gw, gr, gb, projection


def _gru_gradients(
    grads: Sequence[Tensor],
    x: Tensor,
    h: Tensor,
    w: Tensor,
    r: Tensor,
    y: Tensor,
    kept: Sequence[Tensor],
    reverse: bool,
) -> tuple[Tensor, ...]:
    (to_y, to_h), (reset, z, n, seen), old = grads, kept, _before(y, h, reverse)
    given, made = (x.new_zeros(*x.shape[:2], w.shape[0]) for _ in range(2))
    for turn in _order(x.shape[0], not reverse):
        whole = to_y[turn] + to_h
        to_n = whole * (1 - z[turn]) * (1 - n[turn] ** 2)
        to_r = to_n * seen[turn] * reset[turn] * (1 - reset[turn])
        to_z = whole * (old[turn] - n[turn]) * z[turn] * (1 - z[turn])
        given[turn] = torch.cat([to_r, to_z, to_n], 1)
        made[turn] = torch.cat([to_r, to_z, to_n * reset[turn]], 1)
        to_h = whole * z[turn] + made[turn] @ r
    gx, gw, gr, gwb, grb = _of_weights(given, made, x, old, w)
    return gx, to_h.clone(), gw, gr, gwb, grb


def _rnn_gradients(
    grads: Sequence[Tensor], x: Tensor, h: Tensor, w: Tensor, r: Tensor, y: Tensor, relu: bool, reverse: bool
) -> tuple[Tensor, ...]:
    to_y, to_h = grads
    gates = torch.zeros_like(y)
    for turn in _order(x.shape[0], not reverse):
        whole = to_y[turn] + to_h
        gates[turn] = whole * (y[turn] > 0) if relu else whole * (1 - y[turn] ** 2)
        to_h = gates[turn] @ r
    gx, gw, gr, gb, _ = _of_weights(gates, gates, x, _before(y, h, reverse), w)
    return gx, to_h.clone(), gw, gr, gb


# -- their shapes ------------------------------------------------------------------------------------------------------


def _fake_lstm(x: Tensor, h: Tensor, c: Tensor, *_: Any) -> tuple[Tensor, ...]:
    turns = x.shape[0]
    kept = [c.new_empty(turns, *c.shape) for _ in range(5)]
    return h.new_empty(turns, *h.shape), h.new_empty(h.shape), c.new_empty(c.shape), *kept


def _fake_gru(x: Tensor, h: Tensor, *_: Any) -> tuple[Tensor, ...]:
    turns = x.shape[0]
    return h.new_empty(turns, *h.shape), h.new_empty(h.shape), *(h.new_empty(turns, *h.shape) for _ in range(4))


def _fake_rnn(x: Tensor, h: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return h.new_empty(x.shape[0], *h.shape), h.new_empty(h.shape)


def _like(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(each.new_empty(each.shape) for each in tensors)


def _fake_lstm_gradients(
    grads: Any, x: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, p: Tensor | None, *_: Any
) -> tuple[Tensor, ...]:
    return *_like(x, h, c, w, r), w.new_empty(w.shape[0]), w.new_empty(0) if p is None else w.new_empty(p.shape)


def _fake_gru_gradients(grads: Any, x: Tensor, h: Tensor, w: Tensor, r: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return *_like(x, h, w, r), w.new_empty(w.shape[0]), w.new_empty(w.shape[0])


def _fake_rnn_gradients(grads: Any, x: Tensor, h: Tensor, w: Tensor, r: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return *_like(x, h, w, r), w.new_empty(w.shape[0])


# -- their gradients ---------------------------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.given = [value if not isinstance(value, Tensor) else None for value in inputs]
    ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in inputs), *output)


def _read(ctx: Any) -> tuple[list[Any], list[Tensor]]:
    saved = list(ctx.saved_tensors)
    count = len(ctx.given)
    return [a if b is None else b for a, b in zip(saved[:count], ctx.given, strict=True)], saved[count:]


def _lstm_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    (x, h, c, w, r, wb, rb, p, reverse), (y, _, _, *kept) = _read(ctx)
    gx, gh, gc, gw, gr, gb, gp = _operators.lstm_gradients(list(grads[:3]), x, h, c, w, r, p, y, kept, reverse)
    return gx, gh, gc, gw, gr, *(None if each is None else gb for each in (wb, rb)), None if p is None else gp, None


def _gru_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    (x, h, w, r, wb, rb, reverse), (y, _, *kept) = _read(ctx)
    gx, gh, gw, gr, gwb, grb = _operators.gru_gradients(list(grads[:2]), x, h, w, r, y, kept, reverse)
    return gx, gh, gw, gr, None if wb is None else gwb, None if rb is None else grb, None


def _rnn_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    (x, h, w, r, wb, rb, relu, reverse), (y, _) = _read(ctx)
    gx, gh, gw, gr, gb = _operators.rnn_gradients(list(grads[:2]), x, h, w, r, y, relu, reverse)
    return gx, gh, gw, gr, *(None if each is None else gb for each in (wb, rb)), None, None


for _name, _function, _fake, _backward in (
    ("lstm_layer", _lstm, _fake_lstm, _lstm_backward),
    ("gru_layer", _gru, _fake_gru, _gru_backward),
    ("rnn_layer", _rnn, _fake_rnn, _rnn_backward),
    ("lstm_gradients", _lstm_gradients, _fake_lstm_gradients, None),
    ("gru_gradients", _gru_gradients, _fake_gru_gradients, None),
    ("rnn_gradients", _rnn_gradients, _fake_rnn_gradients, None),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{_name}", _fake)
    if _backward is not None:
        torch.library.register_autograd(f"weft::{_name}", _backward, setup_context=_keep)


# -- layers on top of each other ---------------------------------------------------------------------------------------


def _layers(
    layer: Callable[..., Sequence[Tensor]],
    states: int,
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """All layers and directions, each of them one operator: the outputs and the last states."""
    directions = 2 if bidirectional else 1
    each = len(params) // (layers * directions)
    current = x.transpose(0, 1) if batch_first else x
    if current.shape[0] == 0:
        raise DataError("Expected sequence length to be larger than 0 in RNN", location=calling_line())  # eager's words
    finals: list[list[Tensor]] = [[] for _ in range(states)]
    for number in range(layers):
        outputs: list[Tensor] = []
        for direction in range(directions):
            place = number * directions + direction
            weights = list(params[place * each : (place + 1) * each])
            biases = [weights.pop(2), weights.pop(2)] if has_biases else [None, None]
            y, *last = layer(
                current, *(state[place] for state in hx), *weights[:2], *biases, weights[2:], bool(direction)
            )
            outputs.append(y)
            for found, state in zip(finals, last, strict=False):
                found.append(state)
        current = outputs[0] if directions == 1 else torch.cat(outputs, 2)
        if dropout and train and number + 1 < layers:
            current = functional.dropout(current, dropout, training=True)
    result = current.transpose(0, 1) if batch_first else current
    return result, *(torch.stack(found) for found in finals)


def lstm(x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], *others: Any) -> tuple[Tensor, ...]:
    """`torch.lstm`."""

    def layer(x: Tensor, h: Tensor, c: Tensor, w: Tensor, r: Tensor, wb: Any, rb: Any, rest: Any, reverse: bool) -> Any:
        return _operators.lstm_layer(x, h, c, w, r, wb, rb, rest[0] if rest else None, reverse)

    return _layers(layer, 2, x, hx, params, *others)


def gru(x: Tensor, hx: Tensor, params: Sequence[Tensor], *others: Any) -> tuple[Tensor, ...]:
    """`torch.gru`."""

    def layer(x: Tensor, h: Tensor, w: Tensor, r: Tensor, wb: Any, rb: Any, rest: Any, reverse: bool) -> Any:
        return _operators.gru_layer(x, h, w, r, wb, rb, reverse)

    return _layers(layer, 1, x, [hx], params, *others)


def _plain(relu: bool) -> Callable[..., tuple[Tensor, ...]]:
    def rnn(x: Tensor, hx: Tensor, params: Sequence[Tensor], *others: Any) -> tuple[Tensor, ...]:
        def layer(x: Tensor, h: Tensor, w: Tensor, r: Tensor, wb: Any, rb: Any, rest: Any, reverse: bool) -> Any:
            return _operators.rnn_layer(x, h, w, r, wb, rb, relu, reverse)

        return _layers(layer, 1, x, [hx], params, *others)

    return rnn


_LAYERS: dict[Any, Callable[..., tuple[Tensor, ...]]] = {
    torch.lstm: lstm,
    torch.gru: gru,
    torch.rnn_tanh: _plain(relu=False),
    torch.rnn_relu: _plain(relu=True),
}
_ARGUMENTS = 9
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def with_recurrent_layers(module: fx.GraphModule) -> fx.GraphModule:
    """A graph that Dynamo captured, and those inside of it, with recurrent layers that stay whole."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            _keep_whole(part)
    return module


def _keep_whole(module: fx.GraphModule) -> None:
    found = [
        node for node in module.graph.nodes if node.op == "call_function" and node.target in _LAYERS and _is_own(node)
    ]
    for node in found:
        node.target = _LAYERS[node.target]
    if found:
        module.recompile()


def _is_own(node: fx.Node) -> bool:
    """Whether a layer over tensors on the processor is called, and not over packed sequences."""
    x = node.args[0].meta.get("example_value") if node.args and isinstance(node.args[0], fx.Node) else None
    if not isinstance(x, Tensor) or x.device.type != "cpu" or x.dtype not in _DTYPES or x.dim() != 3:
        return False
    return len(node.args) == _ARGUMENTS and not node.kwargs and isinstance(node.args[2], list | tuple)
