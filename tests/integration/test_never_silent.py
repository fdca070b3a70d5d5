"""Whatever runs otherwise than asked is told: each cause once in a process, with the line of the user's program."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.config import Config
from weft.diagnostics import forget, warn

SCRIPT = """
import torch
from torch import nn


def largest(x):
    return torch.linalg.svdvals(x * 2)[..., 0] + 1  # svdvals


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(10, 8), nn.LSTM(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        h, _ = self.lstm(self.embedding(x))  # lstm
        return self.head(h)


def places(x):
    return torch.nonzero(x.sin() > 0) * 2  # nonzero


def refused(**asked):
    try:
        torch.compile(largest, backend="weft", **asked)
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0])


x = torch.randn(5)
for _ in range(2):
    torch.compiler.reset()
    fast = torch.compile(largest, backend="weft")  # variable
    for _ in range(2):
        fast(torch.randn(4, 5, 5))  # cache
    reader = torch.compile(Reader(), backend="weft")
    for _ in range(2):
        reader(torch.arange(6).view(3, 2))
    torch.compile(nn.GRU(8, 8), backend="weft")(torch.randn(3, 2, 8))  # gru
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(places, backend="weft")(torch.randn(5))
    torch.compile(lambda x: x.sin().sum(), backend="weft", options={"freeze": True})(x.requires_grad_())  # trained
refused(mode="nonsense")
refused(options={"strikt": True})
refused(options={"strict": "no"})
refused(options={"cpu": "foo"})
"""


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f"# {mark}"))


def test_every_silent_thing_is_told_once_with_its_line(tmp_path: Path) -> None:
    script, place = tmp_path / "silent.py", tmp_path / "file" / "cache"
    script.write_text(SCRIPT)
    place.parent.write_text("a file, below which no folder can be made")
    environment = {**os.environ, "WEFT_CACHE_DIR": str(place), "WEFT_STRIKT": "1"}
    environment.pop("WEFT_CACHE", None)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("weft: ")]
    expected = {
        "svdvals": "aten._linalg_svd.default is left to torch",
        "lstm": "LSTM runs in eager",
        "gru": "GRU runs in eager",
        "nonzero": "aten.nonzero.default is left to torch",
        "trained": "weights are not frozen",
        "variable": "WEFT_STRIKT has no effect (did you mean WEFT_STRICT?)",
        "cache": f"compiled programs are not kept in {place}",
    }
    assert len(told) == len(expected), told
    for mark, text in expected.items():
        (line,) = [line for line in told if text in line]
        assert line.startswith(f"weft: {script}:{line_of(mark)}: "), line
        assert "; " in line, "it says what to do"
    assert done.stdout.splitlines() == [
        "WeftError no mode is called 'nonsense'",
        "WeftError unknown option strikt (did you mean strict?)",
        "WeftError the option strict is 'no'",
        f"WeftError LLVM knows no processor called 'foo' for {os.uname().machine}",
    ]


def largest(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(x * 2)[..., 0] + 1


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("weft")]


def compiled(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="weft", options=options)


def test_fallbacks_are_told_refused_or_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(3, 4, 4)
    compiled(largest, fallback="quiet")(x)
    assert not messages(caplog)
    compiled(largest)(x)
    (told,) = messages(caplog)
    assert re.match(rf"weft: {__file__}:\d+: aten._linalg_svd.default is left to torch, ", told)
    for _ in range(2):  # what was compiled before is in the cache by now
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"aten\._linalg_svd") as caught:
            compiled(largest, fallback="error")(x)
        assert isinstance(caught.value.inner_exception, weft.UnsupportedError)


def test_modules_of_torch_that_dynamo_passes_over_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            self.layers[1].register_full_backward_hook(lambda module, inputs, outputs: None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.sin()) * 2

    average = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    x = torch.randn(3, 4)
    passed_over = (
        (average, Hooked()) if torch.__version__ >= (2, 12) else (Hooked(),)
    )  # 2.11 splits the average's graph
    for module in passed_over:
        compiled(module, fallback="quiet")(x)
        assert not messages(caplog)
        for _ in range(2):
            compiled(module)(x)
        (told,) = messages(caplog)
        assert re.match(rf"weft: {__file__}:\d+: a module runs in eager, Dynamo cannot trace it: .*; fullgraph", told)
        caplog.clear()

    def printed(x: torch.Tensor) -> torch.Tensor:
        print("broken in no module: the rest is compiled")
        return x.sin() * x.sum().item()

    compiled(printed)(x)
    assert not messages(caplog)


def test_what_autograd_cannot_trace_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def filled(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[x > 0] = x[x > 0].sum()
        return y

    compiled(filled)(torch.randn(9, requires_grad=True))
    assert any("AOTAutograd cannot trace aten.nonzero.default; " in told for told in messages(caplog))


def test_assertions_are_no_fallbacks(caplog: pytest.LogCaptureFixture) -> None:
    def root(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x >= 0).all(), "a root of a negative number")
        return x.sqrt() * 2

    run, x = compiled(root, fallback="error"), torch.rand(5)
    torch.testing.assert_close(run(x), root(x))
    with pytest.raises(RuntimeError, match="a root of a negative number"):
        run(x - 1)
    assert not messages(caplog)


def test_libraries_and_random_numbers_are_no_fallbacks(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(nn.functional.conv2d(x, w), 0.5)

    x, w = torch.randn(1, 3, 16, 16), torch.randn(8, 3, 3, 3)
    assert compiled(step, fallback="error")(x, w).shape == (1, 8, 14, 14)
    assert not messages(caplog)


def test_a_cause_is_told_once_whatever_line_leads_to_it(caplog: pytest.LogCaptureFixture) -> None:
    assert warn("cache", "nothing is kept", "it is full")
    assert not warn("cache", "nothing is kept", "it is full")
    assert warn("cache", "nothing is kept", "it is full", location="model.py:3")
    forget()
    assert warn("cache", "nothing is kept", "it is full", "clear it")
    assert messages(caplog)[1] == "weft: model.py:3: nothing is kept, it is full"
    assert re.fullmatch(rf"weft: {__file__}:\d+: nothing is kept, it is full; clear it", messages(caplog)[2])
    assert all(record.name == "weft.cache" and record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize(
    ("mode", "tune", "cuda_graphs"),
    [
        ("default", False, False),
        ("reduce-overhead", False, True),
        ("max-autotune", True, True),
        ("max-autotune-no-cudagraphs", True, False),
    ],
)
def test_modes_mean_what_they_mean_to_torch(
    monkeypatch: pytest.MonkeyPatch, mode: str, tune: bool, cuda_graphs: bool
) -> None:
    monkeypatch.setenv("WEFT_CUDA_GRAPHS", "0")
    config = Config.from_options(mode=mode)
    assert (config.tune, config.cuda_graphs) == (tune, cuda_graphs)


def test_a_mode_of_a_compiled_function_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.frontends.torch import backend

    asked: list[Config] = []
    compile_graph = backend.compile_graph

    def watched(*arguments: Any, config: Config, **named: Any) -> Any:
        asked.append(config)
        return compile_graph(*arguments, config=Config(), **named)

    monkeypatch.setattr(backend, "compile_graph", watched)
    torch.compiler.reset()
    torch.compile(lambda x: x + 1, backend="weft", mode="max-autotune")(torch.ones(3))
    weft.compile(lambda x: x + 2, mode="max-autotune-no-cudagraphs")(torch.ones(3))
    assert [(config.tune, config.cuda_graphs) for config in asked] == [(True, True), (True, False)]
