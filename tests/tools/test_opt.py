"""`weft opt` runs passes over text and prints programs at every level."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from weft.backends.nvidia.target import target_named
from weft.config import CODES, Config
from weft.errors import ParseError
from weft.ops.dialect import parse_module
from weft.passes.registry import PASSES
from weft.pipelines import cpu_passes, nvidia_passes

from .conftest import MATMUL, SOFTMAX, last_json


def test_without_passes_the_program_is_printed_as_it_was_read(weft, softmax: str) -> None:
    once = weft("opt", softmax)
    assert once.exit_code == 0
    assert weft("opt", "-", stdin=once.stdout).stdout == once.stdout


def test_passes_run_in_order(weft, softmax: str) -> None:
    assert "graph.tanh" not in weft("opt", softmax, "-p", "eliminate_dead").stdout
    assert "graph.group" in weft("opt", softmax, "-p", "cpu", "--verify").stdout


def test_stop_after(weft, softmax: str) -> None:
    result = weft("opt", softmax, "-p", "cpu", "--stop-after", "eliminate_dead")
    assert "graph.group" not in result.stdout and "graph.tanh" not in result.stdout
    wrong = weft("opt", softmax, "-p", "simplify", "--stop-after", "eliminate_dead")
    assert wrong.exit_code == 2 and "eliminate_dead is not among the passes" in wrong.stderr


def test_every_pass_of_the_target_has_a_name() -> None:
    passes = cpu_passes(Config())
    passes += nvidia_passes(Config()) + nvidia_passes(
        Config(quantize=CODES[0], freeze=True), target_named("sm_90a").capabilities
    )
    assert all(PASSES[each.name] is type(each) for each in passes)


def test_time_goes_to_stderr_and_json(weft, softmax: str) -> None:
    result = weft("opt", softmax, "-p", "simplify,eliminate_dead", "--time")
    assert "simplify" in result.stderr and "simplify" not in result.stdout
    figures = last_json(weft("opt", softmax, "-p", "simplify,eliminate_dead", "--json"))
    assert list(figures["seconds"]) == ["simplify", "eliminate_dead"]
    assert "graph.func" in figures["text"]


def test_programs_after_each_pass_go_to_stderr(weft, softmax: str) -> None:
    result = weft("opt", softmax, "-p", "simplify,group_into_kernels", "--print-after-all")
    assert "// after group_into_kernels" in result.stderr and "graph.group" in result.stderr.split("// after")[-1]
    assert "// after" not in result.stdout
    twice = weft("opt", softmax, "-p", "eliminate_dead,eliminate_dead", "--print-after-all")
    assert twice.stderr.count("// after") == 1, "what a pass did not change is not printed again"


def test_tile_text_is_read_back_down_to_assembly(weft, softmax: str) -> None:
    tiles = weft("opt", softmax, "--level", "tile", "--verify")
    assert tiles.exit_code == 0 and "tile.kernel" in tiles.stdout and "graph." not in tiles.stdout
    assert weft("opt", "-", stdin=tiles.stdout).stdout == tiles.stdout
    code = weft("opt", "-", "--level", "asm", "--cpu", "skylake-avx512", stdin=tiles.stdout)
    assert "%zmm" in code.stdout


@pytest.mark.parametrize(("cpu", "register"), [("skylake-avx512", "%zmm"), ("haswell", "%ymm"), ("neoverse-n1", ".4s")])
def test_assembly_for_other_processors(weft, softmax: str, cpu: str, register: str) -> None:
    result = weft("opt", softmax, "--level", "asm", "--cpu", cpu)
    assert result.exit_code == 0 and register in result.stdout


def test_llvm(weft, softmax: str) -> None:
    text = weft("opt", softmax, "--level", "llvm").stdout
    assert text.startswith("target triple") and "define void @" in text


FROZEN = """
"graph.func"() ({
^bb0(%x: tensor<8x32xf32>, %w: tensor<32x32xf32>):
  %two = "graph.full"() {value = 2.0, shape = [], dtype = f32} : () -> tensor<f32>
  %t = "graph.permute"(%w) {dims = [1, 0]} : (tensor<32x32xf32>) -> tensor<32x32xf32>
  %s = "graph.mul"(%t, %two) : (tensor<32x32xf32>, tensor<f32>) -> tensor<32x32xf32>
  %e = "graph.exp"(%s) : (tensor<32x32xf32>) -> tensor<32x32xf32>
  %y = "graph.dot"(%x, %e) : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
  %z = "graph.tanh"(%y) : (tensor<8x32xf32>) -> tensor<8x32xf32>
  "graph.return"(%z) : (tensor<8x32xf32>) -> ()
}) {sym_name = "frozen", constants = [1]} : () -> ()
"""


@pytest.mark.parametrize(
    ("target", "level", "word"),
    [("cpu", "tile", "tile.kernel"), ("cpu", "llvm", "define"), ("nvidia", "nvidia", "tile.kernel")],
)
def test_constants_are_prepared_by_no_kernel_of_the_program(weft, target: str, level: str, word: str) -> None:
    assert "prepares" in weft("opt", "-", "-p", target, stdin=FROZEN).stdout
    result = weft("opt", "-", "-p", target, "--level", level, stdin=FROZEN)
    assert result.exit_code == 0 and word in result.stdout and "graph." not in result.stdout


def test_locations_name_the_file(weft, softmax: str) -> None:
    assert f'loc("{softmax}":5:3)' in weft("opt", softmax, "-p", "cpu", "--locations").stdout


def test_an_unknown_op_is_named_with_its_line(weft, softmax: str) -> None:
    Path(softmax).write_text(SOFTMAX.replace("graph.exp", "graph.expo"))
    result = weft("opt", softmax)
    assert result.exit_code == 1 and f"{softmax}:5:" in result.stderr
    assert "graph.expo" in result.stderr and "Traceback" not in result.stderr
    assert last_json(weft("opt", softmax, "--json"))["error"] == "ParseError"


def test_an_invalid_program_is_named_with_its_line(weft, softmax: str) -> None:
    Path(softmax).write_text(SOFTMAX.replace("keep = true", "keep = false", 1))
    result = weft("opt", softmax)
    assert result.exit_code == 1 and f"{softmax}:3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-p", "simplfy"], "no pass is called simplfy"),
        (["-p", "simplify{"], "not a list of passes"),
        (["-p", "claim_libraries{enabled=3}"], "claim_libraries"),
        (["--level", "spirv"], "no level is called spirv"),
        (["--target", "abacus"], "no target is called abacus"),
        (["--level", "nvidia", "--stop-after", "pipeline_dots"], "pipeline_dots is in no alternative that is taken"),
        (["--level", "nvidia", "-p", "fold_sums", "--stop-after", "fold_views"], "fold_views is not among the passes"),
        (["--level", "nvidia", "--stop-after", "pipline_dots"], "assign_layouts"),
        (["--level", "ptx", "--stop-after", "assign_layouts"], "PTX is made of kernels after all passes"),
        (["--level", "tile", "--stop-after", "assign_layouts"], "is a pass over kernels for a GPU"),
        (["--level", "tile", "--target", "sm_90a", "-p", "nvidia,assign_layouts"], "is a pass over kernels for a GPU"),
        (["--level", "asm", "--cpu", "i8080"], "no triple is known"),
        (["--level", "asm", "--cpu", "skylake-nonsense"], "LLVM knows no processor called"),
        (["--level", "asm", "--cpu", "mi300", "--triple", "amdgcn-amd-amdhsa"], "not a target of the CPU backend"),
    ],
)
def test_mistakes_are_explained(weft, softmax: str, arguments: list[str], complaint: str) -> None:
    result = weft("opt", softmax, *arguments)
    assert result.exit_code == 2 and complaint in result.stderr and "Traceback" not in result.stderr


SINE = """"graph.func"() ({
^bb0(%x: tensor<TYPE>):
  %0 = "graph.neg"(%x) : (tensor<TYPE>) -> tensor<TYPE>
  "graph.return"(%0) : (tensor<TYPE>) -> ()
}) {sym_name = "f", arg_names = ["x"]} : () -> ()
"""


@pytest.mark.parametrize(
    ("kind", "passes", "said"),
    [
        ("3xf32", "vmap{size=-3}", "a batch of -3"),
        ("3xi64", "vjp", "the gradient of a function that returns 3xi64"),
        ("3xi64", "jvp", "the tangent of a function that returns 3xi64"),
        ("?xf32", "vjp", "a size of ? has no name"),
        ("3xf32", "quantize{bits=99}", "integers of 99 bits"),
        ("3xf32", "vmap{size=3 siz=4}", "vmap has no option siz (did you mean size?)"),
        ("3xf32", "vmap{siz=4}", "vmap has no option siz (did you mean size?)"),
        ("3xf32", "vmap", "vmap needs the option size"),
        ("3xf32", "simplify{x=1}", "simplify has no option x"),
    ],
)
def test_mistakes_in_transformations_are_explained(weft, tmp_path, kind: str, passes: str, said: str) -> None:
    program = tmp_path / "sine.mlir"
    program.write_text(SINE.replace("TYPE", kind))
    result = weft("opt", str(program), "-p", passes)
    assert result.exit_code in (1, 2) and said in result.stderr and "Traceback" not in result.stderr
    if "option" not in said and "bits" not in said:
        assert f"{program}:" in result.stderr


def test_a_missing_file(weft) -> None:
    result = weft("opt", "/nowhere/at/all.mlir")
    assert result.exit_code == 2 and "cannot read /nowhere/at/all.mlir: No such file" in result.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (SOFTMAX.replace("keep", "kepe", 1), "graph.max has no attribute 'keep'; it has dims, kepe"),
        (SOFTMAX.replace("graph.exp", "graph.expp"), "did you mean graph.exp"),
        (SOFTMAX.replace("[1 :", "[7 :", 1), "valid: graph.max: (7,)"),
        ("", "it is empty"),
        (SOFTMAX[:200], "it ends before it is complete"),
        ("\n".join(SOFTMAX.splitlines()[:5]), "it ends before it is complete"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(weft, text: str, complaint: str) -> None:
    result = weft("opt", "-", stdin=text)
    assert result.exit_code == 1 and complaint in result.stderr and "<stdin>:" in result.stderr


def test_a_string_without_an_end_is_found_in_a_time_that_grows_with_its_length() -> None:
    start = time.process_time()
    with pytest.raises(ParseError, match="closing string literal"):
        parse_module('"' + "a" * 26)
    assert time.process_time() - start < 1


def test_pass_options(weft) -> None:
    dot = """"graph.func"() ({
    ^bb0(%a: tensor<4x5xf32>, %b: tensor<5x6xf32>):
      %c = "graph.dot"(%a, %b) : (tensor<4x5xf32>, tensor<5x6xf32>) -> tensor<4x6xf32>
      "graph.return"(%c) : (tensor<4x6xf32>) -> ()
    }) {sym_name = "product"} : () -> ()"""
    assert "blas" in weft("opt", "-", "-p", "claim_libraries", stdin=dot).stdout
    assert "blas" not in weft("opt", "-", "-p", "claim_libraries{enabled=false}", stdin=dot).stdout


def test_irdl(weft) -> None:
    text = weft("irdl").stdout
    assert "irdl.dialect @graph" in text and "irdl.dialect @tile" in text
    assert last_json(weft("irdl", "--json"))["terminators"] == [
        "graph.return",
        "graph.yield",
        "tile.return",
        "tile.yield",
    ]


def test_kernels_for_a_gpu_are_read_back_down_to_ptx(weft, softmax: str) -> None:
    kernels = weft("opt", softmax, "--level", "nvidia", "--verify")
    assert kernels.exit_code == 0 and "nvidia.launch" in kernels.stdout and "graph." not in kernels.stdout
    assert weft("opt", "-", "--level", "nvidia", stdin=kernels.stdout).stdout == kernels.stdout
    assert weft("opt", "-", stdin=kernels.stdout).stdout == kernels.stdout
    code = weft("opt", softmax, "--level", "ptx")
    assert ".target sm_90a" in code.stdout and ".entry" in code.stdout
    assert weft("opt", "-", "--level", "ptx", stdin=kernels.stdout).stdout == code.stdout
    assert ".target sm_80" in weft("opt", softmax, "--level", "ptx", "--target", "sm_80").stdout


def test_kernel_passes_by_name(weft, softmax: str) -> None:
    tiles = weft("opt", softmax, "--level", "tile", "--target", "sm_90a").stdout
    assert weft("opt", "-", "--level", "nvidia", "-p", "fold_sums", stdin=tiles).stdout == tiles
    laid_out = weft("opt", "-", "--level", "nvidia", "-p", "fold_views,assign_layouts{converts=false}", stdin=tiles)
    assert "#nvidia.layout<" in laid_out.stdout and "nvidia.launch" not in laid_out.stdout
    refused = weft("opt", "-", "--level", "nvidia", "-p", "pipeline_dots", stdin=tiles)
    assert refused.exit_code == 0 and refused.stdout == tiles and "pipeline_dots leaves" in refused.stderr
    whole = weft("opt", softmax, "--level", "nvidia", "-p", "nvidia,nvidia_kernel").stdout
    assert whole == weft("opt", softmax, "--level", "nvidia").stdout
    chosen = weft("opt", "-", "--level", "nvidia", "-p", "choose_copies", stdin=tiles).stdout
    assert "nvidia.launch" in chosen
    stopped = weft("opt", "-", "--level", "nvidia", "--stop-after", "mark_unaligned", stdin=tiles)
    assert stopped.exit_code == 0 and "nvidia.launch" not in stopped.stdout


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        ("fold_vews", "no pass is called fold_vews (did you mean fold_views?)"),
        ("fold_views,simplify", "simplify is a pass over graphs"),
        ("fold_views{fast=true}", "fold_views has no option fast"),
        ("fold_views,fold_", "no pass is called fold_"),
    ],
)
def test_mistakes_in_kernel_passes(weft, softmax: str, passes: str, said: str) -> None:
    result = weft("opt", softmax, "--level", "nvidia", "-p", passes)
    assert result.exit_code == 2 and said in " ".join(result.stderr.split())


def _passes_printed(stderr: str) -> list[str]:
    return re.findall("^// after (\\w+)", stderr, re.MULTILINE)


def test_kernels_after_each_pass_go_to_stderr_those_of_choices_too(weft) -> None:
    result = weft("opt", "-", "--level", "nvidia", "--print-after-all", stdin=MATMUL)
    printed = _passes_printed(result.stderr)
    assert printed.index("group_into_kernels") < printed.index("stage_stores") < printed.index("pipeline_dots")
    assert printed[-1] == "assign_layouts" and len(set(printed)) == len(printed), "of the alternative that is taken"
    assert "choose_copies: TMA brings operands of wgmma, choose_room: the next" in result.stderr
    named = weft("opt", "-", "--level", "nvidia", "-p", "nvidia,choose_copies", "--print-after-all", stdin=MATMUL)
    assert _passes_printed(named.stderr) == printed
    apart = "nvidia,fold_views,pipeline_dots"
    assert _passes_printed(
        weft("opt", "-", "--level", "nvidia", "-p", apart, "--print-after-all", stdin=MATMUL).stderr
    ) == [
        "group_into_kernels",
        "pipeline_dots",
    ]


def test_stop_after_a_pass_of_an_alternative(weft) -> None:
    printed = weft("opt", "-", "--level", "nvidia", "--print-after-all", stdin=MATMUL).stderr.split("// after ")
    after = {text.split()[0]: text.partition("\n")[2] for text in printed[1:]}
    for name in ("pipeline_dots", "assign_layouts"):
        stopped = weft("opt", "-", "--level", "nvidia", "--stop-after", name, stdin=MATMUL)
        assert stopped.exit_code == 0 and after[name].strip() in stopped.stdout.replace("\n  ", "\n"), name
    assert "nvidia.wgmma" in after["pipeline_dots"] and "nvidia.layout" not in after["pipeline_dots"]
    assert "nvidia.layout" in after["assign_layouts"]


def test_programs_on_stderr_keep_their_lines(weft, softmax: str) -> None:
    result = weft("opt", softmax, "-p", "nvidia", "--print-after-all")
    last = result.stderr.split("// after ")[-1].partition("\n")[2]
    assert last.strip() == result.stdout.strip() and max(map(len, last.splitlines())) > 80
