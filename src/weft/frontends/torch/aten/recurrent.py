"""Recurrent layers, which `capture/recurrent_layers.py` keeps whole, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from weft.frontends.torch.aten.table import aten
from weft.frontends.torch.importer.builder import ImportBuilder
from weft.ops.recurrent import Form, Weights, gru, lstm, rnn
from weft.ops.recurrent_gradients import gru_gradients, lstm_gradients, rnn_gradients

Results = tuple[SSAValue | None, ...]


@aten("weft.lstm_layer")
def lstm_layer(
    b: ImportBuilder,
    x: SSAValue,
    h: SSAValue,
    c: SSAValue,
    w: SSAValue,
    r: SSAValue,
    wb: SSAValue | None,
    rb: SSAValue | None,
    p: SSAValue | None,
    reverse: bool,
) -> Results:
    form = Form("ifgo", reverse=reverse, keep=_keeps(b, 3))
    return _with_absent(b, lstm(b, x, h, c, Weights(w, r, wb, rb, p), form))


@aten("weft.gru_layer")
def gru_layer(
    b: ImportBuilder,
    x: SSAValue,
    h: SSAValue,
    w: SSAValue,
    r: SSAValue,
    wb: SSAValue | None,
    rb: SSAValue | None,
    reverse: bool,
) -> Results:
    return _with_absent(b, gru(b, x, h, Weights(w, r, wb, rb), Form("rzn", reverse=reverse, keep=_keeps(b, 2))))


@aten("weft.rnn_layer")
def rnn_layer(
    b: ImportBuilder,
    x: SSAValue,
    h: SSAValue,
    w: SSAValue,
    r: SSAValue,
    wb: SSAValue | None,
    rb: SSAValue | None,
    relu: bool,
    reverse: bool,
) -> Results:
    form = Form("h", reverse=reverse)
    if relu:
        form = Form("h", reverse=reverse, cell=lambda b, x: b.relu(x))
    return rnn(b, x, h, Weights(w, r, wb, rb), form)


@aten("weft.lstm_gradients")
def lstm_layer_gradients(
    b: ImportBuilder,
    grads: Sequence[SSAValue],
    x: SSAValue,
    h: SSAValue,
    c: SSAValue,
    w: SSAValue,
    r: SSAValue,
    p: SSAValue | None,
    y: SSAValue,
    kept: Sequence[SSAValue],
    reverse: bool,
) -> Results:
    *found, projection = lstm_gradients(b, grads, x, [h, c], Weights(w, r, projection=p), y, kept, reverse=reverse)
    empty = b.emit("full", value=0.0, shape=(0,), dtype=b.dtype(w)) if projection is None else projection
    return *found, empty


@aten("weft.gru_gradients")
def gru_layer_gradients(
    b: ImportBuilder,
    grads: Sequence[SSAValue],
    x: SSAValue,
    h: SSAValue,
    w: SSAValue,
    r: SSAValue,
    y: SSAValue,
    kept: Sequence[SSAValue],
    reverse: bool,
) -> Results:
    return gru_gradients(b, grads, x, h, Weights(w, r), y, kept, reverse=reverse)


@aten("weft.rnn_gradients")
def rnn_layer_gradients(
    b: ImportBuilder,
    grads: Sequence[SSAValue],
    x: SSAValue,
    h: SSAValue,
    w: SSAValue,
    r: SSAValue,
    y: SSAValue,
    relu: bool,
    reverse: bool,
) -> Results:
    return rnn_gradients(b, grads, x, h, Weights(w, r), y, relu=relu, reverse=reverse)


def _keeps(b: ImportBuilder, results: int) -> bool:
    """Whether gradients will ask for what a layer keeps behind its results."""
    return any(b.is_used(place) for place in range(results, len(b.results)))


def _with_absent(b: ImportBuilder, made: tuple[SSAValue, ...]) -> Results:
    """What a layer gives, with None for what it did not keep."""
    return *made, *(None for _ in range(len(b.results) - len(made)))
