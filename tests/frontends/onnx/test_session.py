"""Sessions: providers, threads, names and bindings as users of ONNX Runtime write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import weft
import weft.onnx
from tests.frontends.onnx.models import layer
from weft.errors import DTypeError, GuardError, NoDeviceError, ShapeError, UnsupportedError
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
