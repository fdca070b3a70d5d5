"""Line tables: instructions say where they come from, and are the same without."""

from __future__ import annotations

import llvmlite.binding as llvm
import pytest
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr

from weft.backends.cpu import object_compiler
from weft.backends.cpu.target import CpuTarget, compile_assembly, host_target
from weft.backends.llvm.stated_lines import stated_lines, with_source, without_lines
from weft.backends.nvidia.driver.assembler import assemble, tool
from weft.backends.nvidia.target import target_named
from weft.config import Config
from weft.ir.types import Tensor, bf16, f32
from weft.ops.graph import FuncOp, GraphBuilder, ReturnOp
from weft.pipelines import compile_cpu, compile_nvidia
from weft.runtime.record import recording

HOPPER = target_named("sm_90a")


def program(dtype: object = f32, file: str = "model.py") -> FuncOp:
    """A product, a softmax of it and a column sum, each on a line of its own."""
    made = FuncOp.make("f", {"x": Tensor(dtype, (64, 128)), "w": Tensor(dtype, (128, 256))})  # type: ignore[arg-type]
    b = GraphBuilder(made.block)

    def at(line: int) -> None:
        b.location = FileLineColLoc(StringAttr(file), IntAttr(line), IntAttr(4))

    x, w = made.block.args
    at(11)
    h = b.dot(x, w)
    at(12)
    e = b.exp(b.sub(h, b.max(h, dims=(1,), keep=True)))
    at(13)
    y = b.div(e, b.sum(e, dims=(1,), keep=True))
    at(14)
    z = b.sum(b.log1p(y), dims=(0,), keep=False)
    b.insert(ReturnOp.make([y, z]))
    return made


def cpu_code(lines: bool) -> tuple[bytes, str]:
    with recording(programs=True) as records:
        code = compile_cpu(program(), Config(cache=False, strict=True, debug_lines=lines)).code
    return code, records[0].programs["llvm"]


def device_code(lines: bool) -> str:
    return compile_nvidia(program(bf16), Config(cache=False, strict=True, debug_lines=lines), HOPPER).code.ptx


def sections(code: bytes) -> dict[bytes, bytes]:
    """What a program needs of an object file to run."""
    found = llvm.ObjectFileRef.from_data(code).sections()
    return {each.name(): each.data() for each in found if each.is_text() or (each.name() or b"").startswith(b".rodata")}


def words(found: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The instructions of a processor on which they all have four bytes, in any order."""
    return {name: b"".join(sorted(data[at : at + 4] for at in range(0, len(data), 4))) for name, data in found.items()}


def shares(text: str) -> float:
    lines = [each.line > 0 for each in stated_lines(text) if each.is_instruction]
    assert len(lines) > 100
    return sum(lines) / len(lines)


def test_machine_code_is_the_same_with_and_without_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_compiler, "_PART", 1 << 30)  # lines are stated in one module only
    (plain, _), (lined, _) = cpu_code(False), cpu_code(True)
    mine, theirs = sections(plain), sections(lined)
    if host_target().triple.startswith("aarch64"):
        # Frames are described beside lines, and what saves registers is not moved across their description.
        mine, theirs = words(mine), words(theirs)
    assert mine == theirs
    assert len(lined) > len(plain)


def test_ptx_is_the_same_with_and_without_lines() -> None:
    plain, lined = device_code(False), device_code(True)
    assert ".loc" not in plain
    assert without_lines(plain) == without_lines(lined)


@pytest.mark.skipif(tool("ptxas") is None, reason="there is no ptxas")
def test_ptxas_takes_the_lines_and_does_not_compile_for_a_debugger() -> None:
    plain, lined = (assemble(device_code(lines), HOPPER.arch) for lines in (False, True))
    assert lined.cubin is not None
    assert plain.kernels == lined.kernels
    assert plain.advice == lined.advice


def test_nearly_all_instructions_have_a_line() -> None:
    assembly = compile_assembly(cpu_code(True)[1], host_target())
    assert shares(assembly) >= 0.95
    assert shares(device_code(True)) >= 0.99
    for text in (assembly, device_code(True)):
        lines = {each.line for each in stated_lines(text) if each.is_instruction and each.line}
        assert lines == {11, 12, 13, 14}


def test_instructions_are_those_of_a_function_called_like_the_graph_op() -> None:
    text = cpu_code(True)[1]
    for name in ("dot", "exp", "sum", "div", "log1p"):
        assert f'!DISubprogram(name: "graph.{name}"' in text


def test_files_of_several_kernels_are_told_apart() -> None:
    one, other = program(bf16, "one.py"), program(bf16, "other.py")
    calls = [
        compile_nvidia(each, Config(cache=False, strict=True, debug_lines=True), HOPPER).code for each in (one, other)
    ]
    modules = {f"{number}.{name}": text for number, code in enumerate(calls) for name, text in code.modules.items()}
    joined = type(calls[0])(HOPPER.arch, modules, {})
    files = {each.file for each in stated_lines(joined.ptx) if each.is_instruction}
    assert files == {"one.py", "other.py"}
    assert joined.ptx.count(".file") == 2


def test_other_processors_have_lines_too() -> None:
    target = CpuTarget("aarch64-unknown-linux-gnu", "neoverse-n1", "")
    with recording(programs=True) as records:
        compile_cpu(program(), Config(cache=False, strict=True, debug_lines=True), target)
    assert shares(compile_assembly(records[0].programs["llvm"], target)) >= 0.95


def test_code_is_shown_below_the_lines_that_it_comes_of(tmp_path: object) -> None:
    source = f"{tmp_path}/model.py"
    with open(source, "w") as file:
        file.writelines(f"statement {number}\n" for number in range(1, 20))
    code = compile_nvidia(program(bf16, source), Config(cache=False, strict=True, debug_lines=True), HOPPER).code
    shown = with_source(code.ptx)
    assert "// model.py:12  statement 12\n" in shown
    assert ".loc" not in shown
    assert with_source(without_lines(code.ptx)) == without_lines(code.ptx)
