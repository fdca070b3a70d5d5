"""A driver that is none: it answers as the real one does, so that what calls it can be tested without a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

NAMES = {
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    222: ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
}

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
"""The type of `cuLaunchKernelEx`."""

REPLACE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""The type of `cuTensorMapReplaceAddress`."""


def _write(reference: Any, value: Any) -> int:
    reference._obj.value = value
    return 0


class FakeLibrary:
    """`libcuda.so.1` of a machine with one H200; `results` are what functions return instead of 0, by their names."""

    def __init__(self, version: int = 13000, capability: tuple[int, int] = (9, 0), **results: int) -> None:
        self.version, self.capability, self.results = version, capability, results
        self.calls: list[str] = []
        self.attributes: list[tuple[int, int]] = []
        self.maps: list[Any] = []
        self.said = b""
        self.cuLaunchKernelEx = LAUNCH(lambda *arguments: 0)
        self.cuTensorMapReplaceAddress = REPLACE(lambda *arguments: 0)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        action = getattr(type(self), f"do_{name}", lambda self, *arguments: 0)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            return self.results.get(name) or action(self, *arguments)

        return call

    def do_cuDriverGetVersion(self, out: Any) -> int:
        return _write(out, self.version)

    def do_cuDeviceGetCount(self, out: Any) -> int:
        return _write(out, 1)

    def do_cuDeviceGetName(self, out: Any, length: Any, device: Any) -> int:
        out.value = b"NVIDIA H200"
        return 0

    def do_cuDeviceGetAttribute(self, out: Any, which: Any, device: Any) -> int:
        known = {1: 1024, 16: 132, 75: self.capability[0], 76: self.capability[1], 81: 233472, 97: 232448}
        known |= {12: 65536, 13: 1_980_000, 36: 3_201_000, 37: 6144}
        return _write(out, known.get(which.value, 0))

    def do_cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:
        return _write(out, 140 << 30)

    def do_cuDevicePrimaryCtxRetain(self, out: Any, device: Any) -> int:
        return _write(out, 77)

    def do_cuGetErrorName(self, result: int, out: Any) -> int:
        return _write(out, NAMES[result][0].encode()) if result in NAMES else 1

    def do_cuGetErrorString(self, result: int, out: Any) -> int:
        return _write(out, NAMES[result][1].encode()) if result in NAMES else 1

    def do_cuLinkCreate_v2(self, count: Any, keys: Any, values: Any, state: Any) -> int:
        self.log = values
        return _write(state, 5)

    def do_cuLinkAddData_v2(self, state: Any, kind: Any, data: bytes, *rest: Any) -> int:
        if self.said:
            ctypes.memmove(self.log[2], self.said + b"\0", len(self.said) + 1)
            return 218
        self.cubin = ctypes.create_string_buffer(b"cubin of " + data)
        return 0

    def do_cuLinkComplete(self, state: Any, cubin: Any, size: Any) -> int:
        _write(cubin, ctypes.addressof(self.cubin))
        return _write(size, len(self.cubin.value))

    def do_cuLibraryLoadData(self, out: Any, image: bytes, *rest: Any) -> int:
        self.image = image
        return _write(out, 9)

    def do_cuLibraryGetKernel(self, out: Any, library: Any, name: bytes) -> int:
        return _write(out, 1000 + len(name))

    def do_cuKernelGetFunction(self, out: Any, kernel: Any) -> int:
        return _write(out, kernel.value)

    def do_cuFuncGetAttribute(self, out: Any, which: Any, function: Any) -> int:
        return _write(out, {3: 16, 4: 42}.get(which.value, 0))

    def do_cuFuncSetAttribute(self, function: Any, which: Any, value: Any) -> int:
        self.attributes.append((which.value, value.value))
        return 0

    def do_cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out: Any, function: Any, threads: Any, shared: Any) -> int:
        return _write(out, 2)

    def do_cuOccupancyMaxActiveClusters(self, out: Any, function: Any, config: Any) -> int:
        return _write(out, 30)

    def do_cuTensorMapEncodeTiled(self, out: Any, dtype: Any, rank: Any, address: Any, *told: Any) -> int:
        dims, strides, box, *_ = told
        self.maps.append((dtype.value, rank.value, list(dims), list(strides), list(box)))
        words = (ctypes.c_int64 * 16).from_address(out.value)
        words[0], words[1], words[2] = address.value, dtype.value, rank.value
        return 0
