"""Ensembles of trees of `ai.onnx.ml`, against a walk over each tree; and such as are none, which are refused."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import numpy_helper  # noqa: E402

import weft.onnx  # noqa: E402
from tests.frontends.onnx.models import one, rows, with_gaps  # noqa: E402
from tests.seeds import generator  # noqa: E402
from weft.errors import WeftError  # noqa: E402
from weft.frontends.onnx.import_nodes import FOLDED, Importer  # noqa: E402


class Forest:
    """Random trees, as the attributes of a node and as a function."""

    def __init__(self, trees: int, depth: int, targets: int, alone: bool, mode: str = "BRANCH_LEQ") -> None:
        self.random, self.alone, self.targets, self.mode = generator(), alone, targets, mode
        self.nodes: dict[str, list[Any]] = {
            name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
                                  "missing_value_tracks_true")
        }  # fmt: skip
        self.weights: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
        self.roots = [self._grow(tree, iter(range(1 << 20)), depth) for tree in range(trees)]

    def _grow(self, tree: int, numbers: Any, depth: int) -> Any:
        number = next(numbers)
        leaf = depth == 0 or (self.random.random() < 0.2 and number > 0)
        feature, split = int(self.random.integers(5)), float(np.float32(self.random.standard_normal()))
        tracks = bool(self.random.random() < 0.5)
        place = len(self.nodes["treeids"])
        values = (tree, number, feature, split, "LEAF" if leaf else self.mode, 0, 0, int(tracks))
        for name, value in zip(self.nodes, values, strict=True):
            self.nodes[name].append(value)
        if leaf:
            own = [tree % self.targets] if self.alone else range(self.targets)
            weights = {target: float(np.float32(self.random.random())) for target in own}
            for target, weight in weights.items():
                for name, value in zip(self.weights, (tree, number, target, weight), strict=True):
                    self.weights[name].append(value)
            return weights
        # The second branch stands first: nodes may come in any order.
        sides: list[Any] = [None, None]
        for side in (1, 0):
            self.nodes[("truenodeids", "falsenodeids")[side]][place] = self._next(numbers)
            sides[side] = self._grow(tree, self._again, depth - 1)
        return feature, split, tracks, sides

    def _next(self, numbers: Any) -> int:
        number = next(numbers)
        self._again = _Pushed(number, numbers)
        return number

    def attributes(self, kind: str) -> dict[str, Any]:
        return {f"nodes_{name}": each for name, each in self.nodes.items()} | {
            f"{kind}_{name}": each for name, each in self.weights.items()
        }

    def leaves(self, row: np.ndarray) -> list[dict[int, float]]:
        found: list[dict[int, float]] = []
        for node in self.roots:
            while isinstance(node, tuple):
                feature, split, tracks, sides = node
                value = row[feature]
                holds = value <= split if self.mode == "BRANCH_LEQ" else value > split
                node = sides[0 if holds or (np.isnan(value) and tracks) else 1]
            found.append(node)
        return found

    def scores(self, x: np.ndarray, how: str = "SUM") -> np.ndarray:
        made = np.zeros((len(x), self.targets))
        for at, row in enumerate(x):
            for target in range(self.targets):
                several = [leaf[target] for leaf in self.leaves(row) if target in leaf]
                total = {"MIN": min, "MAX": max}.get(how, sum)(several)
                made[at, target] = total / len(self.roots) if how == "AVERAGE" else total
        return made


class _Pushed:
    def __init__(self, first: int, rest: Any) -> None:
        self.first, self.rest = [first], rest

    def __next__(self) -> int:
        return self.first.pop() if self.first else next(self.rest)


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets, alone", [(1, True), (3, True), (3, False)])
def test_trees_that_give_numbers(targets: int, alone: bool, how: str) -> None:
    forest, x = Forest(9, 6, targets, alone), with_gaps(rows(40))
    base = [0.5] * targets
    proto = one(
        "TreeEnsembleRegressor",
        [x],
        n_targets=targets,
        aggregate_function=how,
        base_values=base,
        **forest.attributes("target"),
    )
    (found,) = weft.onnx.load(proto).run([x])
    np.testing.assert_allclose(found, forest.scores(x, how) + 0.5, rtol=1e-5)


@pytest.mark.parametrize("depth", [3, 20, 31])
def test_trees_of_any_depth(depth: int) -> None:
    """Deep ones are walked by a loop."""
    forest, x = Forest(2, 2, 1, True, "BRANCH_GT"), rows(7)
    nodes = forest.nodes
    # A tree that is a chain: every test fails but at its end.
    chain = {"treeids": 2, "featureids": 0, "values": -9.0, "modes": "BRANCH_GT", "missing_value_tracks_true": 0}
    for number in range(depth + 1):
        for name, value in {**chain, "nodeids": number, "truenodeids": number + 1, "falsenodeids": depth + 1}.items():
            nodes[name].append(value)
    for number in (depth + 1, depth + 2):
        for name, value in {**chain, "modes": "LEAF", "nodeids": number, "truenodeids": 0, "falsenodeids": 0}.items():
            nodes[name].append(value)
        for name, value in zip(forest.weights, (2, number, 0, float(number)), strict=True):
            forest.weights[name].append(value)
    nodes["truenodeids"][-3] = depth + 2
    proto = one("TreeEnsembleRegressor", [x], **forest.attributes("target"))
    (found,) = weft.onnx.load(proto).run([x])
    np.testing.assert_allclose(found, forest.scores(x) + depth + 2, rtol=1e-5)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [3, 1, 2]}, {"classlabels_strings": ["x", "y", "z"]}])
@pytest.mark.parametrize("alone", [True, False])
def test_trees_that_choose_a_class(alone: bool, labels: Any) -> None:
    forest, x = Forest(12, 5, 3, alone), with_gaps(rows(40))
    proto = one("TreeEnsembleClassifier", [x], 2, post_transform="SOFTMAX", **labels, **forest.attributes("class"))
    chosen, found = weft.onnx.load(proto).run([x])
    scores = forest.scores(x)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)
    names = next(iter(labels.values()))
    assert chosen.tolist() == [names[place] for place in scores.argmax(1)]


@pytest.mark.parametrize("shift", [0.0, -0.5])
def test_trees_that_choose_between_two_classes(shift: float) -> None:
    """Weights that are all positive are shares of the second class; others are decided by their sign."""
    forest, x = Forest(8, 5, 1, True), rows(40)
    forest.weights["weights"] = [(each + shift) / 8 for each in forest.weights["weights"]]
    proto = one("TreeEnsembleClassifier", [x], 2, classlabels_int64s=[4, 9], **forest.attributes("class"))
    chosen, found = weft.onnx.load(proto).run([x])
    score = forest.scores(x)[:, 0] / 8 + shift
    first = 1 - score if shift == 0 else -score
    np.testing.assert_allclose(found, np.stack([first, score], 1), rtol=1e-4, atol=1e-6)
    assert chosen.tolist() == np.where(score > (0.5 if shift == 0 else 0), 9, 4).tolist()


def joined(x: np.ndarray, ways: list[tuple[int, int]], leaves: list[tuple[int, float]], **others: Any) -> Any:
    """A `TreeEnsemble` whose nodes ask whether the first feature is at most 0; ways of -1 - n lead to the leaf n."""
    sides = {
        f"nodes_{side}{what}": [int(way < 0) if what == "leafs" else (-1 - way if way < 0 else way) for way in column]
        for side, column in zip(("true", "false"), zip(*ways, strict=True), strict=True)
        for what in ("nodeids", "leafs")
    }
    tensors = {
        "nodes_modes": np.zeros(len(ways), np.uint8),
        "nodes_splits": np.zeros(len(ways), x.dtype),
        "leaf_weights": np.array([weight for _, weight in leaves], x.dtype),
    }
    attributes: dict[str, Any] = {
        "n_targets": 1, "tree_roots": [0], "nodes_featureids": [0] * len(ways), **sides,
        "leaf_targetids": [target for target, _ in leaves],
        **{name: numpy_helper.from_array(array) for name, array in tensors.items()},
    }  # fmt: skip
    return one("TreeEnsemble", [x], version=5, **{**attributes, **others})


@pytest.mark.parametrize("ways, roots", [([(-1, -2), (-1, -2)], [0, 1]), ([(-1, -2)], [0, 0])])
def test_trees_may_share_leaves(ways: list[tuple[int, int]], roots: list[int]) -> None:
    """Each tree counts a leaf that two of them end in, also where all leaves are of one target."""
    x = rows(9)
    proto = joined(x, ways, [(1, 2.0), (1, 3.0)], n_targets=2, tree_roots=roots)
    (found,) = weft.onnx.load(proto).run([x])
    np.testing.assert_array_equal(found, np.stack([np.zeros(9), 2 * np.where(x[:, 0] <= 0, 2.0, 3.0)], 1))


def test_ways_that_meet_again_are_walked_once() -> None:
    """A ladder: both ways of each node lead to the next one, so that there are 2 to the 40th ways."""
    x, nodes = rows(9), range(40)
    ways = [(node + 1, node + 1) if node < 39 else (-1, -2) for node in nodes]
    (found,) = weft.onnx.load(joined(x, ways, [(0, 2.0), (0, 3.0)])).run([x])
    np.testing.assert_array_equal(found[:, 0], np.where(x[:, 0] <= 0, 2.0, 3.0))
    listed = {
        "nodes_treeids": [0] * 42, "nodes_nodeids": list(range(42)), "nodes_featureids": [0] * 42,
        "nodes_values": [0.0] * 42, "nodes_modes": ["BRANCH_LEQ"] * 40 + ["LEAF"] * 2,
        "nodes_truenodeids": [*range(1, 41), 0, 0], "nodes_falsenodeids": [*range(1, 40), 41, 0, 0],
    }  # fmt: skip
    weights = {"treeids": [0, 0], "nodeids": [40, 41], "ids": [0, 0], "weights": [2.0, 3.0]}
    listed |= {f"target_{name}": each for name, each in weights.items()}
    (found,) = weft.onnx.load(one("TreeEnsembleRegressor", [x], **listed)).run([x])
    np.testing.assert_array_equal(found[:, 0], np.where(x[:, 0] <= 0, 2.0, 3.0))


def test_tests_of_membership_have_sets_of_their_own() -> None:
    """Sets of different sizes, which nodes of other tests stand between."""
    x = generator().integers(0, 6, (40, 1)).astype(np.float32)
    sets = np.array([1, 3, np.nan, 0, 4, 5, np.nan], np.float32)
    proto = joined(
        x, [(1, 2), (-1, -2), (-3, -4)], [(0, 1.0), (0, 2.0), (0, 3.0), (0, 4.0)],
        nodes_modes=numpy_helper.from_array(np.array([6, 0, 6], np.uint8)),
        membership_values=numpy_helper.from_array(sets), nodes_splits=numpy_helper.from_array(np.full(3, 2, x.dtype)),
    )  # fmt: skip
    (found,) = weft.onnx.load(proto).run([x])
    expected = [{1: 1, 3: 2}.get(int(each), 3 if each in (0, 4, 5) else 4) for each in x[:, 0]]
    np.testing.assert_array_equal(found[:, 0], expected)


def test_sets_that_are_too_large_together_are_refused() -> None:
    """One large set makes a row of all of them large."""
    x, count = rows(9), 1 << 15
    ways = [(-1, -2)] * count
    sets = np.concatenate([np.zeros(1 << 15, np.float32), np.full(count, np.nan, np.float32)])
    proto = joined(
        x, ways, [(0, 1.0), (0, 2.0)], membership_values=numpy_helper.from_array(sets),
        nodes_modes=numpy_helper.from_array(np.full(count, 6, np.uint8)),
    )  # fmt: skip
    with pytest.raises(WeftError, match="that memory can hold"):
        weft.onnx.load(proto).run([x])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_are_of_the_features_type(dtype: Any) -> None:
    x = rows(9).astype(dtype)
    (found,) = weft.onnx.load(joined(x, [(-1, -2)], [(0, 2.5), (0, 3.5)])).run([x])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, 0], np.where(x[:, 0] <= 0, 2.5, 3.5))


@pytest.mark.parametrize(
    "name, value", [("nodes_truenodeids", 999), ("nodes_nodeids", 0), ("nodes_featureids", 5), ("target_nodeids", 999)]
)
def test_trees_that_are_none_are_refused(name: str, value: int) -> None:
    attributes = Forest(3, 3, 1, True).attributes("target")
    inner = attributes["nodes_modes"].index("BRANCH_LEQ")
    attributes[name][inner if name != "nodes_nodeids" else 1] = value
    with pytest.raises(WeftError, match="it"):
        weft.onnx.load(one("TreeEnsembleRegressor", [rows()], **attributes)).run([rows()])


def test_a_tree_that_leads_back_is_refused() -> None:
    nodes = {
        "treeids": [0, 0, 0], "nodeids": [0, 1, 2], "featureids": [0, 0, 0], "values": [0.0, 0.0, 0.0],
        "modes": ["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"], "truenodeids": [1, 1, 0], "falsenodeids": [2, 2, 0],
    }  # fmt: skip
    weights = {"target_treeids": [0], "target_nodeids": [2], "target_ids": [0], "target_weights": [1.0]}
    attributes = {f"nodes_{name}": each for name, each in nodes.items()} | weights
    with pytest.raises(WeftError, match="does not end"):
        weft.onnx.load(one("TreeEnsembleRegressor", [rows()], **attributes)).run([rows()])


@pytest.mark.parametrize("tree", [1, -1, 1 << 61, -(1 << 61)])
def test_weights_of_trees_that_are_none_are_refused(tree: int) -> None:
    """Places of nodes are numbered through all trees: no number may come round to another's."""
    nodes = {
        "treeids": [0] * 8, "nodeids": list(range(8)), "featureids": [0] * 8, "values": [0.0] * 8,
        "modes": ["BRANCH_LEQ"] * 3 + ["LEAF"] * 5, "truenodeids": [1, 3, 5, *[0] * 5],
        "falsenodeids": [2, 4, 6, *[0] * 5],
    }  # fmt: skip
    weights = {"treeids": [tree], "nodeids": [3], "ids": [0], "weights": [1.0]}
    attributes = {f"nodes_{name}": each for name, each in nodes.items()}
    attributes |= {f"target_{name}": each for name, each in weights.items()}
    with pytest.raises(WeftError, match="a node is named that is not there"):
        weft.onnx.load(one("TreeEnsembleRegressor", [rows()], **attributes)).run([rows()])


