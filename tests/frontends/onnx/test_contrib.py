"""Operators of `com.microsoft`: caches are filled as one prompt would fill them, and heads attend as NumPy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
from onnx import helper  # noqa: E402

import weft.onnx  # noqa: E402
from tests.frontends.onnx.models import info, model  # noqa: E402
from weft.errors import WeftError  # noqa: E402

_DOMAIN = "com.microsoft"
B, N, K, H = 2, 4, 2, 8


def run(op: str, arrays: list[np.ndarray | None], outputs: int = 1, **attributes: Any) -> list[np.ndarray]:
    names = ["" if array is None else f"i{place}" for place, array in enumerate(arrays)]
    given = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    infos = [info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()]
    made = [f"o{place}" for place in range(outputs)]
    node = helper.make_node(op, names, made, domain=_DOMAIN, name="it", **attributes)
    outs = [onnx.ValueInfoProto(name=name) for name in made]
    proto = model([node], infos, outs, opsets=[helper.make_opsetid(_DOMAIN, 1)])
    return weft.onnx.load(proto).run([], given)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def heads(x: np.ndarray, count: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3).astype(np.float64)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: Any = 0.0) -> np.ndarray:
    """The sums of values of [B, N, S, H], side by side."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    made = (shares / shares.sum(-1, keepdims=True)) @ v
    return made.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_attention_splits_one_product_into_heads() -> None:
    x, w, bias = normal(0, B, 5, 32), normal(1, 32, 96) * 0.2, normal(2, 96)
    (found,) = run("Attention", [x, w, bias], num_heads=N)
    q, k, v = np.split(x.astype(np.float64) @ w + bias, 3, axis=-1)
    close(found, attended(heads(q, N), heads(k, N), heads(v, N)))


@pytest.mark.parametrize(
    "mask",
    [np.array([3, 5]), np.array([4, 5, 1, 0]), np.array([[1, 1, 1, 0, 0], [1] * 5])],
    ids=["lengths", "ends and starts", "keys"],
)
def test_masks_come_as_lengths_or_keys(mask: np.ndarray) -> None:
    x, w, bias = normal(0, B, 5, 32), normal(1, 32, 96) * 0.2, normal(2, 96)
    (found,) = run("Attention", [x, w, bias, mask.astype(np.int32)], num_heads=N)
    column = np.arange(5)
    if mask.ndim == 2:
        seen = mask > 0
    else:
        starts = mask[B:, None] if mask.size > B else 0
        seen = (column < mask[:B, None]) & (column >= starts)
    q, k, v = np.split(x.astype(np.float64) @ w + bias, 3, axis=-1)
    added = np.where(seen, 0, -10000.0)[:, None, None]
    close(found, attended(heads(q, N), heads(k, N), heads(v, N), added))


def test_multi_head_attention_grows_its_cache() -> None:
    q, k, v = normal(0, B, 3, 32), normal(1, B, 3, 32), normal(2, B, 3, 32)
    past = normal(3, B, N, 2, H), normal(4, B, N, 2, H)
    made, keys, values = run("MultiHeadAttention", [q, k, v, None, None, None, *past], 3, num_heads=N)
    whole = [np.concatenate([old, heads(new, N)], 2) for old, new in zip(past, (k, v), strict=True)]
    close(keys, whole[0])
    close(values, whole[1])
    close(made, attended(heads(q, N), *whole))


