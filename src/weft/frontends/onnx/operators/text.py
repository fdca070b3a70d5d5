"""Strings: operators that only the host carries out."""

# NumPy leaves the types of arrays open that come in by narrowing, and functions for the host take whatever there is.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import numpy as np

from weft.frontends.onnx.call import Call
from weft.frontends.onnx.operators.table import onnx_op


@onnx_op("StringConcat")
def string_concat(c: Call) -> Any:
    return c.host(lambda a, b: np.asarray(np.add(a, b), object))


@onnx_op("StringSplit")
def string_split(c: Call) -> Any:
    delimiter = c.string("delimiter") if c.given("delimiter") else ""
    most = c.int("maxsplit") if c.given("maxsplit") else -1

    def split(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts = [str(word).split(delimiter or None, most) for word in array.reshape(-1)]
        counts = np.array([len(each) for each in parts], np.int64).reshape(array.shape)
        width = max((len(each) for each in parts), default=0)
        words = np.array([[*each, *[""] * (width - len(each))] for each in parts], object)
        return words.reshape(*array.shape, width), counts

    return c.host(split)


@onnx_op("StringNormalizer")
def string_normalizer(c: Call) -> Any:
    case, sensitive = c.string("case_change_action", "NONE"), c.flag("is_case_sensitive")
    stops = set(c.strings("stopwords", ()))

    def changed(word: str, way: str) -> str:
        return word.lower() if way == "LOWER" else word.upper() if way == "UPPER" else word

    def normalize(array: np.ndarray) -> np.ndarray:
        way = "NONE" if sensitive else "LOWER"
        known = {changed(word, way) for word in stops}
        rows = array.reshape(-1, array.shape[-1])
        kept = [[changed(str(word), case) for word in row if changed(str(word), way) not in known] for row in rows]
        kept = [row or [""] for row in kept]
        return np.array(kept[0] if array.ndim == 1 else kept, object)

    return c.host(normalize)


@onnx_op("TfIdfVectorizer")
def tf_idf_vectorizer(c: Call) -> Any:
    least, most, skips = c.int("min_gram_length"), c.int("max_gram_length"), c.int("max_skip_count")
    mode = c.string("mode")
    starts, places = c.ints("ngram_counts"), c.ints("ngram_indexes")
    pool: tuple[Any, ...] = c.strings("pool_strings") if c.given("pool_strings") else c.ints("pool_int64s")
    weights = c.floats("weights") if c.given("weights") else (1.0,) * len(places)
    grams: dict[tuple[Any, ...], int] = {}
    for n, start in enumerate(starts):
        end = starts[n + 1] if n + 1 < len(starts) else len(pool)
        for at in range(start, end, n + 1):
            grams[tuple(pool[at : at + n + 1])] = len(grams)
    width = max(places, default=-1) + 1

    def vectorize(array: np.ndarray) -> np.ndarray:
        rows = array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)
        made = np.zeros((len(rows), width), np.float32)
        for line, row in zip(made, rows.tolist(), strict=True):
            for length in range(least, most + 1):
                for skip in range(1 if length == 1 else skips + 1):
                    step = skip + 1
                    for at in range(len(row) - (length - 1) * step):
                        found = grams.get(tuple(row[at : at + (length - 1) * step + 1 : step]))
                        if found is not None:
                            line[places[found]] += 1
        factors = np.zeros(width, np.float32)
        factors[list(places)] = weights
        if mode == "IDF":
            made = np.where(made > 0, factors, 0).astype(np.float32)
        elif mode == "TFIDF":
            made = made * factors
        return made[0] if array.ndim <= 1 else made

    return c.host(vectorize)
