"""Models of `ai.onnx.ml`, as scikit-learn's converter writes them, against ONNX's reference and a walk over trees."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import weft.onnx  # noqa: E402
from tests.frontends.onnx.models import info, model  # noqa: E402
from tests.seeds import generator  # noqa: E402
from weft.errors import WeftError  # noqa: E402
from weft.frontends.onnx.import_nodes import FOLDED, Importer  # noqa: E402

_ML = "ai.onnx.ml"


def one(op: str, arrays: list[np.ndarray], outputs: int = 1, version: int = 3, **attributes: Any) -> Any:
    names = [f"i{place}" for place in range(len(arrays))]
    infos = [
        info(name, helper.np_dtype_to_tensor_dtype(array.dtype), [None, *array.shape[1:]])
        for name, array in zip(names, arrays, strict=True)
    ]
    made = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(op, names, made, domain=_ML, name="it", **attributes)
    outs = [onnx.ValueInfoProto(name=name) for name in made]
    return model([node], infos, outs, opsets=[helper.make_opsetid(_ML, version)])


def agrees(op: str, arrays: list[np.ndarray], outputs: int = 1, **attributes: Any) -> list[Any]:
    """What Weft computes, which has to be what ONNX's reference does."""
    proto = one(op, arrays, outputs, **attributes)
    expected = ReferenceEvaluator(proto).run(None, {f"i{n}": array for n, array in enumerate(arrays)})
    found = weft.onnx.load(proto).run(arrays)
    for a, b in zip(expected, found, strict=True):
        if np.asarray(a).dtype.kind in "OUT":
            assert np.asarray(a).tolist() == b.tolist()
        else:
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6)
    return found


def rows(count: int = 23, width: int = 5) -> np.ndarray:
    return generator().standard_normal((count, width)).astype(np.float32)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_classifier(classes: int, transform: str) -> None:
    numbers = generator().standard_normal(((1 if classes == 2 else classes), 5))
    fitted = {"coefficients": numbers.reshape(-1).tolist(), "intercepts": numbers[:, 0].tolist()}
    labels, _ = agrees(
        "LinearClassifier", [rows()], 2, classlabels_ints=[7, 3, 5][:classes], post_transform=transform, **fitted
    )
    assert labels.dtype == np.int64 and len(set(labels.tolist())) > 1
    agrees("LinearClassifier", [rows()], 2, classlabels_strings=["a", "b", "c"][:classes], **fitted)


def test_a_linear_regressor() -> None:
    numbers = generator().standard_normal(10).tolist()
    agrees("LinearRegressor", [rows()], coefficients=numbers, intercepts=numbers[:2], targets=2)


