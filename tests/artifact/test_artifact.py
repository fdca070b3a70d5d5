"""Artifacts give what their graph gives, bit for bit, on whatever processor they are loaded."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.artifact import processors
from weft.artifact.opened import open_artifact
from weft.artifact.processors import BASELINES
from weft.artifact.recompile import recompiled
from weft.artifact.whole_files import whole_file
from weft.artifact.write import Request, Source, write_artifact
from weft.config import Config
from weft.errors import ArtifactError, DTypeError, GuardError, ShapeError
from weft.frontends.text import compile_text
from weft.testing.hostile_artifacts import LAYER, layer_inputs, layer_source

STATE = """
"graph.func"() ({
^bb0(%state: tensor<4x16xf32>, %x: tensor<4x16xf32>):
  %0 = "graph.add"(%state, %x) : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  %1 = "graph.mul"(%0, %x) : (tensor<4x16xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
  "graph.return"(%0, %1, %x) : (tensor<4x16xf32>, tensor<4x16xf32>, tensor<4x16xf32>) -> ()
}) {sym_name = "step", arg_names = ["state", "x"], replaced = [[0 : i64, 0 : i64]]} : () -> ()
"""
X, XT = 'tensor<?x?xf32, #graph.sizes<["s0", "s1"]>>', 'tensor<?x?xf32, #graph.sizes<["s1", "s0"]>>'
LINE, SQUARE = 'tensor<?x1xf32, #graph.sizes<["s0", "1"]>>', 'tensor<?x?xf32, #graph.sizes<["s0", "s0"]>>'
ROW = 'tensor<?xf32, #graph.sizes<["s0"]>>'
CHAIN = f"""
"graph.func"() ({{
^bb0(%x: {X}):
  %0 = "graph.sum"(%x) {{dims = [1], keep = true}} : ({X}) -> {LINE}
  %1 = "graph.div"(%x, %0) : ({X}, {LINE}) -> {X}
  %2 = "graph.permute"(%1) {{dims = [1, 0]}} : ({X}) -> {XT}
  %3 = "graph.dot"(%1, %2) : ({X}, {XT}) -> {SQUARE}
  %4 = "graph.exp"(%3) : ({SQUARE}) -> {SQUARE}
  %5 = "graph.sum"(%4) {{dims = [0], keep = false}} : ({SQUARE}) -> {ROW}
  "graph.return"(%5, %3) : ({ROW}, {SQUARE}) -> ()
}}) {{sym_name = "chain", arg_names = ["x"]}} : () -> ()
"""


@pytest.mark.parametrize("rows", [1, 5, 64, 1000, 0])
@pytest.mark.parametrize("threads", [1, 2])
def test_machine_code_gives_what_the_graph_gives(layer: Path, rows: int, threads: int) -> None:
    model = weft.load(layer, threads=threads)
    assert model.how == "machine code for host"
    (found,) = model(layer_inputs(rows))
    (wanted,) = compile_text(LAYER, constants=layer_source().weights, config=Config(strict=True))(layer_inputs(rows))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("sizes", [(1, 1), (7, 33), (64, 129), (3, 0)])
def test_temporaries_of_symbolic_sizes_do_not_overlap(tmp_path: Path, sizes: tuple[int, int]) -> None:
    path = tmp_path / "chain.weft"
    write_artifact(path, Source(CHAIN))
    x = np.random.default_rng(0).random(sizes, np.float32)
    found = weft.load(path)(x)
    for one, other in zip(found, compile_text(CHAIN, config=Config(strict=True))(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_replaced_argument_is_written_over_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "step.weft"
    write_artifact(path, Source(STATE))
    model = weft.load(path)
    state, x = np.ones((4, 16), np.float32), np.full((4, 16), 2, np.float32)
    new, product, same = model(state, x)
    assert new is state
    assert (state == 3).all() and (product == 6).all() and (same == x).all() and same is not x
    frozen = np.ones((4, 16), np.float32)
    frozen.flags.writeable = False
    assert (model(frozen, x)[0] == 3).all() and (frozen == 1).all()
    shared = np.full((4, 16), 2, np.float32)
    assert (model(shared, shared)[1] == 8).all() and (shared == 2).all()


def test_arrays_of_other_strides_are_copied(layer: Path) -> None:
    model = weft.load(layer)
    x = layer_inputs(6)
    np.testing.assert_array_equal(model(np.asfortranarray(x))[0], model(x)[0])
    np.testing.assert_array_equal(model(np.repeat(x, 2, axis=0)[::2])[0], model(x)[0])


def test_wrong_arguments_are_told_with_the_signature(layer: Path) -> None:
    model = weft.load(layer)
    with pytest.raises(GuardError, match=r"x f32\[s0, 8\]"):
        model()
    with pytest.raises(GuardError, match="got 0 by position and y by name"):
        model(y=layer_inputs())
    with pytest.raises(DTypeError, match="of type f32, got f64"):
        model(layer_inputs().astype(np.float64))
    with pytest.raises(ShapeError, match=r"\(s0, 8\), got \(5, 7\)"):
        model(x=layer_inputs()[:, :7])
    with pytest.raises(ShapeError):
        model(layer_inputs()[0])
    with pytest.raises(DTypeError, match=r"a list that NumPy cannot read.*\n.*x f32\[s0, 8\]"):
        model([[1.0, 2.0], [3.0]])
    with pytest.raises(DTypeError, match=r"the argument x of .* cannot lend"):
        model(_Unlendable())


class _Unlendable:
    """An array that is not to be read by others, as tensors of torch are not that require gradients."""

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("cannot lend")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_calls_from_several_threads_do_not_meet(layer: Path) -> None:
    model = weft.load(layer, threads=2)
    inputs = [layer_inputs(1000 + n) for n in range(4)]
    wanted = [model(x)[0].copy() for x in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            if not np.array_equal(model(inputs[number])[0], wanted[number]):
                wrong.append(number)

    workers = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_forked_child_makes_threads_anew(layer: Path) -> None:
    model = weft.load(layer, threads=2)
    wanted = model(layer_inputs(4000))[0]
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(model(layer_inputs(4000))[0], wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_processor_that_lacks_a_feature_gets_the_baseline(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = weft.load(layer)(layer_inputs())[0]
    if "avx2" not in processors.flags_here():
        pytest.skip("this processor has no more than x86-64-v2")
    for name in ("x86-64-v3", "x86-64-v2"):
        monkeypatch.setattr(processors, "flags_here", lambda name=name: frozenset(BASELINES[name][2]))
        model = weft.load(layer)
        assert model.how == f"machine code for {name}"
        np.testing.assert_allclose(model(layer_inputs())[0], wanted, rtol=1e-6)
    monkeypatch.setattr(processors, "flags_here", lambda: frozenset(["fpu", "sse2"]))
    model = weft.load(layer)
    assert model.how == "compiled anew"
    np.testing.assert_array_equal(model(layer_inputs())[0], wanted)


def test_code_of_another_architecture_does_not_run(layer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors.platform, "machine", lambda: "riscv64")
    assert weft.load(layer).how == "compiled anew"


def test_trusted_code_needs_no_compiler(layer: Path) -> None:
    np.save(layer.with_suffix(".npy"), layer_inputs())
    code = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xdsl", "llvmlite", "torch", "onnx", "jax", "ml_dtypes"):
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Blocker())
import numpy as np
import weft
print(weft.load({str(layer)!r})(np.load({str(layer.with_suffix(".npy"))!r}))[0].sum())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(float(weft.load(layer)(layer_inputs())[0].sum()), rel=1e-5)


def test_the_file_is_an_archive_that_others_read(layer: Path) -> None:
    with zipfile.ZipFile(layer) as found:
        assert found.testzip() is None
        assert {"manifest.json", "graph.mlir", "weights.safetensors", "code/host.so"} <= set(found.namelist())
        assert "layer" in found.read("graph.mlir").decode()


def test_weights_are_used_where_they_lie(layer: Path) -> None:
    array = open_artifact(layer).weights["w"]
    assert not array.flags.owndata and not array.flags.writeable
    np.testing.assert_array_equal(array, layer_source().weights["w"])


def test_equal_models_are_equal_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_artifact(tmp_path / name, layer_source())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no target 'x86-64-v9'"):
        write_artifact(tmp_path / "m.weft", layer_source(), Request(("x86-64-v9",)))
    frozen = LAYER.replace('"b"]', '"b"], constants = [1, 2]')
    with pytest.raises(ArtifactError, match="the constant w and 1 others"):
        write_artifact(tmp_path / "m.weft", Source(frozen))
    with pytest.raises(ShapeError, match="weight w"):
        write_artifact(tmp_path / "m.weft", Source(LAYER, {"w": np.zeros((3, 8), np.float32)}))
    with pytest.raises(ArtifactError, match="cannot be written"):
        write_artifact(tmp_path / "none" / "m.weft", layer_source())
    assert list(tmp_path.glob("*.tmp")) == []


def test_kernels_of_a_gpu_are_made_without_one(tmp_path: Path) -> None:
    path = tmp_path / "m.weft"
    write_artifact(path, layer_source(), Request(("host", "sm_90a")))
    artifact = open_artifact(path)
    (device,) = artifact.manifest.devices
    assert device.name == "sm_90a"
    assert b".target sm_90a" in artifact.member(device.code)
    assert weft.load(path).how == "machine code for host"


def test_who_writes_at_the_same_time_leaves_the_file_of_others_alone(tmp_path: Path) -> None:
    path = tmp_path / "models" / "model.weft"
    path.parent.mkdir()
    with whole_file(path) as first:
        first.write(b"first")
        with whole_file(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" and list(path.parent.iterdir()) == [path]
    with pytest.raises(ArtifactError, match="cannot be written"), whole_file(tmp_path / "none" / "model.weft"):
        pass


@pytest.mark.parametrize("anew", [False, True])
def test_arrays_of_the_other_byte_order_are_told(layer: Path, anew: bool) -> None:
    loaded = weft.load(layer)
    runs = recompiled(loaded.artifact, "cpu", None) if anew else loaded._program
    with pytest.raises(DTypeError, match="in the byte order of other machines"):
        runs([layer_inputs().astype(">f4")], {}, 1)


def test_all_wrong_names_are_told(layer: Path) -> None:
    told = r"got 0 by position and xx by name: x missing, xx \(did you mean x\?\) not taken"
    with pytest.raises(GuardError, match=told):
        weft.load(layer)(xx=layer_inputs())
