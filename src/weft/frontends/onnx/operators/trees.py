"""Ensembles of trees of `ai.onnx.ml`: all of them are walked down at once, a level at a time, by tables of nodes."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xdsl.ir import Block, SSAValue

from weft.errors import ModelError
from weft.frontends.onnx.call import Call, static
from weft.frontends.onnx.operators.class_scores import (
    DOMAIN,
    MOST_WEIGHTS,
    class_labels,
    features,
    greatest,
    is_above,
    labelled,
    opposed,
    transformed,
)
from weft.frontends.onnx.operators.shapes import checked_shape
from weft.frontends.onnx.operators.table import onnx_op
from weft.ir.types import DType, Tensor, f32, f64, i32, i64, tensor_type
from weft.ops.control import close_loop
from weft.ops.graph import GraphBuilder

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_TESTS = ("le", "lt", "ge", "gt", "eq", "ne")
_MEMBER, _LEAF = 6, 7
_LEVELS = 16
"""Levels of trees that are walked without a loop."""
_DEEPEST = 1 << 12
_TURNS = 16
"""How often all nodes are looked at in search of the longest way, or 2 to the 22nd nodes where there are few."""


@dataclass(frozen=True)
class Trees:
    """Nodes of all trees in one table, leaves included: a leaf's ways lead to itself."""

    roots: np.ndarray
    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    """Places in `_MODES`, or `_LEAF`."""
    ways: tuple[np.ndarray, np.ndarray]
    """The nodes that follow where a test holds, and where it does not."""
    missing: np.ndarray
    """Whether a feature that is not a number goes the way of a test that holds."""
    node: np.ndarray
    """For each weight the leaf it belongs to, `target` what it counts for, and `weight` how much."""
    target: np.ndarray
    weight: np.ndarray
    targets: int
    sets: np.ndarray | None = None
    """For each node of `BRANCH_MEMBER` the numbers that its feature may be one of, filled up with NaN."""

    @property
    def is_leaf(self) -> np.ndarray:
        return self.mode == _LEAF


@onnx_op("TreeEnsembleRegressor", domain=DOMAIN)
def tree_ensemble_regressor(c: Call) -> Any:
    trees = _listed(c, "target", c.int("n_targets", 1))
    scores = scores_of(c, trees, c.string("aggregate_function", "SUM"))
    base = _numbers(c, "base_values")
    if base.size:
        scores = c.b.add(scores, c.table(_of_targets(c, base, trees.targets).astype(_numpy(c, scores))))
    return transformed(c, _single(c, scores))


@onnx_op("TreeEnsembleClassifier", domain=DOMAIN)
def tree_ensemble_classifier(c: Call) -> Any:
    b, labels = c.b, class_labels(c)
    trees = _listed(c, "class", len(labels))
    base = _numbers(c, "base_values")
    if len(labels) == 2 and (one := np.unique(trees.target)).size == 1 and base.size < 2:
        # Two classes and scores of one: the other's is what is left, of 1 where these are probabilities.
        trees = replace(trees, target=np.zeros_like(trees.target), targets=1)
        score = scores_of(c, trees, "SUM")
        score = b.add(score, b.full_like(score, base[0].item())) if base.size else score
        is_likely = bool((trees.weight >= 0).all())
        place = is_above(c, score, 0, 0.5 if is_likely else 0.0)
        single = _single(c, score)
        if is_likely and one.size:
            scores = opposed(c, single, b.sub(b.full_like(single, 1.0), single))
        else:
            scores = transformed(c, opposed(c, single, b.neg(single)))
        return labelled(c, place, scores, labels)
    scores = scores_of(c, trees, "SUM")
    if base.size:
        scores = b.add(scores, c.table(_of_targets(c, base, trees.targets).astype(_numpy(c, scores))))
    return labelled(c, greatest(c, scores), transformed(c, _single(c, scores)), labels)


