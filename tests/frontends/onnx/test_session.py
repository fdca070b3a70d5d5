"""Sessions: providers, threads, names and bindings as users of ONNX Runtime write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import weft
import weft.onnx
from tests.frontends.onnx.models import info, layer, model
from weft.diagnostics import forget
from weft.errors import ArtifactError, DTypeError, GuardError, ModelError, NoDeviceError, ShapeError, UnsupportedError
from weft.frontends.onnx import session as session_module
from weft.onnx import InferenceSession, SessionOptions

X = np.arange(16, dtype=np.float32).reshape(2, 8)


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    return InferenceSession(layer().SerializeToString(), sess_options=options, providers=["CPUExecutionProvider"])


def test_outputs_by_name(session: InferenceSession) -> None:
    (every,) = session.run(None, {"x": X})
    (named,) = session.run(["y"], {"x": X})
    np.testing.assert_array_equal(every, named)
    assert [each.name for each in session.get_inputs()] == ["x"]
    assert [each.name for each in session.get_outputs()] == ["y"]
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(GuardError, match="no output 'z'"):
        session.run(["z"], {"x": X})
    with pytest.raises(GuardError, match="'w' is not one"):
        session.run(None, {"x": X, "w": X})


def test_bindings_read_and_write_where_arrays_lie(session: InferenceSession) -> None:
    (expected,) = session.run(None, {"x": X})
    given, target = torch.from_numpy(X.copy()), torch.zeros(2, 4)
    binding = session.io_binding()
    binding.bind_input("x", given)
    binding.bind_output("y", target)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), expected)
    assert binding.get_outputs()[0] is target
    given.mul_(2)  # what was bound is read anew
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(target.numpy(), session.run(None, {"x": 2 * X})[0])
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0], target.numpy())


@pytest.mark.parametrize(
    ("target", "error"), [(np.zeros((2, 5), np.float32), ShapeError), (np.zeros((2, 4)), DTypeError)]
)
def test_outputs_that_do_not_fit(session: InferenceSession, target: np.ndarray, error: type[Exception]) -> None:
    binding = session.io_binding()
    binding.bind_input("x", X)
    binding.bind_output("y", target)
    with pytest.raises(error, match="'y'"):
        session.run_with_iobinding(binding)


def test_an_output_that_may_not_be_written(session: InferenceSession) -> None:
    target = np.zeros((2, 4), np.float32)
    target.flags.writeable = False
    with pytest.raises(GuardError, match="may not be written"):
        session.io_binding().bind_output("y", target)


@pytest.mark.parametrize("strides", [(0, 4), (4, 4)])
def test_an_output_whose_elements_share_memory(session: InferenceSession, strides: tuple[int, int]) -> None:
    target = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (2, 4), strides)
    with pytest.raises(GuardError, match="'y' share memory"):
        session.io_binding().bind_output("y", target)
    session.io_binding().bind_output("y", np.zeros((3, 8), np.float32)[::-2, ::2])


def test_providers_are_tried_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def loaded(source: Any, *, device: str, **others: Any) -> Any:
        tried.append(device)
        if device != "cpu":
            raise NoDeviceError("there is no such device")
        return weft.onnx.load(source, device=device, **others)

    monkeypatch.setattr(session_module, "load", loaded)
    both = [("CUDAExecutionProvider", {"device_id": 1}), "CPUExecutionProvider"]
    assert InferenceSession(layer(), providers=both).get_providers() == ["CPUExecutionProvider"]
    assert tried == ["cuda:1", "cpu"]
    with pytest.raises(NoDeviceError):
        InferenceSession(layer(), providers=["CUDAExecutionProvider"])
    with pytest.raises(UnsupportedError, match=r"'TensorrtExecutionProvider'.*\n.*CPUExecutionProvider"):
        InferenceSession(layer(), providers=["TensorrtExecutionProvider"])


@pytest.mark.parametrize("threads", [0, -1, True])
def test_a_number_of_threads_is_one_or_more(threads: int) -> None:
    with pytest.raises(GuardError, match=f"threads is {threads}, expected a number from 1 on"):
        weft.onnx.load(layer(), threads=threads)
    with pytest.raises(GuardError, match=f"threads is {threads}"):
        weft.load("none.weft", threads=threads)


def test_inputs_and_outputs_have_names_shapes_and_types(session: InferenceSession) -> None:
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, given.type) == ("x", ["n", 8], "tensor(float)")
    assert (made.name, made.shape, made.type) == ("y", ["n", 4], "tensor(float)")


@pytest.mark.parametrize(
    ("type_", "told"),
    [
        (helper.make_tensor_type_proto(TensorProto.DOUBLE, [2]), "tensor(double)"),
        (helper.make_tensor_type_proto(TensorProto.STRING, []), "tensor(string)"),
        (helper.make_tensor_type_proto(TensorProto.BFLOAT16, []), "tensor(bfloat16)"),
        (helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, [])), "seq(tensor(int64))"),
        (
            helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.BOOL, [])),
            "optional(tensor(bool))",
        ),
    ],
)
def test_types_are_told_in_onnx_words(type_: Any, told: str) -> None:
    given = model([helper.make_node("Identity", ["x"], ["y"])], [helper.make_value_info("x", type_)], [info("y")])
    assert InferenceSession(given).get_inputs()[0].type == told


def test_a_file_tells_who_made_it() -> None:
    given = layer()
    given.producer_name, given.model_version, given.domain = "trainer", 7, "org.example"
    given.graph.doc_string = "scores"
    helper.set_model_props(given, {"classes": "a" * 9000})
    told = InferenceSession(given).get_modelmeta()
    assert (told.producer_name, told.version, told.domain, told.graph_name) == ("trainer", 7, "org.example", "g")
    assert (told.graph_description, told.custom_metadata_map) == ("scores", {"classes": "a" * 9000})


def test_available_providers_begin_with_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert weft.onnx.get_available_providers()[-1] == "CPUExecutionProvider"
    monkeypatch.setattr(session_module, "program_key", lambda *_: "")
    assert weft.onnx.get_available_providers() == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert weft.onnx.get_device() == "GPU"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "weft.options"]


def test_options_that_do_nothing_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    for _ in range(2):
        options = SessionOptions()
        options.inter_op_num_threads = 4
        options.graph_optimization_level = weft.onnx.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = [("CPUExecutionProvider", {"use_arena": "1"})]
        session = InferenceSession(layer(), options, providers=providers)
        session.run(None, {"x": X}, weft.onnx.RunOptions(run_tag="first"))
    every = told(caplog)
    assert len(every) == 3
    assert "graph_optimization_level, inter_op_num_threads, session.intra_op.allow_spinning" in every[0]
    assert "CPUExecutionProvider: use_arena" in every[1] and "run_tag" in every[2]
    assert session.get_provider_options() == {"CPUExecutionProvider": {"use_arena": "1"}}


def test_options_that_say_what_is_done_anyway_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    forget()
    options = SessionOptions()
    options.graph_optimization_level = weft.onnx.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = weft.onnx.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = 1
    InferenceSession(layer(), options, providers="CPUExecutionProvider")
    assert not told(caplog)


def test_options_that_there_are_not() -> None:
    with pytest.raises(AttributeError, match=r"no option 'intra_op_threads' \(did you mean intra_op_num_threads\?\)"):
        SessionOptions().intra_op_threads = 2  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedError, match="operators of ONNX Runtime's own"):
        SessionOptions().register_custom_ops_library("ops.so")
    with pytest.raises(GuardError, match="2 provider options for 1 providers"):
        InferenceSession(layer(), providers=["CPUExecutionProvider"], provider_options=[{}, {}])


def test_wrong_names_are_all_told(session: InferenceSession) -> None:
    with pytest.raises(GuardError, match=r"'x' is missing; 'xx' \(did you mean x\?\), 'other' are none"):
        session.run(None, {"xx": X, "other": X})
    with pytest.raises(GuardError, match=r"no input 'xx' \(did you mean x\?\)"):
        session.io_binding().bind_input("xx", X)


def test_lists_become_arrays_of_the_model_s_types(session: InferenceSession) -> None:
    """As ONNX Runtime takes them, but nothing of a number is lost."""
    (wanted,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(session.run(None, {"x": X.tolist()})[0], wanted)
    np.testing.assert_array_equal(session.run(None, {"x": X.astype(int).tolist()})[0], wanted)
    small = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", TensorProto.UINT8, ["n"])], [info("y")])
    load = weft.onnx.load(small)
    np.testing.assert_array_equal(load([1, 255])[0], np.array([1, 255], np.uint8))
    for wrong in ([1.5], [256], [-1], ["1"], [None]):
        with pytest.raises(GuardError, match="input 'x' is "):
            load(wrong)


def test_elements_of_strings_are_looked_at() -> None:
    given = model([helper.make_node("Identity", ["x"], ["y"])], [info("x", TensorProto.STRING, ["n", 2])], [info("y")])
    function = weft.onnx.load(given)
    assert function([["a", "b"]])[0].tolist() == [["a", "b"]]
    for wrong, kind in ((3, "int"), (None, "NoneType"), (b"c", "bytes")):
        with pytest.raises(GuardError, match=rf"its element \[1, 0\] is a {kind}, expected a string"):
            function(np.array([["a", "b"], [wrong, "d"]], object))


def test_outputs_of_a_binding_are_copied(session: InferenceSession) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "cpu")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], session.run(None, {"x": X})[0])
    binding.clear_binding_outputs()
    binding.clear_binding_inputs()
    with pytest.raises(GuardError, match="'x' is missing"):
        session.run_with_iobinding(binding)


def test_paths_with_a_nul_are_no_paths() -> None:
    with pytest.raises(ModelError, match="is not a path"):
        weft.onnx.load("a\0b")
    with pytest.raises(ArtifactError, match="is not a path"):
        weft.load("a\0b")


@pytest.mark.parametrize("rows", ["n", 3])
def test_operators_that_there_are_not_are_told_at_load(rows: Any) -> None:
    given = model([helper.make_node("NoSuch", ["x"], ["y"])], [info("x", shape=[rows, 2])], [info("y")])
    with pytest.raises(UnsupportedError, match="no converter for NoSuch"):
        weft.onnx.load(given)