def test_many_nodes_that_lead_back_are_refused_in_time() -> None:
    """All nodes of two rings are looked at in each turn."""
    x, count = rows(9), 1 << 18
    ways = [((node + 1) % count, 2 * node % count) for node in range(count)]
    proto = joined(x, ways, [(0, 1.0)], tree_roots=list(range(0, count, 8)))
    loaded = weft.onnx.load(proto)
    begun = time.process_time()
    with pytest.raises(WeftError, match="does not end"):
        loaded.run([x])
    assert time.process_time() - begun < 10


@pytest.mark.parametrize(
    "others",
    [
        {"nodes_truenodeids": [-1], "nodes_trueleafs": [1]},
        {"nodes_truenodeids": [1], "nodes_trueleafs": [0]},
        {"nodes_falsenodeids": [(1 << 63) - 1]},
        {"tree_roots": [1]},
    ],
)
def test_nodes_and_leaves_that_are_not_there_are_refused(others: Any) -> None:
    """Leaves stand behind the nodes here: neither may be named by a number of the other."""
    x = rows(3)
    with pytest.raises(WeftError, match="not there"):
        weft.onnx.load(joined(x, [(-1, -2)], [(0, 1.0), (0, 2.0)], **others)).run([x])


def test_a_later_process_finds_large_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of nodes are kept beside the program: nothing is imported again."""
    forest, x = Forest(40, 12, 1, True), rows(3)
    assert len(forest.nodes["modes"]) > FOLDED
    data = one("TreeEnsembleRegressor", [x], **forest.attributes("target")).SerializeToString()
    (first,) = weft.onnx.load(data).run([x])

    def refuse(importer: Importer) -> None:
        raise AssertionError("imported again")

    monkeypatch.setattr(Importer, "run", refuse)
    (again,) = weft.onnx.load(data).run([x])
    np.testing.assert_array_equal(again, first)
