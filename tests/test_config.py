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
        ({"target": "cuda"}, "no target is called 'cuda'\n.*where the tensors lie, a GPU too"),
        ({"fallback": "ignore"}, "fallback is 'ignore', which is none of 'warn', 'error', 'quiet'"),
        ({"quantize": "int9", "freeze": True}, r"quantize is 'int9' \(did you mean int"),
        ({"strct": True}, r"unknown option strct \(did you mean strict\?\)"),
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


def test_a_configuration_is_checked_however_it_is_made() -> None:
    with pytest.raises(WeftError, match="the option strict is 'no'"):
        Config(strict="no")  # type: ignore[arg-type]
    with pytest.raises(WeftError, match="no target is called"):
        Config(target="gpu")


def test_a_choice_that_the_environment_makes_is_said_to_be_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_FALLBACK", "loud")
    with pytest.raises(WeftError, match="the environment sets WEFT_FALLBACK"):
        Config.from_options({"strict": True})
    assert Config.from_options({"fallback": "quiet"}).fallback == "quiet"


def test_variables_that_nothing_reads_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WEFT_CACHEDIR", "/somewhere")
    for _ in range(2):
        Config.from_options()
    (told,) = caplog.messages
    assert "WEFT_CACHEDIR has no effect (did you mean WEFT_CACHE_DIR?)" in told


def test_a_mode_is_one_of_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeftError, match=r"no mode is called 'max-autotun' \(did you mean max-autotune\?\)"):
        Config.from_options(mode="max-autotun")


def test_what_is_done_about_fallbacks_changes_no_code() -> None:
    assert Config(fallback="error").key() == Config().key() != Config(strict=True).key()
    assert Config(fallback="error").forbids_fallbacks and not Config(fallback="quiet").forbids_fallbacks
