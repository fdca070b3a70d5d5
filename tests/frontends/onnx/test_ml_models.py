"""Models of `ai.onnx.ml`, as scikit-learn's converter writes them, against ONNX's reference."""

from __future__ import annotations

import time
from itertools import combinations
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import weft.onnx  # noqa: E402
from tests.frontends.onnx.models import ML, info, model, one, rows, with_gaps  # noqa: E402
from tests.seeds import generator  # noqa: E402
from weft.errors import WeftError  # noqa: E402


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


@pytest.mark.parametrize("labels", [{"classlabels_int64s": [5, 2]}, {"classlabels_strings": ["no", "yes"]}])
def test_scores_are_given_by_label(labels: Any) -> None:
    """What scikit-learn's converter writes for a classifier, unless it is told not to."""
    x = rows(4, 2)
    keys = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    scores = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(keys, scores))
    node = helper.make_node("ZipMap", ["x"], ["y"], domain=ML, name="it", **labels)
    proto = model(
        [node], [info("x", shape=["n", 2])], [helper.make_value_info("y", maps)], opsets=[helper.make_opsetid(ML, 1)]
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
