"""Upstream MLIR reads and verifies what we print, from the definitions that we export as IRDL."""

from __future__ import annotations

import pytest
from xdsl.dialects.builtin import ModuleOp

from weft.config import Config
from weft.ir.irdl_export import export_dialects, shape_of, spelled_out, terminators
from weft.ir.types import Tensor
from weft.lower.plan import build_plan
from weft.ops.base import REGISTRY, OpSpec
from weft.ops.dialect import Graph
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.ops.samples import Sample
from weft.pipelines import cpu_passes, run_passes
from weft.runtime.record import CompilationRecord
from weft.tile.dialect import ForOp, GatherOp, LoadOp
from weft.tile.registry import Tile
from weft.tile.text import functions_of, parse_program

# Wheels exist for the systems that Weft supports; where there is none, upstream cannot be asked.
mlir = pytest.importorskip("torch_mlir.ir", reason="there is no torch-mlir wheel, which carries upstream MLIR, here")
irdl = pytest.importorskip("torch_mlir.dialects.irdl")

DIALECTS = (Graph, Tile)

PROGRAM = """\
"graph.func"() ({
^bb0(%x: tensor<6x64xf32>, %w: tensor<64x32xf32>, %i: tensor<5xi64>):
  %h = "graph.dot"(%x, %w) : (tensor<6x64xf32>, tensor<64x32xf32>) -> tensor<6x32xf32>
  %m = "graph.max"(%h) {dims = [1 : i64], keep = true} : (tensor<6x32xf32>) -> tensor<6x1xf32>
  %d = "graph.sub"(%h, %m) : (tensor<6x32xf32>, tensor<6x1xf32>) -> tensor<6x32xf32>
  %e = "graph.exp"(%d) : (tensor<6x32xf32>) -> tensor<6x32xf32>
  %t = "graph.take"(%e, %i) {dim = 1 : i64} : (tensor<6x32xf32>, tensor<5xi64>) -> tensor<6x5xf32>
  %c = "graph.concat"(%e, %t) {dim = 1 : i64} : (tensor<6x32xf32>, tensor<6x5xf32>) -> tensor<6x37xf32>
  %s = "graph.sum"(%c) {dims = [0 : i64, 1 : i64], keep = false} : (tensor<6x37xf32>) -> tensor<f32>
  "graph.return"(%c, %s) : (tensor<6x37xf32>, tensor<f32>) -> ()
}) {sym_name = "main", arg_names = ["x", "w", "i"]} : () -> ()
"""


def symbolic(text: str) -> str:
    """The program with a symbol for its number of rows."""
    for columns in ("64", "32", "1", "5", "37"):
        text = text.replace(f"<6x{columns}xf32>", f'<?x{columns}xf32, #graph.sizes<["s0", "{columns}"]>>')
    return text


def read(definitions: str, text: str) -> str:
    """What upstream reads, verifies and prints, in a context with these definitions."""
    with mlir.Context():
        irdl.load_dialects(mlir.Module.parse(definitions))
        for name in {part for part in text.split('"') if part.startswith(tuple(terminators(*DIALECTS)))}:
            mlir.IsTerminatorTrait.attach(name)
        module = mlir.Module.parse(text)
        assert module.operation.verify()
        return str(module)


def check(module: ModuleOp) -> None:
    module.verify()
    definitions, text = spelled_out(module, *DIALECTS)
    printed = read(definitions, text)
    assert read(definitions, printed) == printed


def grouped(text: str = PROGRAM) -> ModuleOp:
    module = parse_program(text)
    run_passes(module, cpu_passes(Config()), CompilationRecord("test"))
    return module


def tiles(text: str = PROGRAM) -> ModuleOp:
    (function,) = functions_of(grouped(text))
    return ModuleOp(list(build_plan(function).kernels.values()))


