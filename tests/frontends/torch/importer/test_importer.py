"""What captured graphs become: the text of imported functions, locations, symbols, opaque calls."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from xdsl.dialects.builtin import FileLineColLoc

from weft.errors import UnsupportedError
from weft.frontends.torch import backend
from weft.frontends.torch.importer import control_flow
from weft.frontends.torch.importer.imported_graph import ImportedGraph, Number, Passed, Returned
from weft.frontends.torch.report import record_targets
from weft.ir.attributes import from_attribute
from weft.ops.graph import OpaqueOp


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch.compiler.reset()


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[ImportedGraph]:
    """Every graph that is imported during the test."""
    graphs: list[ImportedGraph] = []
    original = backend.import_graph

    def keep(*arguments: Any) -> ImportedGraph:
        graphs.append(original(*arguments))
        return graphs[-1]

    monkeypatch.setattr(backend, "import_graph", keep)
    return graphs


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    dynamic = options.pop("dynamic", None)
    return torch.compile(
        function, backend=backend.weft_backend, dynamic=dynamic, options={"target": "reference", **options}
    )


def text(graph: ImportedGraph) -> list[str]:
    """The body of the function, a line an op, without the types of attributes."""
    graph.function.verify()
    return [line.strip() for line in str(graph.function).replace(" : i64", "").splitlines()[2:-2]]


def opaque_calls(graph: ImportedGraph) -> list[OpaqueOp]:
    return [op for op in graph.function.block.ops if isinstance(op, OpaqueOp)]


def test_numbers_take_the_type_of_the_tensor(imported: list[ImportedGraph]) -> None:
    compiled(lambda x, y: (x + y * 2).sum(-1))(torch.ones(3, 4), torch.ones(4))
    assert text(imported[0]) == [
        '%0 = "graph.full"() {value = 2.000000e+00 : f64, shape = [], dtype = f32} : () -> tensor<f32>',
        '%1 = "graph.mul"(%arg0, %0) : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>',
        '%2 = "graph.add"(%arg1, %1) : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3x4xf32>',
        '%3 = "graph.sum"(%2) {dims = [1], keep = false} : (tensor<3x4xf32>) -> tensor<3xf32>',
    ]


def test_operands_are_cast_to_the_type_torch_promotes_to(imported: list[ImportedGraph]) -> None:
    compiled(lambda x, y: x + y)(torch.ones(2, dtype=torch.int32), torch.ones(2))
    assert text(imported[0]) == [
        '%0 = "graph.cast"(%arg0) {dtype = f32} : (tensor<2xi32>) -> tensor<2xf32>',
        '%1 = "graph.add"(%0, %arg1) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>',
    ]


def test_a_half_float_is_scaled_by_a_number_that_keeps_its_digits(imported: list[ImportedGraph]) -> None:
    x = torch.randn(8).bfloat16()
    assert torch.equal(compiled(lambda x: x * 0.1)(x), x * 0.1)
    assert [op.name for op in imported[0].function.block.ops][:4] == [
        "graph.cast",
        "graph.full",
        "graph.mul",
        "graph.cast",
    ]


def test_symbolic_sizes_keep_the_names_of_the_shape_environment(imported: list[ImportedGraph]) -> None:
    function = compiled(lambda x: (x * 2).reshape(-1), dynamic=True)
    function(torch.ones(5, 6))
    (name_0, name_1) = (rule.name for rule in imported[0].calling.symbols.rules)
    assert f'#graph.sizes<["{name_0}", "{name_1}"]>' in text(imported[0])[1]
    assert f'["{"*".join(sorted((name_0, name_1)))}"]' in text(imported[0])[2]
    ranges = {key: from_attribute(value) for key, value in imported[0].function.attributes["symbols"].data.items()}
    assert ranges == {name_0: (2, None), name_1: (2, None)}


def test_integers_among_the_arguments_are_symbols_not_tensors(imported: list[ImportedGraph]) -> None:
    function = compiled(lambda x, n: x[:n] * n, dynamic=True)
    for n in (3, 4, 6):
        torch.testing.assert_close(function(torch.ones(8), n), torch.full((n,), float(n)))
    assert len(imported) == 1
    assert len(imported[0].calling.arguments) == 1


def test_floats_computed_from_sizes_become_ops(imported: list[ImportedGraph]) -> None:
    function = compiled(lambda x: x * (1.0 / (x.shape[0] + 1)) + x.shape[0] ** 0.5, dynamic=True)
    for n in (3, 5, 8):
        torch.testing.assert_close(function(torch.ones(n)), torch.ones(n) / (n + 1) + n**0.5)
    assert len(imported) == 1
    assert not imported[0].fallbacks


def test_every_op_knows_the_users_line(imported: list[ImportedGraph]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y.cos()

    compiled(function)(torch.ones(2))
    start = inspect.getsourcelines(function)[1]
    locations = [op.location for op in imported[0].function.block.ops][:2]
    assert all(isinstance(location, FileLineColLoc) for location in locations)
    assert [location.line.data for location in locations] == [start + 1, start + 2]  # type: ignore[union-attr]
    assert all(location.filename.data == __file__ for location in locations)  # type: ignore[union-attr]


def test_an_op_without_a_converter_is_an_opaque_call(imported: list[ImportedGraph]) -> None:
    x = torch.eye(3) + 0.1
    with record_targets() as record:
        torch.testing.assert_close(compiled(lambda x: torch.linalg.eigvalsh(x) * 2)(x), torch.linalg.eigvalsh(x) * 2)
    (call,) = opaque_calls(imported[0])
    assert call.target.data == "aten::_linalg_eigh"
    assert json.loads(call.arguments.data) == {
        "args": ["#0", {"str": "L"}, False],  # values alone
        "kwargs": {},
        "results": [0, 1],
    }
    assert "pure" not in call.attributes
    assert record.opaque == {"aten._linalg_eigh.default"}
    assert {"aten.mul.Tensor", "aten._linalg_eigh.default"} <= record.seen
    (fallback,) = imported[0].fallbacks
    assert fallback.line is not None
    assert fallback.line.startswith(__file__)


def test_strict_refuses_what_it_cannot_lower_and_names_the_line() -> None:
    with record_targets() as record, pytest.raises(Exception, match="_linalg_eigh") as raised:
        compiled(lambda x: torch.linalg.eigvalsh(x), strict=True)(torch.eye(3))
    assert "test_importer.py" in str(raised.value)
    assert record.opaque == {"aten._linalg_eigh.default"}


def test_fourier_transforms_are_left_to_torch_and_complex_arithmetic_is_not(imported: list[ImportedGraph]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.fft.rfft(x)
        return (y * y.conj() / (y + 1j)).abs() + y.real

    x = torch.randn(8)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert {op.target.data for op in opaque_calls(imported[0])} == {"aten::_fft_r2c"}


def test_random_calls_are_not_pure_and_keep_their_order(imported: list[ImportedGraph]) -> None:
    compiled(lambda x: torch.rand_like(x) - torch.randn_like(x))(torch.ones(3))
    calls = opaque_calls(imported[0])
    assert [call.target.data for call in calls] == ["aten::rand_like", "aten::randn_like"]
    assert [from_attribute(call.attributes["pure"]) for call in calls] == [False, False]


def test_a_check_without_results_is_carried_out(imported: list[ImportedGraph]) -> None:
    one_hot = compiled(lambda x: F.one_hot(x, 4) * 2)
    assert one_hot(torch.tensor([3, 0])).tolist() == [[0, 0, 0, 2], [2, 0, 0, 0]]
    calls = opaque_calls(imported[0])
    if not calls:
        pytest.skip(f"torch {torch.__version__} captures one_hot without its check")
    assert {call.target.data for call in calls} == {"aten::_assert_async.msg"}
    assert not any(from_attribute(call.attributes["pure"]) for call in calls)
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        one_hot(torch.tensor([3, 4]))


def test_assertions_of_an_exported_program_about_types_are_guards(imported: list[ImportedGraph]) -> None:
    class Mixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.to(torch.float32) * 3).to(torch.float64).sin()

    x = torch.randn(3, 5, dtype=torch.float64)
    program = torch.export.export(Mixed(), (x,), dynamic_shapes=({0: torch.export.Dim("n")},))
    checked = [node.target for node in program.graph.nodes]
    assert torch.ops.aten._assert_tensor_metadata.default in checked
    run = compiled(program.module())
    for given in (x, torch.randn(4, 5, dtype=torch.float64)):
        torch.testing.assert_close(run(given), Mixed()(given))
    assert not any(opaque_calls(graph) for graph in imported)
    with pytest.raises(RuntimeError, match="dtype"):
        run(x.float())


def test_control_flow_that_is_left_to_torch_keeps_its_graphs_on_the_side(
    imported: list[ImportedGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise UnsupportedError("branches")

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))

    monkeypatch.setattr(control_flow, "close_if", refuse)
    run = compiled(function)
    for x in (torch.arange(3.0), -torch.ones(3)):
        torch.testing.assert_close(run(x), function(x))
    assert not imported[0].cacheable
    assert len(imported[0].objects) == 2


def test_control_flow_of_weft_s_own_is_cacheable(imported: list[ImportedGraph]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    run = compiled(function)
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(run(x), function(x))
    assert imported[0].cacheable and not opaque_calls(imported[0])


def test_constants_of_the_graph_are_arguments_that_nobody_passes(imported: list[ImportedGraph]) -> None:
    table = [1.0, 2.0, 4.0]
    x = torch.ones(3)
    torch.testing.assert_close(compiled(lambda x: x + torch.tensor(table))(x), x + torch.tensor(table))
    assert [c.tolist() for c in imported[0].constants] == [table]
    assert len(imported[0].function.block.args) == 2
    assert from_attribute(imported[0].function.attributes["arg_names"]) == ("arg0_1", "constant0")


def test_a_constant_number_is_an_op(imported: list[ImportedGraph]) -> None:
    compiled(lambda x: x + torch.tensor(2.5))(torch.ones(3))
    assert not imported[0].constants


def test_outputs_say_where_they_come_from(imported: list[ImportedGraph]) -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        x.mul_(2)
        return x.shape[0] + 1, x + 1

    run = compiled(function, dynamic=True)
    x = torch.ones(3)
    size, y = run(x)
    assert size == 4
    torch.testing.assert_close((x, y), (torch.full((3,), 2.0), torch.full((3,), 3.0)))
    (graph,) = imported
    assert {type(output) for output in graph.calling.outputs} <= {Returned, Passed, Number}
    ((argument, result),) = graph.calling.mutated
    assert from_attribute(graph.function.attributes["mutated"]) == ((0, result),)
    assert argument in graph.calling.arguments


def test_strides_are_stated_where_they_are_not_row_major(imported: list[ImportedGraph]) -> None:
    x = torch.ones(2, 3).t()
    y = compiled(lambda x: x * 2)(x)
    assert y.stride() == (x * 2).stride() == (1, 3)
    attributes = imported[0].function.attributes
    assert from_attribute(attributes["arg_strides"]) == ((1, 3),)
    assert from_attribute(attributes["result_strides"]) == ((1, 3),)


def test_operators_with_a_decomposition_are_taken_apart_by_the_import(imported: list[ImportedGraph]) -> None:
    x, grid = torch.randn(1, 2, 4, 4), torch.rand(1, 3, 3, 2) * 2 - 1
    with record_targets() as record:
        result = compiled(lambda x, g: F.grid_sample(x, g, align_corners=False))(x, grid)
    torch.testing.assert_close(result, F.grid_sample(x, grid, align_corners=False))
    assert "aten.grid_sampler_2d.default" in record.seen
    assert not record.opaque


def test_a_graph_whose_sizes_depend_on_data_is_compiled_but_for_what_makes_them() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.nonzero() * 2

    x = torch.tensor([0.0, 1.0, 2.0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), record_targets() as record:
        torch.testing.assert_close(compiled(function)(x), function(x))
    assert record.opaque == {"aten.nonzero.default"} and record.seen >= {"aten.nonzero.default", "aten.mul.Tensor"}
    with (
        torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
        pytest.raises(Exception, match=UnsupportedError.__name__),
    ):
        torch.compiler.reset()
        compiled(function, strict=True)(x)
