"""A small model of a family is found, and a compiler that is wrong or raises is told from one that is right."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

pytest.importorskip("transformers")

from weft.testing.zoo.families import NoConfigError, family_names, small_model
from weft.testing.zoo.judge import Judge


@pytest.fixture(scope="module")
def bert():
    return small_model("bert")


def test_there_are_hundreds_of_families():
    assert len(family_names()) > 250 and {"llama", "vit", "whisper", "t5"} <= set(family_names())


def test_inputs_are_what_the_forward_takes(bert):
    module = bert.build()
    inputs = bert.inputs(module, 0)
    assert set(inputs) == {"input_ids", "attention_mask"} and int(inputs["input_ids"].max()) < module.config.vocab_size
    assert not torch.equal(inputs["input_ids"], bert.inputs(module, 1)["input_ids"])


def test_a_family_without_a_small_model_says_why(monkeypatch):
    monkeypatch.setattr("weft.testing.zoo.families.LARGEST", 10)
    with pytest.raises(NoConfigError, match="million parameters"):
        small_model("bert")


def changed(change):
    def compiler(graph_module, inputs):
        return make_boxed_func(lambda *args: change(graph_module(*args)))

    return aot_autograd(fw_compiler=compiler, inference_compiler=compiler)


def off_by_a_bit(results):
    return [r * (1 + 1e-3) if isinstance(r, torch.Tensor) and r.is_floating_point() else r for r in results]


class Tiny:
    """What `Judge` needs of a small model."""

    def build(self):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh()).eval()

    def inputs(self, module, seed):
        return {"input": torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))}


def test_a_wrong_result_is_found():
    verdicts = dict(Judge(backend=changed(off_by_a_bit), speed=False).verdicts(Tiny()))
    assert {each.status for each in verdicts.values()} == {"wrong"}
    assert "error" in verdicts["inference"].reason


def test_gradients_beside_one_that_is_zero_but_for_rounding_are_judged_by_float64():
    def as_it_is(graph_module, inputs):
        return make_boxed_func(graph_module.forward)

    def off_backwards(graph_module, inputs):
        return make_boxed_func(lambda *args: [r * (1 + 5e-4) if r is not None else r for r in graph_module(*args)])

    backend = aot_autograd(fw_compiler=as_it_is, bw_compiler=off_backwards)
    verdict = dict(Judge(backend=backend, speed=False).verdicts(Tiny()))["training"]
    assert verdict.status == "wrong" and "float64" in verdict.reason


def test_what_torch_itself_gets_right_is_right():
    verdicts = dict(Judge(backend="aot_eager", speed=True).verdicts(Tiny()))
    assert {each.status for each in verdicts.values()} == {"right"}
    assert verdicts["training"].graphs == 2 and verdicts["training"].again == 0
    assert verdicts["inference"].speeds["aot_eager"] > 0


def test_a_result_that_is_wrong_from_the_second_call_on_is_wrong():
    calls = []

    def change(results):
        calls.append(1)
        return off_by_a_bit(results) if len(calls) > 1 else results

    verdicts = Judge(backend=changed(change), speed=False).verdicts(Tiny())
    assert next(iter(verdicts))[1].status == "wrong"


def test_a_compiler_that_raises_is_an_error():
    def refuses(graph_module, inputs):
        raise ValueError("no such kernel")

    verdicts = dict(Judge(backend=refuses, speed=False).verdicts(Tiny()))
    assert {each.status for each in verdicts.values()} == {"error"}
    assert "no such kernel" in verdicts["inference"].reason


def test_a_model_that_eager_does_not_run_has_no_verdict():
    class Refuses(Tiny):
        def inputs(self, module, seed):
            return {"input": torch.randn(4, 9)}

    assert {each.status for _, each in Judge(speed=False).verdicts(Refuses())} == {"none"}


class OnlySingle(Tiny):
    """A model that eager runs in f32 and narrower alone; the gradient of its first bias is zero but for rounding."""

    def build(self):
        class Narrow(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Tiny().build()

            def forward(self, input):
                if input.dtype == torch.float64:
                    raise TypeError("no float64")
                return self.inner(input)

        return Narrow()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_float64_eager_says_what_rounding_does(dtype):
    def rounded_otherwise(results):
        by = 1 + torch.finfo(torch.float32).eps  # nothing where floats have 16 bits
        return [r * by if r is not None and r.is_floating_point() else r for r in results]

    def judged(change):
        backend = changed(change)
        return {each.status for _, each in Judge(dtype=dtype, backend=backend, speed=False).verdicts(OnlySingle())}

    assert judged(rounded_otherwise) == {"right"}
    far = 2e-2 if dtype == torch.float32 else 0.5
    assert judged(lambda results: [r * (1 + far) if r is not None else r for r in results]) == {"wrong"}