@pytest.mark.parametrize("text", [PROGRAM, symbolic(PROGRAM)], ids=["static", "symbolic"])
def test_programs_at_each_level(text: str) -> None:
    check(parse_program(text))
    check(grouped(text))
    assert "graph.group" in str(grouped(text))
    check(tiles(text))
    assert "tile.kernel" in str(tiles(text))


@pytest.mark.parametrize("spec", list(REGISTRY), ids=lambda spec: spec.name)
def test_every_op_is_as_its_definition_says(spec: OpSpec) -> None:
    if not spec.samples:
        pytest.skip("the op has no samples")
    check(ModuleOp([function_of(f"f{n}", spec, sample) for n, sample in enumerate(spec.samples[:4])]))


def function_of(name: str, spec: OpSpec, sample: Sample) -> FuncOp:
    inputs = {f"x{n}": Tensor(each.dtype or sample.dtypes[0], each.shape) for n, each in enumerate(sample.inputs)}
    function = FuncOp.make(name, inputs)
    b = GraphBuilder(function.block)
    made = b.emit(spec.name, *function.block.args, **sample.params)
    b.insert(ReturnOp.make(made if isinstance(made, tuple) else [made]))
    return function


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ('"graph.exp"(%d) : (tensor<6x32xf32>)', '"graph.exp"(%d, %i) : (tensor<6x32xf32>, tensor<5xi64>)', "operands"),
        (
            '"graph.sub"(%h, %m) : (tensor<6x32xf32>, tensor<6x1xf32>)',
            '"graph.sub"(%h) : (tensor<6x32xf32>)',
            "operands",
        ),
        ("{dims = [1 : i64], keep = true}", "{keep = true}", "dims"),
        ('sym_name = "main"', "sym_name = 3 : i64", "builtin.string"),
        ('"graph.exp"', '"graph.expo"', "graph.expo"),
    ],
)
def test_wrong_graph_programs_are_rejected(right: str, wrong: str, complaint: str) -> None:
    definitions, text = spelled_out(parse_program(PROGRAM), *DIALECTS)
    assert right in text
    read(definitions, text)
    with pytest.raises(mlir.MLIRError, match=complaint):
        read(definitions, text.replace(right, wrong))


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        ('kind = "max", axis', 'kind = "max", axes', "axis"),
        ('"tile.program"() {axis = 0 : i64} : () -> index', '"tile.program"() {axis = 0 : i64} : () -> f32', "index"),
        ("grid = #tile.sizes<", "grid = #graph.size<", "tile.sizes"),
    ],
)
def test_wrong_tile_programs_are_rejected(right: str, wrong: str, complaint: str) -> None:
    definitions, text = spelled_out(tiles(), *DIALECTS)
    assert right in text
    read(definitions, text)
    with pytest.raises(mlir.MLIRError, match=complaint):
        read(definitions, text.replace(right, wrong))


def test_the_whole_dialects_load() -> None:
    text = export_dialects(*DIALECTS)
    assert text.count("irdl.operation ") == len([*Graph.operations, *Tile.operations])
    with mlir.Context():
        irdl.load_dialects(mlir.Module.parse(text))


def test_shapes_come_from_definitions_and_references() -> None:
    assert [(part.name, part.variadicity) for part in shape_of(LoadOp).operands] == [
        ("pointer", "single"),
        ("indices", "variadic"),
    ]
    assert [part.variadicity for part in shape_of(GatherOp).operands] == ["single", "single", "optional"]
    assert shape_of(ForOp).regions == ("body",) and set(shape_of(ForOp).required) == {"bounds"}
    where = shape_of(REGISTRY["where"].cls)
    assert [part.name for part in where.operands] == ["condition", "yes", "no"] and len(where.results) == 1
    assert [part.variadicity for part in shape_of(REGISTRY["concat"].cls).operands] == ["variadic"]
    assert set(shape_of(REGISTRY["sum"].cls).required) == {"dims", "keep"}
    assert len(shape_of(REGISTRY["cummax"].cls).results) == 2
