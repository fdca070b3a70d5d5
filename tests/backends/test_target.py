"""Targets: found by entry point, whole or not, asked for by name or by where tensors lie."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import weft
from weft import discovery
from weft.backends.target import ALONE, Target, find_target, require_capabilities, target_for_device, targets
from weft.config import Config
from weft.diagnostics import forget
from weft.errors import TargetError, WeftError
from weft.targets.cpu import Cpu
from weft.tile.text import functions_of, parse_program
from weft.tools.doctor import SOFTMAX

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def stated(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Entry points of other distributions: what is put in here is found."""
    points: dict[str, str] = {}
    before = metadata.entry_points

    def entry_points(*, group: str) -> metadata.EntryPoints:
        if group != discovery.GROUP:
            return before(group=group)
        return metadata.EntryPoints(metadata.EntryPoint(name, value, group) for name, value in points.items())

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    discovery.entry_points.cache_clear()
    forget()
    yield points
    discovery.entry_points.cache_clear()


def test_the_wheel_states_what_the_source_tree_knows() -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert project["entry-points"][discovery.GROUP] == discovery.OWN


def test_own_targets_are_found_without_entry_points(stated: dict[str, str]) -> None:
    assert {name: found.name for name, found in targets().items()} == {name: name for name in discovery.OWN}


@pytest.mark.parametrize(("device", "name"), [("cpu", "cpu"), ("cuda", "nvidia")])
def test_the_target_of_a_device(device: str, name: str) -> None:
    assert target_for_device(device).name == name


def test_a_device_without_a_target() -> None:
    with pytest.raises(TargetError, match="no target takes tensors on tpu"):
        target_for_device("tpu")


@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_graphs_run_on_arrays(name: str) -> None:
    (function,) = functions_of(parse_program(SOFTMAX, "softmax.mlir"))
    config = Config(target=name, cache=False)
    target = find_target(name).here(config)
    program = target.load(target.compile(function, config), config)
    x = np.random.default_rng(0).standard_normal((64, 257)).astype(np.float32)
    (found,) = program([x])
    exact = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, exact / exact.sum(axis=1, keepdims=True), rtol=1e-5)
    assert len(program.inputs) == len(program.outputs) == 1


def test_an_unknown_target_lists_those_that_are_found(stated: dict[str, str]) -> None:
    stated["mine"] = "somewhere:Mine"
    with pytest.raises(TargetError, match=r"no target is called 'cup' \(did you mean cpu\?\)") as caught:
        Config.from_options({"target": "cup"})
    assert "`cpu`, `mine`, `nvidia`, `reference`" in str(caught.value)


def test_compile_takes_no_unknown_target() -> None:
    pytest.importorskip("torch")
    with pytest.raises(TargetError, match="no target is called 'abacus'"):
        weft.compile(lambda x: x, target="abacus")


def test_a_name_is_enough_for_the_configuration(stated: dict[str, str]) -> None:
    stated["mine"] = "nowhere.to.be.found:Mine"
    assert Config(target="mine").target == "mine"


def test_a_target_that_cannot_be_imported_leaves_the_others(
    stated: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    stated["broken"] = "nowhere.to.be.found:Broken"
    for _ in range(2):
        assert set(targets()) == set(discovery.OWN)
    (said,) = caplog.messages
    assert "'broken' cannot be loaded from nowhere.to.be.found:Broken" in said and "repair or remove" in said
    with pytest.raises(TargetError, match="ModuleNotFoundError"):
        find_target("broken")


def test_what_is_no_target_is_left_out(stated: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    stated["config"] = "weft.config:Config"
    assert set(targets()) == set(discovery.OWN)
    (said,) = caplog.messages
    assert "the target 'config', has no" in said and "weft.backends.target.Target" in said


def test_own_names_are_no_one_elses(stated: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    stated["cpu"] = "elsewhere:Cpu"
    assert targets()["cpu"].name == "cpu" and "two targets are called 'cpu'" in caplog.text


def test_dynamic_sizes_need_no_capability_of_own_targets() -> None:
    (function,) = functions_of(parse_program(SOFTMAX, "softmax.mlir"))
    for name in ("reference", "cpu"):
        target: Target = find_target(name).here(Config())
        require_capabilities(function, target)
        assert target.capabilities.dynamic_sizes and not target.capabilities.thread_blocks


def test_a_target_says_all_that_changes_its_code() -> None:
    from weft.backends.nvidia.target import target_named
    from weft.targets.nvidia import Nvidia

    hopper, ampere = (Nvidia(target_named(arch)) for arch in ("sm_90a", "sm_80"))
    assert hopper.cache_key() != ampere.cache_key()
    assert Nvidia(hopper.gpu, index=1).cache_key() == hopper.cache_key()
    assert hopper.capabilities.fast_matmuls and not ampere.capabilities.fast_matmuls
    assert hopper.costs.bandwidth > ampere.costs.bandwidth
    named: dict[str, Any] = {each.name: each for each in hopper.passes(Config())}
    assert named["claim_libraries"].fast_matmuls


def test_tensors_must_lie_where_the_target_takes_them() -> None:
    torch = pytest.importorskip("torch")
    from weft.frontends.torch.devices import target_on

    with pytest.raises(WeftError, match="the target 'nvidia' takes tensors on cuda, and these lie on cpu"):
        target_on(torch.device("cpu"), Config(target="nvidia"))
    assert target_on(torch.device("cpu"), Config()).name == "cpu"


class Sealed(Cpu):
    """A target whose programs have a format of their own, if with the same type."""

    name = "sealed"

    def compile(self, function: Any, config: Config, host: Any = ALONE) -> Any:
        made = super().compile(function, config, host)
        return replace(made, code=bytes(255 - byte for byte in made.code))

    def load(self, compiled: Any, config: Config, host: Any = ALONE) -> Any:
        return super().load(replace(compiled, code=bytes(255 - byte for byte in compiled.code)), config, host)


def test_torch_lets_a_target_load_what_it_made(stated: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sealed_target", SimpleNamespace(Sealed=Sealed))
    stated["sealed"] = "sealed_target:Sealed"
    options = {"target": "sealed", "cache": False, "strict": True}
    x = torch.randn(5, 7)
    torch.testing.assert_close(torch.compile(torch.exp, backend="weft", options=options)(x), x.exp())
