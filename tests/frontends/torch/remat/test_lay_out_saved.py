"""What convolutions keep for their gradients lies as they read it, and what the user sees as eager has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode

from weft.errors import UnsupportedError
from weft.frontends.torch import backend
from weft.frontends.torch.remat import lay_out_saved
from weft.testing.comparison import compare


class Upsampling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.second, self.last = nn.Conv2d(16, 16, 3, padding=1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.silu(self.norm(self.first(x)))
        y = y + F.interpolate(F.max_pool2d(F.gelu(self.second(y)), 2), scale_factor=2, mode="bilinear")
        return y, self.last(y.flatten(2).mean(2))


def along(dims: int, between: type[nn.Module] = nn.SiLU) -> nn.Module:
    kind = {1: nn.Conv1d, 3: nn.Conv3d}[dims]
    return nn.Sequential(kind(4, 8, 3), between(), kind(8, 8, 3, stride=2, dilation=2), nn.Sigmoid())


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "upsampling": (Upsampling, (2, 3, 8, 12)),
    "lines": (lambda: along(1), (3, 4, 21)),
    "volumes": (lambda: along(3), (2, 4, 9, 11, 7)),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.SiLU(), nn.Conv2d(6, 4, 1)), (2, 6, 7, 5)),
    "groups": (lambda: nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.SiLU(), nn.Conv2d(8, 4, 1)), (2, 6, 7, 5)),
    "shared": (lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(2), nn.Softmax(-1)), (2, 4, 7, 5)),
}


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lay_out_saved, "_DEVICE", "cpu")


def step(function: Callable[..., Any], model: nn.Module, x: Tensor) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """What is kept, what is returned, and the gradients."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    given = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = function(given)
    results: list[Tensor] = [*made] if isinstance(made, tuple) else [made]
    weights = [torch.linspace(-1, 1, y[0].numel(), dtype=y.dtype).view(y[0].shape) for y in results]
    loss = torch.stack([(y.sum(0) * weight).sum() for y, weight in zip(results, weights, strict=True)]).sum()
    gradients = torch.autograd.grad(loss, (given, *model.parameters()))
    return kept, [each.detach() for each in results], list(gradients)


def innermost(tensor: Tensor) -> bool:
    return tensor.movedim(1, -1).is_contiguous() and not tensor.is_contiguous()


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_right_and_results_lie_as_before(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, shape = CASES[name]
    model, x = make().bfloat16(), torch.randn(shape).bfloat16()
    compiled = torch.compile(model, backend="weft", options={"cache": False, "fallback": "error"})
    _, found, gradients = step(compiled, model, x)
    _, eager, known = step(model, model, x)
    _, wide, exact = step(model.double(), model, x.double())
    assert [each.stride() for each in found] == [each.stride() for each in eager]
    judged = compare([*found, *gradients], [*eager, *known], [*wide, *exact])
    assert judged.ok, str(judged)


@pytest.mark.parametrize("between", [nn.SiLU, nn.ReLU6])
def test_what_is_kept_has_its_channels_innermost(between: type[nn.Module]) -> None:
    torch._dynamo.reset()
    model = along(3, between).bfloat16()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    kept, _, _ = step(compiled, model, torch.randn(2, 4, 9, 11, 7).bfloat16())
    made = [each for each in kept if each.shape == (2, 8, 7, 9, 5)]
    assert len(made) == 2, "what the first convolution makes, and what the second one reads"
    assert all(map(innermost, made))


def test_images_that_are_made_larger_do_not_stand_in_the_way() -> None:
    torch._dynamo.reset()
    model = Upsampling().bfloat16()
    compiled = torch.compile(model, backend="weft", options={"cache": False})
    kept, _, _ = step(compiled, model, torch.randn(2, 3, 8, 12).bfloat16())
    made = [each for each in kept if each.shape == (2, 16, 8, 12)]
    assert made
    assert all(map(innermost, made))


def test_masks_of_dropout_lie_as_what_they_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lay_out_saved, "_DEVICE", "meta")
    aten: Any = torch.ops.aten
    forward, backward = fx.Graph(), fx.Graph()

    def add(target: Any, *args: Any, dtype: Any = torch.bfloat16, shape: tuple[int, ...] = (2, 8, 6, 5)) -> fx.Node:
        node = forward.placeholder(args[0]) if target is None else forward.call_function(target, args)
        with mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        return node

    mode = FakeTensorMode()
    with mode:
        x, w = add(None, "x", shape=(2, 4, 6, 5)), add(None, "w", shape=(8, 4, 3, 3))
    made = add(aten.convolution.default, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    numbers = add(aten.rand.default, [2, 8, 6, 5], dtype=torch.float32)
    mask = add(aten.lt.Scalar, numbers, 0.9, dtype=torch.bool)
    dropped = add(aten.mul.Tensor, made, mask)
    alone = add(aten.lt.Scalar, numbers, 0.5, dtype=torch.bool)
    kept = [made, dropped, add(aten.le.Scalar, dropped, 0, dtype=torch.bool), alone, x, w]
    forward.output(tuple(kept))
    for each in kept:
        backward.placeholder(each.name).meta["val"] = each.meta["val"]
    backward.output(())
    lay_out_saved.lay_out_saved(fx.GraphModule({}, forward), fx.GraphModule({}, backward), 0)
    lies = [innermost(each.meta["val"]) for each in backward.find_nodes(op="placeholder")]
    assert lies == [True, True, True, False, False, False]


class Strided(nn.Module):
    """What `as_strided` shows depends on how a convolution's result lies."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        return F.silu(y), torch.as_strided(y, (2, 3, 4), (96, 24, 1)) ** 2


def test_what_reads_memory_as_it_lies_keeps_it() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Strided().bfloat16(), torch.randn(2, 3, 6, 4).bfloat16()
    _, found, gradients = step(torch.compile(model, backend="weft", options={"cache": False}), model, x)
    _, eager, known = step(model, model, x)
    _, wide, exact = step(model.double(), model, x.double())
    judged = compare([*found, *gradients], [*eager, *known], [*wide, *exact])
    assert judged.ok, str(judged)


def test_a_backward_that_torch_runs_sees_what_was_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Flatten(1), nn.Linear(8 * 4 * 2, 5)).bfloat16()
    x = torch.randn(2, 3, 6, 4).bfloat16()
    imported = backend.import_graph

    def refused(module: fx.GraphModule, name: str, *given: Any, **named: Any) -> Any:
        if name == "backward":
            raise UnsupportedError("a graph for a test")
        return imported(module, name, *given, **named)

    monkeypatch.setattr(backend, "import_graph", refused)
    compiled = torch.compile(model, backend="weft", options={"cache": False, "fallback": "quiet"})
    _, found, gradients = step(compiled, model, x)
    _, eager, known = step(model, model, x)
    _, wide, exact = step(model.double(), model, x.double())
    judged = compare([*found, *gradients], [*eager, *known], [*wide, *exact])
    assert judged.ok, str(judged)


def test_a_copy_for_the_user_lies_as_eager_has_it() -> None:
    torch._dynamo.reset()
    model, x = nn.Conv2d(3, 4, 3).bfloat16(), torch.randn(2, 3, 6, 5).bfloat16()

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = model(x)
        return F.silu(y), y.clone()

    _, found, _ = step(torch.compile(function, backend="weft", options={"cache": False}), model, x)
    _, eager, _ = step(function, model, x)
    assert [each.stride() for each in found] == [each.stride() for each in eager]