@onnx_op("TreeEnsemble", domain=DOMAIN)
def tree_ensemble(c: Call) -> Any:
    how = c.int("aggregate_function", 1)
    if how not in range(4):
        raise c.unsupported(f"attribute 'aggregate_function' is {how}, expected one of 0 to 3")
    scores = scores_of(c, _joined(c), ("AVERAGE", "SUM", "MIN", "MAX")[how])
    after = c.int("post_transform", 0)
    if after not in range(5):
        raise c.unsupported(f"attribute 'post_transform' is {after}, expected one of 0 to 4")
    made = transformed(c, scores, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[after])
    dtype = c.b.tensor(c.x(0)).dtype
    return c.b.cast(made, dtype=dtype) if dtype.is_float and c.b.tensor(made).dtype != dtype else made


def _numbers(c: Call, name: str) -> np.ndarray:
    """An attribute of float32, or as a tensor, where it may be of float64."""
    if c.given(f"{name}_as_tensor"):
        return c.array(f"{name}_as_tensor").reshape(-1)
    return np.array(c.floats(name, ()), np.float32)


def _of_targets(c: Call, base: np.ndarray, targets: int) -> np.ndarray:
    if base.size not in (1, targets):
        raise ModelError(f"{c.node}: attribute 'base_values' has {base.size} numbers, expected {targets}")
    return base


def _single(c: Call, scores: SSAValue) -> SSAValue:
    """Scores as float32: what comes out, whatever is summed."""
    dtype = c.b.tensor(scores).dtype
    return c.b.cast(scores, dtype=f32) if dtype == f64 else scores


def _numpy(c: Call, value: SSAValue) -> np.dtype:
    return c.b.tensor(value).dtype.numpy


def _listed(c: Call, kind: str, targets: int) -> Trees:
    """Trees as the older operators state them: nodes, each with its tree and number, and weights of such nodes."""
    tree, number = (np.array(c.ints(f"nodes_{each}"), np.int64) for each in ("treeids", "nodeids"))
    ways = [np.array(c.ints(f"nodes_{side}nodeids"), np.int64) for side in ("true", "false")]
    feature = np.array(c.ints("nodes_featureids"), np.int64)
    split, names = _numbers(c, "nodes_values"), c.strings("nodes_modes")
    count = len(tree)
    missing = np.array(c.ints("nodes_missing_value_tracks_true", ()), np.int64)
    missing = missing if missing.size else np.zeros(count, np.int64)
    same = (number, *ways, feature, split, names, missing)
    if not count or any(len(each) != count for each in same):
        raise ModelError(f"{c.node}: the attributes of its nodes have different lengths, or none")
    unknown = set(names) - {*_MODES[:_MEMBER], "LEAF"}
    if unknown:
        raise c.unsupported(f"attribute 'nodes_modes' has {min(unknown)[:40]!r}, expected BRANCH_… or LEAF")
    mode = np.array([_LEAF if each == "LEAF" else _MODES.index(each) for each in names], np.int64)
    find = _finder(c, tree, number)
    own = np.arange(count)
    inner = mode != _LEAF
    ways = [np.where(inner, find(tree, np.where(inner, way, number)), own) for way in ways]
    weight = _numbers(c, f"{kind}_weights")
    of_tree, of_node, target = (np.array(c.ints(f"{kind}_{each}"), np.int64) for each in ("treeids", "nodeids", "ids"))
    if not len(weight) == len(of_tree) == len(of_node) == len(target):
        raise ModelError(f"{c.node}: the attributes of its weights have different lengths")
    led_to = np.zeros(count, bool)
    led_to[np.concatenate([way[inner] for way in ways])] = True
    tops = np.flatnonzero(~led_to)
    roots = tops[np.sort(np.unique(tree[tops], return_index=True)[1])]
    if len(roots) != len(np.unique(tree)):
        raise ModelError(f"{c.node} has a tree without a first node")
    return Trees(
        roots, feature, split, mode, (ways[0], ways[1]), missing != 0, find(of_tree, of_node), target, weight, targets
    )


