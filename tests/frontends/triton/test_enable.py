"""`enable()`: `import triton` finds Weft, and finds what it did before at the end."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest

import weft.triton


def test_modules_are_the_same_objects_and_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:  # where Triton is installed
        monkeypatch.delitem(sys.modules, name)
    before = ModuleType("triton")
    sys.modules["triton"] = before
    try:
        with weft.triton.enable():
            for name in ("language", "language.core", "runtime.jit", "compiler.errors", "testing", "knobs"):
                ours = importlib.import_module(f"weft.triton.{name}")
                assert importlib.import_module(f"triton.{name}") is ours
                assert ours.__spec__ is not None and ours.__spec__.name == f"weft.triton.{name}"
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module("triton.no_such_module")
        assert sys.modules["triton"] is before
        assert "triton.language" not in sys.modules
    finally:
        del sys.modules["triton"]


def test_knobs_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.triton import knobs

    monkeypatch.setenv("TRITON_DEBUG", "1")
    assert knobs.runtime.debug is True
    with knobs.runtime.scope():
        knobs.runtime.debug = False
        assert knobs.runtime.debug is False
    assert knobs.runtime.debug is True


def test_torch_can_say_which_triton_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch._dynamo.utils")
    monkeypatch.delattr(module, "triton", raising=False)
    with weft.triton.enable():
        assert vars(module)["triton"].__version__ == weft.triton.__version__
