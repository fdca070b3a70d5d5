"""Torch's control flow becomes loops and branches of the graph dialect, and gives what eager gives."""

import pytest
import torch
from torch._higher_order_ops import map as higher_order_map
from torch._higher_order_ops import scan, while_loop

from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.ir.types import Tensor, f32
from weft.lower.machine import gpu_machine
from weft.lower.steps import IfStep, KernelStep, LoopStep, all_steps
from weft.ops.control import loop
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.pipelines import compile_nvidia
from weft.runtime.cuda.cuda_graphs import why_not_captured
from weft.runtime.record import recording
from weft.testing.interpreted import GpuInterpreter

W = torch.linspace(-1.0, 2.0, 3)


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + W, lambda x: x.cos(), (x,))


def count(x):
    return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * W), (torch.tensor(0), x))


def running(x):
    return scan(lambda c, x: (c + x, c * x * W), torch.zeros(3), x)


def backwards(x):
    return scan(lambda c, x: (c * 0.5 + x, c.sin()), torch.ones(3), x, reverse=True)


def each(x):
    return higher_order_map(lambda x, y: (x + y).sin(), x, W)


def with_calls_inside(x):
    return scan(lambda c, x: (c + torch.linalg.det(x), c * 2), torch.zeros(()), x)


CASES = [
    (branch, (3,)),
    (count, (3,)),
    (running, (5, 3)),
    (backwards, (5, 3)),
    (each, (5, 3)),
]


def compiled(function, *arguments):
    torch._dynamo.reset()
    with recording() as records, torch.no_grad():
        found = torch.compile(function, backend="weft", options={"cache": False})(*arguments)
    return found, records


@pytest.mark.parametrize(("function", "shape"), CASES)
def test_control_flow_is_weft_s_own(function, shape):
    x = torch.linspace(-1.0, 1.5, torch.Size(shape).numel()).reshape(shape)
    for given in (x, -x) if function is branch else (x,):
        found, records = compiled(function, given)
        torch.testing.assert_close(found, function(given))
        assert not [each.target for record in records for each in record.fallbacks]


def test_a_call_inside_of_a_loop_is_left_to_torch_alone():
    x = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(0))
    found, records = compiled(with_calls_inside, x)
    torch.testing.assert_close(found, with_calls_inside(x))
    assert {each.target for record in records for each in record.fallbacks} == {"aten._linalg_det.default"}


def test_branches_are_differentiated():
    x = torch.tensor([1.0, 2.0, -0.5], requires_grad=True)
    torch._dynamo.reset()
    result = torch.compile(branch, backend="weft", options={"cache": False})(x)
    (found,) = torch.autograd.grad(result.sum(), x)
    (wanted,) = torch.autograd.grad(branch(x).sum(), x)
    torch.testing.assert_close(found, wanted)


def test_loops_and_branches_of_a_gpu_s_kernels():
    """Planned as for a GPU, with kernels interpreted: the host decides on turns and branches."""
    for function, shape in ((branch, (3,)), (count, (3,)), (backwards, (5, 3))):
        torch._dynamo.reset()
        backend = GpuInterpreter(gpu_machine())
        x = torch.linspace(-1.0, 1.5, torch.Size(shape).numel()).reshape(shape)
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(function, backend=backend)(x), function(x))
        assert any(isinstance(step, LoopStep | IfStep) for made in backend.plans for step in made.plan.steps)


def test_kernels_inside_of_loops_become_device_code():
    turns = FuncOp.make("f", {"x": Tensor(f32, (5, 64)), "h": Tensor(f32, (64,))})
    b = GraphBuilder(turns.block)
    x, h = turns.block.args
    finals, stacks = loop(b, lambda b, i, s, e: ([b.tanh(b.add(s[0], e[0]))], [b.exp(s[0])]), [h], [x], trip_count=5)
    b.insert(ReturnOp.make([*finals, *stacks]))
    made = compile_nvidia(turns, Config(cache=False), target_named("sm_90a"))
    names = {step.function for step in all_steps(made.plan.steps) if isinstance(step, KernelStep)}
    assert names and names <= set(made.code.launches)
    assert "the host decides" in why_not_captured(made.plan, lambda step: None)