def _finder(c: Call, tree: np.ndarray, number: np.ndarray) -> Any:
    """A function from trees and numbers of nodes to their places."""
    low, high = min(number.min(), 0), number.max()
    if tree.min() < 0 or low < 0 or (int(tree.max()) + 1) * (int(high) + 1) >= 1 << 62:
        raise ModelError(f"{c.node} has trees or nodes of numbers below 0, or of too large ones")
    span, last = int(high) + 1, tree.max()
    keys = tree * span + number
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    if (ordered[1:] == ordered[:-1]).any():
        raise ModelError(f"{c.node} has two nodes of one number in a tree")

    def find(of_tree: np.ndarray, of_node: np.ndarray) -> np.ndarray:
        outside = (of_tree < 0) | (of_tree > last) | (of_node < 0) | (of_node > high)
        wanted = of_tree * span + of_node
        at = np.minimum(np.searchsorted(ordered, wanted), len(ordered) - 1)
        if (outside | (ordered[at] != wanted)).any():
            raise ModelError(f"{c.node}: a node is named that is not there")
        return order[at]

    return find


def _joined(c: Call) -> Trees:
    """Trees as `TreeEnsemble` states them: nodes, and leaves of their own, which stand behind the nodes here."""
    roots, feature = np.array(c.ints("tree_roots"), np.int64), np.array(c.ints("nodes_featureids"), np.int64)
    mode = c.array("nodes_modes").reshape(-1).astype(np.int64)
    split = c.array("nodes_splits").reshape(-1)
    target, weight = np.array(c.ints("leaf_targetids"), np.int64), c.array("leaf_weights").reshape(-1)
    count, leaves = len(mode), len(weight)
    missing = np.array(c.ints("nodes_missing_value_tracks_true", ()), np.int64)
    missing = missing if missing.size else np.zeros(count, np.int64)
    sides: list[np.ndarray] = []
    for side in ("true", "false"):
        ids, is_leaf = (np.array(c.ints(f"nodes_{side}{what}"), np.int64) for what in ("nodeids", "leafs"))
        if len(ids) != count or len(is_leaf) != count:
            raise c.unsupported("the attributes of its nodes have different lengths")
        if ((ids < 0) | (ids >= np.where(is_leaf != 0, leaves, count))).any():
            raise c.unsupported("a node leads to one that is not there")
        sides.append(np.concatenate([ids + np.where(is_leaf != 0, count, 0), np.arange(leaves) + count]))
    if not len(feature) == len(split) == len(missing) == count or len(target) != leaves:
        raise c.unsupported("the attributes of its nodes have different lengths")
    if not roots.size or (roots < 0).any() or (roots >= count).any():
        raise c.unsupported("attribute 'tree_roots' names no nodes, or such as are not there")
    if ((mode < 0) | (mode > _MEMBER)).any():
        raise c.unsupported("attribute 'nodes_modes' has a number that is none of 0 to 6")

    def with_leaves(array: np.ndarray, filling: Any) -> np.ndarray:
        return np.concatenate([array, np.full(leaves, filling, array.dtype)])

    sets = _sets(c, int((mode == _MEMBER).sum()), split.dtype) if (mode == _MEMBER).any() else None
    return Trees(
        roots, with_leaves(feature, 0), with_leaves(split, 0), with_leaves(mode, _LEAF), (sides[0], sides[1]),
        with_leaves(missing != 0, False), np.arange(leaves) + count, target, weight, c.int("n_targets"), sets,
    )  # fmt: skip


def _sets(c: Call, count: int, dtype: np.dtype) -> np.ndarray:
    """The sets of so many nodes: they are stated one after the other, with NaN between them."""
    numbers = c.array("membership_values").reshape(-1)
    ends = np.flatnonzero(np.isnan(numbers))
    several = [each[~np.isnan(each)] for each in np.split(numbers, ends)][:count]
    width = max(len(each) for each in several)
    rows = np.full(checked_shape(c, (count, max(width, 1)), MOST_WEIGHTS), np.nan, dtype)
    for row, own in zip(rows, several, strict=False):
        row[: len(own)] = own
    return rows


