"""The operators of `ai.onnx.ml`: features, labels and trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.frontends.onnx.call import Call
from weft.frontends.onnx.operators.movement import lifted
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import i64

_DOMAIN = "ai.onnx.ml"


@onnx_op("ArrayFeatureExtractor", domain=_DOMAIN)
def array_feature_extractor(c: Call) -> Any:
    x, places = c.x(0), c.x(1)
    count = int(np.prod(c.shape(1)))
    made = c.b.take(x, c.b.reshape(places, shape=(count,)), dim=c.rank(0) - 1)
    return c.b.reshape(made, shape=(1, count)) if c.rank(0) == 1 else made


@onnx_op("Binarizer", domain=_DOMAIN)
def binarizer(c: Call) -> Any:
    x = c.x(0)
    above = c.b.gt(x, c.b.full_like(x, c.float("threshold", 0.0)))
    return c.b.cast(above, dtype=c.b.tensor(x).dtype)


@onnx_op("LabelEncoder", domain=_DOMAIN)
def label_encoder(c: Call) -> Any:
    sides: list[np.ndarray] = []
    for side in ("keys", "values"):
        if c.given(f"{side}_tensor"):
            sides.append(c.array(f"{side}_tensor").reshape(-1))
        elif c.given(f"{side}_strings"):
            sides.append(np.array(c.strings(f"{side}_strings"), object))
        elif c.given(f"{side}_int64s"):
            sides.append(np.array(c.ints(f"{side}_int64s"), np.int64))
        else:
            sides.append(np.array(c.floats(f"{side}_floats"), np.float32))
    keys, values = sides
    if c.given("default_tensor"):
        default = c.array("default_tensor").reshape(-1)[0]
    elif values.dtype == np.dtype(object):
        default = c.string("default_string", "_Unused")
    elif values.dtype == np.int64:
        default = c.int("default_int64", -1)
    else:
        default = c.float("default_float", 0.0) if c.given("default_float") else -0.0
    if len(keys) != len(values):
        raise c.unsupported(f"there are {len(keys)} keys for {len(values)} values")
    table = {_key(key): value for key, value in zip(keys.tolist(), values.tolist(), strict=True)}

    def encode(array: np.ndarray) -> np.ndarray:
        found = [table.get(_key(each), default) for each in array.reshape(-1).tolist()]
        return np.array(found, values.dtype).reshape(array.shape)

    return c.host(encode)


def _key(value: Any) -> Any:
    """A number that is not one equals itself here."""
    return "nan" if isinstance(value, float) and value != value else value


@onnx_op("TreeEnsemble", domain=_DOMAIN)
def tree_ensemble(c: Call) -> Any:
    b, x = c.b, c.x(0)
    rows = c.shape(0)[0]
    dtype = b.tensor(x).dtype
    roots, modes, features = c.ints("tree_roots"), c.array("nodes_modes").reshape(-1), c.ints("nodes_featureids")
    splits = c.array("nodes_splits").reshape(-1)
    ways = [(c.ints(f"nodes_{side}nodeids"), c.ints(f"nodes_{side}leafs")) for side in ("true", "false")]
    leaf_targets, weights = c.ints("leaf_targetids"), c.array("leaf_weights").reshape(-1)
    targets = c.int("n_targets")
    count, leaves = len(modes), len(weights)
    if not all(len(each) == count for each in (features, splits, *ways[0], *ways[1])) or len(leaf_targets) != leaves:
        raise c.unsupported("the attributes of its nodes have different lengths")
    # One table of nodes, behind which the leaves stand: a leaf's ways lead to itself.
    after = [
        np.concatenate([np.where(np.array(leafs, bool), np.array(ids) + count, ids), np.arange(leaves) + count])
        for ids, leafs in ways
    ]
    if any((each < 0).any() or (each >= count + leaves).any() for each in after) or leaves == 0:
        raise c.unsupported("a node leads to one that is not there")
    table = {
        "feature": np.concatenate([np.array(features), np.zeros(leaves, np.int64)]).astype(np.int64),
        "split": np.concatenate([splits, np.zeros(leaves, splits.dtype)]).astype(dtype.numpy),
        "mode": np.concatenate([modes, np.zeros(leaves, modes.dtype)]).astype(np.int64),
    }
    members = _members(c, table)
    tables = {name: lifted(c, array) for name, array in table.items() if name != "mode"}
    chosen = [lifted(c, each.astype(np.int64)) for each in after]
    node = b.broadcast(lifted(c, np.array(roots, np.int64).reshape(1, -1)), shape=(rows, len(roots)))
    for _ in range(_depth(after, roots, count)):
        value = b.gather(x, b.take(tables["feature"], node, dim=0), dim=1)
        split = b.take(tables["split"], node, dim=0)
        decided = b.le(value, split)
        kinds = sorted(set(table["mode"][:count].tolist()))
        for kind in kinds:
            test = {1: "lt", 2: "ge", 3: "gt", 4: "eq", 5: "ne"}.get(kind)
            is_kind = b.eq(b.take(lifted(c, table["mode"]), node, dim=0), b.full(value=kind, shape=(), dtype=i64))
            if test is not None:
                decided = b.where(is_kind, b.emit(test, value, split), decided)
            elif kind == 6:
                decided = b.where(is_kind, members(node, value), decided)
        node = b.where(decided, b.take(chosen[0], node, dim=0), b.take(chosen[1], node, dim=0))
    leaf = b.sub(node, b.full(value=count, shape=(), dtype=i64))
    weight = b.take(lifted(c, weights.astype(dtype.numpy)), leaf, dim=0)
    target = b.take(lifted(c, np.array(leaf_targets, np.int64)), leaf, dim=0)
    shape = (rows, len(roots), targets)
    hot = b.eq(b.reshape(target, shape=(*shape[:2], 1)), b.iota(shape=shape, dim=2, dtype=i64))
    parts = b.where(hot, b.reshape(weight, shape=(*shape[:2], 1)), b.full(value=0, shape=(), dtype=dtype))
    how = c.int("aggregate_function", 1)
    if how not in (0, 1):
        raise c.unsupported(f"attribute 'aggregate_function' is {how}, expected 0 (average) or 1 (sum)")
    total = b.sum(parts, dims=(1,), keep=False)
    if how == 0:
        total = b.div(total, b.full_like(total, len(roots)))
    after_sum = c.int("post_transform", 0)
    if after_sum != 0:
        raise c.unsupported(f"attribute 'post_transform' is {after_sum}, expected 0")
    return total


def _depth(after: list[np.ndarray], roots: tuple[int, ...], count: int) -> int:
    """The number of decisions on the longest way; a way that does not end is refused by its length."""
    front, depth = set(roots), 0
    while any(node < count for node in front):
        front = {int(way[node]) for way in after for node in front}
        depth += 1
        if depth > count:
            raise ValueError("the tree has a cycle")
    return depth


def _members(c: Call, table: dict[str, np.ndarray]) -> Any:
    """Whether a value is one of a node's set: sets stand one after the other, with NaN between them."""
    if not (table["mode"] == 6).any():
        return None
    numbers = c.array("membership_values").reshape(-1)
    sets: list[list[float]] = [[]]
    for number in numbers.tolist():
        if number != number:
            sets.append([])
        else:
            sets[-1].append(number)
    width = max(len(each) for each in sets)
    rows = np.full((len(table["mode"]), max(width, 1)), np.nan, table["split"].dtype)
    for at, own in zip(np.flatnonzero(table["mode"] == 6), sets, strict=False):
        rows[at, : len(own)] = own

    def test(node: Any, value: Any) -> Any:
        several = c.b.take(lifted(c, rows), node, dim=0)
        shape = c.b.tensor(value).shape
        return c.b.any(c.b.eq(several, c.b.reshape(value, shape=(*shape, 1))), dims=(2,), keep=False)

    return test
