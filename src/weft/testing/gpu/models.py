"""The suite `models`: whole models in bf16 with random weights, batch 1 and 32, against Inductor's best mode.

A call is timed as a caller waits for it, launches included. Models are made on the device itself: eight billion random
numbers take a CPU minutes.
"""

# torch leaves some of its arguments without types.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from weft.testing.bench.benchmark import Call, Contender
from weft.testing.bench.benchmark_models import NO_DROPOUT
from weft.testing.gpu.case import GpuCase, Place, Work
from weft.testing.gpu.llama import SMALL, Llama, LlamaShape
from weft.testing.gpu.peers import eager, inductors
from weft.testing.models import configured

BATCHES = (1, 32)
# Random weights carry rounding through all layers; a mistake changes the whole result.
ALLOWED = 1e-1
PROMPT = 2048
SMALL_TRANSFORMER: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SMALL_TRANSFORMER["num_attention_heads"] = 4
SMALL_GPT2: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4}
SMALL_RESNET: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]}


@contextmanager
def made_on(device: str) -> Generator[None]:
    """Modules made inside lie on the device, in bf16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def _work(place: Place, module: nn.Module, given: dict[str, Tensor], **settings: Any) -> Work:
    module.eval()

    def start(contender: Contender) -> Call:
        run = contender.compile(module)
        return lambda: run(**given)

    peers = [eager(), *inductors(place, graphs=True)]
    return Work(start, peers, wall=True, allowed=ALLOWED, **settings)


def _tokens(place: Place, batch: int, length: int, vocabulary: int) -> dict[str, Tensor]:
    return {"input_ids": place.integers(vocabulary, batch, min(length, length // place.shrink + 16))}


def _image(place: Place, batch: int) -> dict[str, Tensor]:
    side = 224 if place.shrink == 1 else 64
    return {"pixel_values": place.normal(batch, 3, side, side)}


def _of_transformers(
    family: str,
    head: str,
    settings: dict[str, Any],
    small: dict[str, Any],
    inputs: Callable[[Place, int], dict[str, Tensor]],
) -> Callable[[int], Callable[[Place], Work]]:
    def sized(batch: int) -> Callable[[Place], Work]:
        def build(place: Place) -> Work:
            chosen = settings if place.shrink == 1 else {**settings, **small}
            count = batch if place.shrink == 1 else min(batch, 2)
            with made_on(place.device.name):
                module = configured(family, head, chosen)
            # The family's own initial values leave some weights in f32.
            module.to(torch.bfloat16)
            return _work(place, module, inputs(place, count))

        return build

    return sized


def _llama(place: Place, batch: int, length: int, first: int) -> tuple[Llama, dict[str, Tensor]]:
    shape = LlamaShape() if place.shrink == 1 else SMALL
    with made_on(place.device.name):
        module = Llama(shape, batch)
    length, first = min(length, shape.room), min(first, shape.room - 1)
    positions = torch.arange(first, first + length, device=place.device.name)
    return module, {"ids": place.integers(shape.vocabulary, batch, length), "position": positions}


def _decoding(batch: int) -> Callable[[Place], Work]:
    """One more token after a thousand: the weights are read once, and the whole cache."""

    def build(place: Place) -> Work:
        module, given = _llama(place, batch, 1, 1000)
        cache = sum(buffer.nbytes for name, buffer in module.named_buffers() if name.endswith(("keys", "values")))
        moved = module.read_a_token() + cache
        return _work(place, module, given, unit="tokens/s", amount=batch, bytes=moved)

    return build


def _decoding_codes(form: str, bits: float) -> Callable[[Place], Work]:
    """The same with weights of few bits, factors included: no peer has such."""

    def build(place: Place) -> Work:
        work = _decoding(1)(place)
        moved = int(work.bytes * bits / 16)
        return replace(work, bytes=moved, allowed=None, options={"quantize": form}, peers=())

    return build


def _prompting(batch: int) -> Callable[[Place], Work]:
    """A prompt; two FLOPs for each weight and token, but for the head, which sees the last token alone."""

    def build(place: Place) -> Work:
        module, given = _llama(place, batch, PROMPT, 0)
        tokens = given["ids"].numel()
        flops = (module.read_a_token() - module.head.weight.nbytes) * tokens
        return _work(place, module, given, unit="tokens/s", amount=tokens, flops=flops)

    return build


def model_cases() -> list[GpuCase]:
    """The suite `models`."""
    sdpa = {"attn_implementation": "sdpa"}
    gpt2 = {**sdpa, "use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    encoder = {**sdpa, **NO_DROPOUT}
    families = {
        "gpt2": _of_transformers("GPT2", "LMHeadModel", gpt2, SMALL_GPT2, lambda p, n: _tokens(p, n, 512, 50257)),
        "bert_base": _of_transformers(
            "Bert", "Model", encoder, SMALL_TRANSFORMER, lambda p, n: _tokens(p, n, 512, 30522)
        ),
        "vit_base": _of_transformers(
            "ViT", "ForImageClassification", encoder, {**SMALL_TRANSFORMER, "image_size": 64}, _image
        ),
        "resnet_50": _of_transformers("ResNet", "ForImageClassification", {}, SMALL_RESNET, _image),
    }
    return [
        *(GpuCase("models", f"{name}_{n}", sized(n)) for name, sized in families.items() for n in BATCHES),
        *(GpuCase("models", f"llama_8b_decode_{n}", _decoding(n)) for n in BATCHES),
        GpuCase("models", "llama_8b_decode_1_int4", _decoding_codes("int4", 4 + 16 / 128)),
        *(GpuCase("models", f"llama_8b_prefill_{n}", _prompting(n)) for n in BATCHES),
    ]