def scores_of(c: Call, trees: Trees, how: str) -> SSAValue:
    """The scores of each target: what the leaves that a row ends in weigh together."""
    b, x = c.b, features(c, keeps_double=True)
    width = static(b.tensor(x))[1]
    used = trees.feature[~trees.is_leaf]
    if used.size and (used.min() < 0 or used.max() >= width):
        raise ModelError(f"{c.node}: a node asks for feature {used.max()} of {width}")
    if (trees.target < 0).any() or (trees.target >= trees.targets).any():
        raise ModelError(f"{c.node}: a weight is for a target that is none of {trees.targets}")
    leaf = _walked(c, trees, x)
    dtype = b.tensor(x).dtype.numpy
    own = _tree_targets(trees)
    if own is not None and how in ("SUM", "AVERAGE"):
        # Each tree counts for one target: a number a leaf is enough.
        table = np.zeros(len(trees.mode), dtype)
        np.add.at(table, trees.node, trees.weight.astype(dtype))
        parts = b.take(c.table(table), leaf, dim=0)
        if trees.targets == 1:
            total = b.sum(parts, dims=(1,), keep=True)
        else:
            checked_shape(c, (len(own), trees.targets), MOST_WEIGHTS)
            counts = (own[:, None] == np.arange(trees.targets)).astype(dtype)
            total = b.dot(parts, c.table(counts))
    else:
        total = _gathered(c, trees, leaf, dtype, how)
    if how == "AVERAGE":
        total = b.div(total, b.full_like(total, len(trees.roots)))
    return total


def _tree_targets(trees: Trees) -> np.ndarray | None:
    """The target that each tree counts for, if it is one each and no two trees share a node."""
    owner = np.full(len(trees.mode), -1)
    front, of_tree = trees.roots, np.arange(len(trees.roots))
    while front.size:
        fresh = owner[front] < 0
        owner[front[fresh]] = of_tree[fresh]
        if (owner[front] != of_tree).any():
            return None
        # Two ways to one node are followed once: their number may double from level to level.
        front, at = np.unique(front[fresh], return_index=True)
        of_tree = of_tree[fresh][at]
        inner = ~trees.is_leaf[front]
        front = np.concatenate([way[front[inner]] for way in trees.ways])
        of_tree = np.concatenate([of_tree[inner]] * 2)
    of_weight = owner[trees.node]
    own = np.zeros(len(trees.roots), np.int64)
    own[of_weight[of_weight >= 0]] = trees.target[of_weight >= 0]
    return own if (own[of_weight] == trees.target)[of_weight >= 0].all() else None


def _gathered(c: Call, trees: Trees, leaf: SSAValue, dtype: np.dtype, how: str) -> SSAValue:
    """The weights of all targets, a row a leaf."""
    b = c.b
    shape = checked_shape(c, (len(trees.mode), trees.targets), MOST_WEIGHTS)
    nothing = {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)
    table = np.full(shape, nothing, dtype)
    at = trees.node, trees.target
    {"MIN": np.minimum, "MAX": np.maximum}.get(how, np.add).at(table, at, trees.weight.astype(dtype))
    parts = b.take(c.table(table), leaf, dim=0)
    if nothing == 0:
        return b.sum(parts, dims=(1,), keep=False)
    found = (b.min if how == "MIN" else b.max)(parts, dims=(1,), keep=False)
    return b.where(b.isinf(found), b.full_like(found, 0.0), found)