def test_packed_heads_are_those_side_by_side() -> None:
    packed = normal(0, B, 5, N, 3, H)
    apart = [packed[:, :, :, n].reshape(B, 5, N * H) for n in range(3)]
    (one,), (other,) = (run("MultiHeadAttention", each, num_heads=N) for each in ([packed], apart))
    np.testing.assert_array_equal(one, other)


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    half = x.shape[-1] // 2
    one, other = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    real, imaginary = one * cos - other * sin, one * sin + other * cos
    if interleaved:
        return np.stack([real, imaginary], -1).reshape(x.shape)
    return np.concatenate([real, imaginary], -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_turns_pairs(interleaved: bool) -> None:
    x, cos, sin = normal(0, B, 5, N * H), normal(1, 16, H // 2), normal(2, 16, H // 2)
    positions = np.random.default_rng(3).integers(0, 16, (B, 5))
    (found,) = run("RotaryEmbedding", [x, positions, cos, sin], num_heads=N, interleaved=int(interleaved))
    turned = rotated(heads(x, N), cos[positions][:, None], sin[positions][:, None], interleaved)
    close(found, turned.transpose(0, 2, 1, 3).reshape(B, 5, -1))


@pytest.mark.parametrize("room", [None, 9], ids=["growing", "of a fixed size"])
def test_a_token_after_a_prompt_is_the_last_of_a_longer_prompt(room: int | None) -> None:
    """Rows of different lengths: each token is written behind its own row, and turned by its own position."""
    tables = normal(5, 16, H // 2), normal(6, 16, H // 2)
    lengths = np.array([6, 4])
    whole = [normal(seed, B, 6, count * H) for seed, count in ((0, N), (1, K), (2, K))]
    options = {"num_heads": N, "kv_num_heads": K, "do_rotary": 1}
    prompt = [*whole, None, None, np.array([5, 5], np.int32), np.array([6], np.int32), *tables]
    full, keys, values = run("GroupQueryAttention", prompt, 3, **options)
    step = [np.stack([each[row, lengths[row] - 1] for row in range(B)])[:, None] for each in whole]
    held = [cache[:, :, :5] for cache in (keys, values)]
    if room is not None:
        held = [np.pad(cache, ((0, 0), (0, 0), (0, room - 5), (0, 0))) for cache in held]
    later = [*step, *held, (lengths - 1).astype(np.int32), np.array([6], np.int32), *tables]
    made, after, _ = run("GroupQueryAttention", later, 3, **options)
    for row, length in enumerate(lengths):
        close(made[row, 0], full[row, length - 1])
        close(after[row, :, :length], keys[row, :, :length])
    assert after.shape[2] == (room or 6)


def test_a_window_and_a_cap_limit_what_a_head_sees() -> None:
    whole = [normal(seed, B, 6, count * H) for seed, count in ((0, N), (1, K), (2, K))]
    given = [*whole, None, None, np.array([5, 5], np.int32), np.array([6], np.int32)]
    (found, _, _) = run("GroupQueryAttention", given, 3, num_heads=N, kv_num_heads=K, local_window_size=2)
    q, k, v = (heads(each, count) for each, count in zip(whole, (N, K, K), strict=True))
    row, column = np.arange(6)[:, None], np.arange(6)
    seen = (column <= row) & (column > row - 2)
    expected = attended(q, k.repeat(2, 1), v.repeat(2, 1), np.where(seen, 0, -np.inf))
    close(found, expected)
    (capped, _, _) = run("GroupQueryAttention", given, 3, num_heads=N, kv_num_heads=K, softcap=0.01)
    assert np.abs(capped - found).max() > 1e-3


def test_embeddings_are_added_and_normalized() -> None:
    ids = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    words, places, gamma, beta = normal(0, 9, 16), normal(1, 5, 16), normal(2, 16), normal(3, 16)
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    made, counts, total = run("EmbedLayerNormalization", [ids, None, words, places, None, gamma, beta, mask], 3)
    expected = (words[ids] + places[:3]).astype(np.float64)
    close(total, expected)
    deviation = expected - expected.mean(-1, keepdims=True)
    close(made, deviation / np.sqrt((deviation**2).mean(-1, keepdims=True) + 1e-12) * gamma + beta)
    assert counts.tolist() == [2, 3]


def codes(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def test_quantized_operators_round_once() -> None:
    a, b = codes(0, 3, 4), codes(1, 4)
    scales, zeros = [np.float32(each) for each in (0.02, 0.03, 0.05)], [np.uint8(each) for each in (120, 7, 100)]
    sides = [np.asarray(each) for pair in ((a, scales[0], zeros[0]), (b, scales[1], zeros[1])) for each in pair]
    out = [np.asarray(scales[2]), np.asarray(zeros[2])]
    numbers = (a - np.float64(zeros[0])) * 0.02, (b - np.float64(zeros[1])) * 0.03
    for op, expected in (("QLinearAdd", numbers[0] + numbers[1]), ("QLinearMul", numbers[0] * numbers[1])):
        (found,) = run(op, [*sides, *out])
        assert found.dtype == np.uint8
        rounded = np.clip(np.round(expected / 0.05) + 100, 0, 255)
        assert np.abs(found.astype(int) - rounded).max() <= 1


def test_a_product_of_codes_has_a_bias_in_whole_numbers() -> None:
    a, b, bias = codes(0, 3, 8), codes(1, 8, 5).view(np.int8), np.arange(5, dtype=np.int32) * 100
    given = [
        a,
        np.array(0.02, np.float32),
        np.array(120, np.uint8),
        b,
        np.array(0.03, np.float32),
        np.array(0, np.int8),
    ]
    (found,) = run("QGemm", [*given, bias])
    close(found, ((a.astype(int) - 120) @ b.astype(int) + bias) * 0.02 * 0.03)


def test_operators_with_an_activation_are_two() -> None:
    x, w, bias = normal(0, 3, 8), normal(1, 8, 5), normal(2, 5)
    (found,) = run("FusedGemm", [x, w, bias], activation="LeakyRelu", activation_alpha=0.25)
    expected = x.astype(np.float64) @ w + bias
    close(found, np.where(expected < 0, 0.25 * expected, expected))
    with pytest.raises(WeftError, match="activation"):
        run("FusedGemm", [x, w, bias], activation="Of my own")


@pytest.mark.parametrize("per_column", [False, True])
def test_a_quantized_lstm_rounds_its_input_and_each_state(per_column: bool) -> None:
    rng = np.random.default_rng(3)
    size, ways = 4, 2
    codes = {
        name: rng.integers(30, 220, (ways, rows, 4 * size)).astype(np.uint8) for name, rows in (("w", 3), ("r", 4))
    }
    scales = {
        name: (rng.random((ways, 4 * size) if per_column else (ways,)) * 0.01 + 0.004).astype(np.float32)
        for name in codes
    }
    zeros = np.full_like(scales["w"], 128).astype(np.uint8)
    bias = rng.standard_normal((ways, 8 * size)).astype(np.float32)
    x = rng.standard_normal((6, 3, 3)).astype(np.float32)
    y, last = run(
        "DynamicQuantizeLSTM",
        [x, codes["w"], codes["r"], bias, None, None, None, None, scales["w"], zeros, scales["r"], zeros],
        outputs=2,
        hidden_size=size,
        direction="bidirectional",
    )

    def rounded(given: np.ndarray) -> np.ndarray:
        least, most = min(given.min(), 0), max(given.max(), 0)
        scale = (most - least) / 255 or 1.0
        offset = np.round(-least / scale)
        return (np.clip(np.round(given / scale) + offset, 0, 255) - offset) * scale

    for way in range(ways):
        w, r = ((codes[n][way].astype(float) - 128) * scales[n][way] for n in ("w", "r"))
        h, c, seen = np.zeros((3, size)), np.zeros((3, size)), rounded(x.astype(float))
        for turn in range(6) if way == 0 else reversed(range(6)):
            i, o, f, g = np.split(seen[turn] @ w + bias[way, :16] + bias[way, 16:] + rounded(h) @ r, 4, axis=1)
            i, o, f = (1 / (1 + np.exp(-each)) for each in (i, o, f))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
            np.testing.assert_allclose(y[turn, way], h, atol=2e-5)
        np.testing.assert_allclose(last[way], h, atol=2e-5)