def support(kernel: str, counts: list[int]) -> dict[str, Any]:
    random, total, classes = generator(), sum(counts), len(counts)
    return {
        "coefficients": random.standard_normal(total * max(classes - 1, 1)).tolist(),
        "support_vectors": random.standard_normal(total * 5).tolist(),
        "rho": random.standard_normal(max(classes * (classes - 1) // 2, 1)).tolist(),
        "kernel_type": kernel,
        "kernel_params": [0.25, 0.5, 3.0],
    }


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vector_machines(kernel: str) -> None:
    counts = [4, 3, 5]
    agrees(
        "SVMClassifier", [rows()], 2, classlabels_ints=[1, 0, 4], vectors_per_class=counts, **support(kernel, counts)
    )
    agrees("SVMRegressor", [rows()], n_supports=6, **support(kernel, [6]))
    agrees("SVMRegressor", [rows()], n_supports=6, one_class=1, **support(kernel, [6]))


@pytest.mark.parametrize("counts", [[4, 3], [4, 3, 5], [2, 3, 2, 2], [1] * 30])
def test_probabilities_of_support_vector_machines(counts: list[int]) -> None:
    """Probabilities of pairs are coupled to those that contradict them least, up to libsvm's threshold."""
    classes, x = len(counts), rows()
    pairs = list(combinations(range(classes), 2))
    fitted = support("RBF", counts) | {"vectors_per_class": counts, "classlabels_ints": list(range(classes))}
    decided = weft.onnx.load(one("SVMClassifier", [x], 2, **fitted)).run([x])[1]
    platt = {"prob_a": [-1.5] * len(pairs), "prob_b": [0.2] * len(pairs)}
    found = weft.onnx.load(one("SVMClassifier", [x], 2, **fitted, **platt)).run([x])[1]
    decided = decided[:, 1:] if classes == 2 else decided
    for scores, likely in zip(decided, found, strict=True):
        ratios = np.zeros((classes, classes))
        for (i, j), score in zip(pairs, scores, strict=True):
            ratios[i, j] = 1 / (1 + np.exp(-1.5 * score + 0.2))
            ratios[j, i] = 1 - ratios[i, j]
        whole = np.ones((classes + 1, classes + 1))
        whole[:classes, :classes] = -ratios.T * ratios
        whole[range(classes), range(classes)] = (ratios.T**2).sum(1)
        whole[classes, classes] = 0
        exact = np.linalg.solve(whole, np.eye(classes + 1)[classes])[:classes]
        np.testing.assert_allclose(likely, exact, atol=1e-2)


def test_support_vector_machines_of_many_classes() -> None:
    """What is made of a file grows with its number of pairs: 300 classes have 45,000 of them."""
    counts, x = [1] * 300, rows(2)
    fitted = support("RBF", counts) | {"vectors_per_class": counts, "classlabels_ints": list(range(300))}
    pairs = 300 * 299 // 2
    proto = one("SVMClassifier", [x], 2, **fitted, prob_a=[-1.5] * pairs, prob_b=[0.2] * pairs)
    begun = time.process_time()
    labels, likely = weft.onnx.load(proto).run([x])
    assert time.process_time() - begun < 30
    assert labels.shape == (2,)
    np.testing.assert_allclose(likely.sum(1), 1, rtol=1e-4)


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


def with_gaps(x: np.ndarray) -> np.ndarray:
    return np.where(generator().random(x.shape) < 0.1, np.float32(np.nan), x)


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


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_features_are_prepared(norm: str) -> None:
    x = rows()
    agrees("Normalizer", [x], norm=norm)
    agrees("Scaler", [x], offset=[0.5, 1.0, -1.0, 0.0, 2.0], scale=[2.0, 0.5, 1.0, 1.0, 3.0])
    agrees("Imputer", [with_gaps(x)], imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0], replaced_value_float=float("nan"))
    agrees("FeatureVectorizer", [x, x[:, :2]], inputdimensions=[3, 4])


def test_categories_are_encoded() -> None:
    numbers = np.array([[1, 7], [3, 1]], np.int64)
    words = np.array([["a", "c"], ["b", "z"]], object)
    agrees("OneHotEncoder", [numbers], cats_int64s=[1, 3], zeros=1)
    agrees("OneHotEncoder", [words], cats_strings=["a", "b"], zeros=1)
    strict = weft.onnx.load(one("OneHotEncoder", [numbers], cats_int64s=[1, 3], zeros=0))
    with pytest.raises(WeftError, match="7 is none of its categories"):
        strict.run([numbers])
    pairs = {"cats_strings": ["a", "b", "c"], "cats_int64s": [4, 5, 6]}
    (found,) = weft.onnx.load(one("CategoryMapper", [words], **pairs, default_int64=-2)).run([words])
    assert found.tolist() == [[4, 6], [5, -2]]
    (found,) = weft.onnx.load(one("CategoryMapper", [numbers + 3], **pairs)).run([numbers + 3])
    assert found.tolist() == [["a", "_Unused"], ["c", "a"]]


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


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [5, 2]}, {"classlabels_strings": ["no", "yes"]}])
def test_scores_are_given_by_label(labels: Any) -> None:
    """What scikit-learn's converter writes for a classifier, unless it is told not to."""
    x = rows(4, 2)
    keys = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(keys, scores))
    node = helper.make_node("ZipMap", ["x"], ["y"], domain=_ML, name="it", **labels)
    proto = model(
        [node], [info("x", shape=["n", 2])], [helper.make_value_info("y", maps)], opsets=[helper.make_opsetid(_ML, 1)]
    )
    loaded = weft.onnx.load(proto)
    (found,) = loaded(x)
    (names,) = labels.values()
    assert found == [dict(zip(names, row, strict=True)) for row in x.tolist()]
    assert "sequence(map(" in loaded.signature
    with pytest.raises(WeftError, match="2 labels for 3 columns"):
        weft.onnx.load(one("ZipMap", [rows(4, 3)], **labels)).run([rows(4, 3)])


@pytest.mark.parametrize("op", ["SequenceConstruct", "Identity"])
def test_what_is_declared_as_maps_and_is_not_is_refused(op: str) -> None:
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    proto = model(
        [helper.make_node(op, ["x"], ["y"])], [info("x", shape=["n", 2])], [helper.make_value_info("y", maps)]
    )
    with pytest.raises(WeftError, match=r"output 'y' is declared as sequence\(map\("):
        weft.onnx.load(proto)(rows(4, 2))


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
