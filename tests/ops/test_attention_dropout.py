"""What attention drops: as many weights as asked for, by a rule without patterns, the same forward and backward."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import ShapeError
from weft.ir.types import Tensor, f32, i64
from weft.ops.base import REGISTRY
from weft.ops.matmul.attention_dropout import kept_weights, words_of_rows

SEED = np.array([123_456_789_123], np.int64)


@pytest.mark.parametrize("dropout", [0.1, 0.25, 0.5, 0.9])
def test_as_many_weights_are_kept_as_asked_for(dropout: float) -> None:
    kept = kept_weights(SEED, (4, 512, 512), dropout)
    spread = (dropout * (1 - dropout) / kept.size) ** 0.5
    assert abs(kept.mean() - (1 - dropout)) < 4 * spread
    for axis in (0, 1, 2):
        means = kept.mean(axis=tuple({0, 1, 2} - {axis}))
        assert np.abs(means - (1 - dropout)).max() < 5.5 * (dropout * (1 - dropout) * means.size / kept.size) ** 0.5


def test_no_weight_tells_of_another() -> None:
    kept = kept_weights(SEED, (2, 1024, 1024), 0.5) * 2.0 - 1
    count = kept.size
    near = {
        **{f"{step} keys further": (kept[..., step:] * kept[..., :-step]).sum() for step in (1, 2, 7, 8, 16, 64)},
        **{f"{step} rows further": (kept[:, step:] * kept[:, :-step]).sum() for step in (1, 2, 8, 64)},
        "in the next head": (kept[0] * kept[1]).sum(),
        "of four": (kept[:, 1:, 8:] * kept[:, :-1, 8:] * kept[:, 1:, :-8] * kept[:, :-1, :-8]).sum(),
        "by another seed": (kept * (kept_weights(SEED + 1, (2, 1024, 1024), 0.5) * 2.0 - 1)).sum(),
    }
    assert {name: total for name, total in near.items() if abs(total) > 4.5 * count**0.5} == {}


def test_both_halves_of_a_seed_count() -> None:
    words = [words_of_rows(np.array([seed], np.int64), (2, 50)) for seed in (0, 1, 1 << 32, -1)]
    for place, one in enumerate(words):
        assert len(np.unique(one)) == one.size
        assert all((one != other).any(-1).all() for other in words[:place])


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_those_of_what_was_kept(causal: bool) -> None:
    """By differences of the forward's reference, two heads to a key head."""
    rng = np.random.default_rng(5)
    grad, q = (rng.standard_normal((2, 2, 6, 4)) for _ in range(2))
    k, v = (rng.standard_normal((2, 9, 4)) for _ in range(2))
    params = {"causal": causal, "scale": 0.5, "dropout": 0.3}

    def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        spread = (np.broadcast_to(x[:, None], (2, 2, *x.shape[1:])) for x in (k, v))
        return REGISTRY["attention_with_dropout"].cls.reference(q, *spread, SEED, **params)

    out, lse = attended(q, k, v)
    found = REGISTRY["attention_gradients"].cls.reference(grad, q, k, v, lse, (grad * out).sum(-1), SEED, **params)
    for place, (given, gradient) in enumerate(zip((q, k, v), found, strict=True)):
        along = rng.standard_normal(given.shape)
        moved = [[x + sign * 1e-6 * along if n == place else x for n, x in enumerate((q, k, v))] for sign in (1, -1)]
        slope = ((attended(*moved[0])[0] - attended(*moved[1])[0]) * grad).sum() / 2e-6
        assert slope == pytest.approx((gradient * along).sum(), rel=1e-6)


def test_a_seed_is_one_number() -> None:
    rule = REGISTRY["attention_gradients"].cls
    many, keys, rows = Tensor(f32, (1, 4, 8)), Tensor(f32, (4, 8)), Tensor(f32, (1, 4))
    given = many, many, keys, keys, rows, rows
    assert len(rule.infer(*given, Tensor(i64, (1,)), causal=False, scale=1.0, dropout=0.5)) == 3
    with pytest.raises(ShapeError, match="a seed is"):
        rule.infer(*given, Tensor(i64, (2,)), causal=False, scale=1.0, dropout=0.5)
