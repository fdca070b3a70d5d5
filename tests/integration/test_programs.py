"""Programs that are more than tensor expressions: graph breaks, control flow, custom operators, bad indices, errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from weft.backends.cpu.object_compiler import ObjectCompiler
from weft.errors import CompilationError, UnsupportedError
from weft.runtime.record import CompilationRecord

T = torch.Tensor
Check = Callable[..., Any]


def test_a_print_in_the_middle_breaks_the_graph(
    check: Check, records: list[CompilationRecord], capsys: pytest.CaptureFixture[str]
) -> None:
    def function(x: T) -> T:
        y = x.sin() + 1
        print("between", y.shape[0])
        return y.sum() * x

    check(function, torch.randn(4))
    assert capsys.readouterr().out == "between 4\n" * 2
    assert len(records) == 2


def test_branches_on_values(check: Check) -> None:
    def function(x: T) -> T:
        if x.sum() > 0:
            return x.exp()
        return x.abs().sqrt()

    check(function, torch.ones(3))
    check(function, -torch.ones(3))


def test_fullgraph_refuses_breaks() -> None:
    with pytest.raises(Exception, match=r"(?i)graph break|data-dependent|unsupported"):
        torch.compile(lambda x: x.exp() if x.sum() > 0 else x, backend="weft", fullgraph=True)(torch.ones(3))


def test_sizes_that_depend_on_data(check: Check) -> None:
    def function(x: T) -> tuple[T, T]:
        return x[x > 0] * 2, torch.nonzero(x).sum() + x.unique().shape[0]

    check(function, torch.randn(20))


def test_conditions_and_loops_in_the_graph() -> None:
    def function(x: T) -> T:
        y = torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,))
        return y + 1

    run = torch.compile(function, backend="weft", fullgraph=True)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(run(x), function(x))

    def loop(x: T) -> tuple[T, T]:
        def body(i: T, x: T) -> tuple[T, T]:
            return i + 1, x * 1.5 + 1

        return torch._higher_order_ops.while_loop(lambda i, x: i < 5, body, (torch.tensor(0), x))

    run = torch.compile(loop, backend="weft", fullgraph=True)
    x = torch.randn(3)
    i, y = run(x)
    expected = x
    for _ in range(5):
        expected = expected * 1.5 + 1
    assert i.item() == 5
    torch.testing.assert_close(y, expected)


@torch.library.custom_op("weft_test::interpolate", mutates_args=())
def interpolate(x: T, y: T, weight: float) -> T:
    return torch.lerp(x, y, weight)


@interpolate.register_fake
def _(x: T, y: T, weight: float) -> T:
    return torch.empty_like(x)


interpolate.register_autograd(
    lambda ctx, grad: (grad * (1 - ctx.weight), grad * ctx.weight, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "weight", inputs[2]),
)


@torch.library.custom_op("weft_test::shift", mutates_args=("x",))
def shift(x: T, by: float) -> None:
    x += by


def test_custom_operators_run_inside_the_graph(records: list[CompilationRecord]) -> None:
    def function(x: T, y: T) -> T:
        return torch.tanh(interpolate(x * 2, y + 1, 0.25)) * 3

    x, y = torch.randn(2, 4, 5, requires_grad=True).unbind()
    run = torch.compile(function, backend="weft", fullgraph=True)
    torch.testing.assert_close(run(x, y), function(x, y))
    leaves = [t.detach().clone().requires_grad_() for t in (x, y)]
    actual = torch.autograd.grad(run(*leaves).sum(), leaves)
    torch.testing.assert_close(actual, torch.autograd.grad(function(*leaves).sum(), leaves))
    assert any("weft_test" in fallback.target for record in records for fallback in record.fallbacks)


def test_custom_operators_that_mutate(check: Check) -> None:
    def function(x: T) -> tuple[T, T]:
        y = x * 2
        shift(y, 1.5)
        shift(x, 0.5)
        return y, x * 3

    check(function, torch.randn(6))


def test_an_index_out_of_range_does_no_harm(python: Callable[..., str]) -> None:
    program = """
import torch, torch.nn.functional as F
table = torch.randn(10, 4)
cases = {
    "embedding": lambda i: F.embedding(i, table),
    "index": lambda i: table[i] * 2,
    "gather": lambda i: table.gather(0, i[:, None]),
    "index_select": lambda i: table.index_select(0, i),
    "scatter": lambda i: torch.zeros(10, 4).scatter(0, i[:, None], 1.0),
    "index_add": lambda i: torch.zeros(10, 4).index_add(0, i, torch.ones(3, 4)),
    "index_put": lambda i: torch.zeros(10).index_put((i,), torch.ones(3)),
    "one_hot": lambda i: F.one_hot(i.clamp(0), 10),
    "cross_entropy": lambda i: F.cross_entropy(table[:3], i),
}
for name, function in cases.items():
    for bad in ([0, 10, 1], [0, -11, 1], [0, 2**40, 1], [-(2**62), 2**62, 2**63 - 1]):
        try:
            torch.compile(function, backend="weft")(torch.tensor(bad))
        except (RuntimeError, IndexError) as error:
            pass