def _walked(c: Call, trees: Trees, x: SSAValue) -> SSAValue:
    """The leaf of each row in each tree."""
    b = c.b
    rows, count = static(b.tensor(x))[0], len(trees.roots)
    depth = _depth(c, trees)
    level = _Level(c, trees, b.tensor(x).dtype)
    node = b.broadcast(c.table(trees.roots.astype(np.int32).reshape(1, -1)), shape=(rows, count))
    if depth <= _LEVELS:
        for _ in range(depth):
            node = level.after(b, x, node)
        return node
    block = Block(arg_types=[tensor_type(Tensor(i64, ())), node.type])
    inside, found = GraphBuilder(block, b.location), block.args[1]
    for _ in range(_LEVELS // 2):
        found = level.after(inside, x, found)
    (node,), _ = close_loop(
        b, block, [found], [node], trip_count=-(-depth // (_LEVELS // 2)), carried=1, scanned=(), stacked=()
    )
    return node


class _Level:
    """One step of the walk by tables of nodes: the feature that a node asks for, what it is compared with, its ways."""

    def __init__(self, c: Call, trees: Trees, dtype: DType) -> None:
        self.c, self.trees, self.dtype = c, trees, dtype
        inner = ~trees.is_leaf
        self.kinds = sorted(set(trees.mode[inner].tolist()))
        self.tracks = bool(trees.missing[inner].any())
        self.feature = c.table(np.where(inner, trees.feature, 0).astype(np.int32))
        self.split = c.table(trees.split.astype(dtype.numpy))
        # The node that follows where a test holds, and next to it the one where it does not.
        self.ways = c.table(np.stack(trees.ways, 1).reshape(-1).astype(np.int32))
        self.mode = c.table(trees.mode.astype(np.int32)) if len(self.kinds) > 1 else None
        self.missing = c.table(trees.missing) if self.tracks else None
        if trees.sets is not None:
            self.sets = c.table(trees.sets.astype(dtype.numpy))
            # Other nodes have any set: what it says of them is not read.
            places = np.maximum(np.cumsum(trees.mode == _MEMBER) - 1, 0)
            self.set_places = c.table(places.astype(np.int32))

    def after(self, b: GraphBuilder, x: SSAValue, node: SSAValue) -> SSAValue:
        value = b.gather(x, b.take(self.feature, node, dim=0), dim=1)
        split = b.take(self.split, node, dim=0)
        holds: SSAValue | None = None
        for kind in self.kinds:
            found = self._member(b, node, value) if kind == _MEMBER else b.emit(_TESTS[kind], value, split)
            if holds is None or self.mode is None:
                holds = found
            else:
                own = b.eq(b.take(self.mode, node, dim=0), b.full(value=kind, shape=(), dtype=i32))
                holds = b.where(own, found, holds)
        if holds is None:
            return node
        if self.missing is not None:
            holds = b.logical_or(holds, b.logical_and(b.isnan(value), b.take(self.missing, node, dim=0)))
        fails = b.cast(b.logical_not(holds), dtype=i32)
        return b.take(self.ways, b.add(b.add(node, node), fails), dim=0)

    def _member(self, b: GraphBuilder, node: SSAValue, value: SSAValue) -> SSAValue:
        several = b.take(self.sets, b.take(self.set_places, node, dim=0), dim=0)
        shape = b.tensor(value).shape
        return b.any(b.eq(several, b.reshape(value, shape=(*shape, 1))), dims=(2,), keep=False)


def _depth(c: Call, trees: Trees) -> int:
    """The number of decisions on the longest way; a way that does not end is refused by its length."""
    front, depth, seen = np.unique(trees.roots), 0, 0
    inner = ~trees.is_leaf
    while (front := front[inner[front]]).size:
        seen += len(front)
        front = np.unique(np.concatenate([way[front] for way in trees.ways]))
        depth += 1
        if depth > min(_DEEPEST, len(trees.mode)) or seen > max(_TURNS * len(trees.mode), 1 << 22):
            raise c.unsupported(f"a way through its trees takes over {depth - 1} decisions, or does not end")
    return depth
