"""The configuration: from defaults, the environment and options, each of them checked."""

from __future__ import annotations

from typing import Any

import pytest

from weft.config import Config
from weft.errors import WeftError


def test_options_go_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STRICT", "on")
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert Config.from_options() == Config(strict=True, cache=False)
    assert Config.from_options({"strict": False}) == Config(cache=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fast": True}, "unknown option fast"),
        ({"strict": "no"}, "the option strict is 'no'"),
        ({"target": "gpu"}, "no target is called 'gpu'"),
        ({"target": 3}, "the option target is 3"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(WeftError, match=message):
        Config.from_options(options)


def test_a_bad_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_STRICT", "maybe")
    with pytest.raises(WeftError, match="WEFT_STRICT is 'maybe'"):
        Config.from_options()