print("alive", flush=True)
"""
    assert python(program).splitlines()[-1] == "alive"


def test_integer_division_by_zero_does_no_harm(python: Callable[..., str]) -> None:
    program = """
import torch
for dtype in (torch.int8, torch.int32, torch.int64, torch.uint8):
    x, zero = torch.arange(1, 20).to(dtype), torch.zeros(19, dtype=dtype)
    low = torch.full((19,), torch.iinfo(dtype).min, dtype=dtype)
    for function in (lambda x, y: x // y, lambda x, y: x % y, lambda x, y: torch.div(x, y, rounding_mode="trunc"),
                     lambda x, y: torch.fmod(x, y), lambda x, y: torch.remainder(x, y)):
        for a, b in ((x, zero), (low, zero - 1)):
            try:
                torch.compile(function, backend="weft")(a, b)
            except RuntimeError as error:
                assert "ZeroDivision" in str(error) or "zero" in str(error).lower(), error
print("alive", flush=True)
"""
    assert python(program).splitlines()[-1] == "alive"


def test_division_by_zero_of_floats(check: Check) -> None:
    x = torch.tensor([1.0, -1.0, 0.0, float("inf")])
    check(lambda x, y: (x / y, x // y, x % y, torch.fmod(x, y)), x, torch.zeros(4))


def shapes_that_do_not_fit(x: T) -> T:
    y = x * 2
    return y @ y  # a marked line


def test_an_error_in_shapes_names_the_users_line() -> None:
    with pytest.raises(Exception) as caught:
        torch.compile(shapes_that_do_not_fit, backend="weft")(torch.randn(3, 4))
    line = shapes_that_do_not_fit.__code__.co_firstlineno + 2
    assert f'{__file__}", line {line}' in str(caught.value)


def sorted_by_columns(x: T) -> T:
    y = x + 1
    return torch.linalg.det(y)  # no lowering


def test_strict_names_the_line_of_what_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    line = sorted_by_columns.__code__.co_firstlineno + 2
    monkeypatch.setenv("WEFT_STRICT", "1")
    with pytest.raises(Exception) as caught:
        torch.compile(sorted_by_columns, backend="weft")(torch.randn(3, 3))
    cause = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(cause, UnsupportedError)
    assert f"{__file__}:{line}" in str(cause)
    monkeypatch.delenv("WEFT_STRICT")
    torch.compiler.reset()
    x = torch.randn(3, 3)
    torch.testing.assert_close(torch.compile(sorted_by_columns, backend="weft")(x), sorted_by_columns(x))


@pytest.mark.parametrize("failure", [CompilationError("LLVM refused a kernel"), ZeroDivisionError("inside a pass")])
def test_a_failing_compiler_falls_back_with_a_warning(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise failure

    monkeypatch.setattr(ObjectCompiler, "code", fail)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(2, 4)
    with caplog.at_level(logging.WARNING, "weft"):
        run = torch.compile(model, backend="weft")
        torch.testing.assert_close(run(x), model(x))
        run(x).sum().backward()
    warnings = [record.getMessage() for record in caplog.records if record.name == "weft.fallback"]
    assert any(str(failure) in message and "weft reduce" in message for message in warnings)
    torch.compiler.reset()
    with pytest.raises(Exception, match=str(failure)):
        torch.compile(model, backend="weft", options={"strict": True})(x)


def test_an_error_while_a_call_runs_leaves_the_function_usable() -> None:
    @torch.library.custom_op("weft_test::moody", mutates_args=())
    def moody(x: T) -> T:
        if x[0] > 0:
            raise ValueError("not today")
        return x.clone()

    moody.register_fake(torch.empty_like)
    run = torch.compile(lambda x: moody(x * 2) + 1, backend="weft")
    for _ in range(3):
        with pytest.raises(ValueError, match="not today"):
            run(torch.ones(3))
        torch.testing.assert_close(run(-torch.ones(3)), -torch.ones(3))


def test_a_model_of_many_parts_stays_right_under_recompilation(check: Check) -> None:
    """Flags, containers and sizes change from call to call."""

    def function(x: T, n: int, flag: bool, parts: list[T]) -> T:
        for part in parts:
            x = x + part * n
        return F.relu(x) if flag else -x

    run = torch.compile(function, backend="weft")
    for n, flag, count in [(1, True, 1), (2, False, 2), (3, True, 3), (1, True, 1), (5, False, 0)]:
        check.agree(function, run, torch.randn(4), n, flag, [torch.randn(4) for _ in range(count)])  # type: ignore[attr-defined]
