"""The host side of programs on a GPU as machine code: one function that launches a tape of kernels, without Python.

A tape is an array of 64-bit words, written when the sizes of a call are known; addresses of buffers, sizes and the
bits of scalars stand in a table beside it, which a call fills. A kernel's parameters are given by where they stand: in
the table, each in a word of its own.

    head:    how many kernels there are, and how long the table is: behind it lies the launcher's scratch
    kernel:  function, blocks, threads, bytes of shared memory, blocks of a cluster, whether it may start early,
             n, m, then n places in the table, then m tensor maps: a place in the table, and 16 words
"""

from __future__ import annotations

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V, i64
from weft.backends.nvidia.driver.modules import CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION
from weft.backends.nvidia.driver.tensor_maps import MAP_ALIGNMENT, MAP_WORDS

DEVICE_LAUNCHER = "weft_launch"
HEAD_WORDS = 2
KERNEL_WORDS = 8
"""The words of a kernel before its places in the table."""
_FUNCTION, _BLOCKS, _THREADS, _SHARED, _CLUSTER, PROGRAMMATIC, _PLACES, _MAPS = range(KERNEL_WORDS)

# The structures of the driver's interface, in words of 64 and of 32 bits: `modules.LaunchConfig`, `LaunchAttribute`.
_CONFIG_WORDS, _STREAM, _ATTRIBUTES, _ATTRIBUTE_COUNT = 7, 4, 5, 12
_ATTRIBUTE_WORDS, _ATTRIBUTE_VALUE = 9, 2


def device_launcher_module(triple: str, launch_at: int, replace_at: int) -> str:
    """The LLVM IR of `i64 weft_launch(ptr tape, ptr table, i64 stream)`.

    The driver's `cuLaunchKernelEx` and `cuTensorMapReplaceAddress` lie at the addresses given: to pass them in every
    call would take Python a tenth of a launch. It returns 0, or the driver's result for the first kernel that could
    not be launched, with that kernel's number in the upper 32 bits.
    """
    module = Module(triple)
    b = Function(module, DEVICE_LAUNCHER, [("ptr", "tape"), ("ptr", "table"), ("i64", "stream")], result="i64")
    tape, table, stream = b.args
    launch, replace = (b.emit("ptr", f"inttoptr {i64(address)} to ptr") for address in (launch_at, replace_at))
    scratch = b.gep(table, b.load("i64", b.gep(tape, i64(1), "i64"), 8), "i64")
    cursor = b.alloca("i64", 1, 8)
    config, attributes = b.alloca("i64", _CONFIG_WORDS, 8), b.alloca("i64", 2 * _ATTRIBUTE_WORDS, 8)
    b.store(i64(HEAD_WORDS), cursor, 8)
    with b.loop(i64(0), b.load("i64", tape, 8), i64(1)) as number:
        start = b.load("i64", cursor, 8)
        step = _Step(b, b.gep(tape, start, "i64"))
        places, maps = step.word(_PLACES), step.word(_MAPS)
        with b.loop(i64(0), places, i64(1)) as i:
            place = b.load("i64", b.gep(step.base, b.add(i, i64(KERNEL_WORDS)), "i64"), 8)
            b.store(b.gep(table, place, "i64"), b.gep(scratch, i, "i64"), 8)
        described = b.gep(step.base, b.add(places, i64(KERNEL_WORDS)), "i64")
        pointers = b.gep(scratch, places, "i64")
        slots = _aligned(b, b.gep(pointers, maps, "i64"))
        with b.loop(i64(0), maps, i64(1)) as i:
            given = b.gep(described, b.mul(i, i64(1 + MAP_WORDS)), "i64")
            slot = b.gep(slots, b.mul(i, i64(MAP_WORDS)), "i64")
            with b.loop(i64(0), i64(MAP_WORDS), i64(1)) as word:
                b.store(b.load("i64", b.gep(given, b.add(word, i64(1)), "i64"), 8), b.gep(slot, word, "i64"), 8)
            address = b.load("ptr", b.gep(table, b.load("i64", given, 8), "i64"), 8)
            _check(b, b.emit("i32", f"call i32 {replace.name}({slot}, {address})"), number)
            b.store(slot, b.gep(pointers, i, "i64"), 8)
        _configure(b, step, stream, config, attributes)
        function = b.emit("ptr", f"inttoptr {step.word(_FUNCTION)} to ptr")
        _check(b, b.emit("i32", f"call i32 {launch.name}({config}, {function}, {scratch}, ptr null)"), number)
        used = b.add(b.add(places, i64(KERNEL_WORDS)), b.mul(maps, i64(1 + MAP_WORDS)))
        b.store(b.add(start, used), cursor, 8)
    b.finish(i64(0))
    return str(module)


def _aligned(b: Function, pointer: V) -> V:
    """The next address that the driver takes tensor maps at."""
    address = b.add(b.emit("i64", f"ptrtoint {pointer} to i64"), i64(MAP_ALIGNMENT - 1))
    return b.emit("ptr", f"inttoptr {b.binary('and', address, i64(-MAP_ALIGNMENT))} to ptr")


def _check(b: Function, result: V, number: V) -> None:
    """Return what the driver said, and of which kernel, if it is not that all is well."""
    with b.when(b.icmp("ne", result, V("i32", "0"))):
        above = b.binary("shl", number, i64(32))
        b.do(f"ret {b.binary('or', above, b.convert('zext', result, 'i64'))}")
        b.start(b.label("unreachable"))


class _Step:
    """The words of one kernel."""

    def __init__(self, b: Function, base: V) -> None:
        self.b, self.base = b, base

    def word(self, position: int) -> V:
        return self.b.load("i64", self.b.gep(self.base, i64(position), "i64"), 8)

    def narrow(self, position: int) -> V:
        return self.b.convert("trunc", self.word(position), "i32")


def _configure(b: Function, step: _Step, stream: V, config: V, attributes: V) -> None:
    """Fill the driver's description of a launch."""
    one = V("i32", "1")

    def put(value: V, base: V, place: int | V) -> None:
        b.store(value, b.gep(base, i64(place) if isinstance(place, int) else place, "i32"), 4)

    for place, value in enumerate((step.narrow(_BLOCKS), one, one, step.narrow(_THREADS), one, one)):
        put(value, config, place)
    put(step.narrow(_SHARED), config, 6)
    b.store(stream, b.gep(config, i64(_STREAM), "i64"), 8)
    b.store(attributes, b.gep(config, i64(_ATTRIBUTES), "i64"), 8)
    put(V("i32", "0"), config, _ATTRIBUTE_COUNT)
    cluster, programmatic = step.narrow(_CLUSTER), step.narrow(PROGRAMMATIC)
    with b.when(b.icmp("ne", cluster, one)):
        put(V("i32", str(CLUSTER_DIMENSION)), attributes, 0)
        for place, value in enumerate((cluster, one, one)):
            put(value, attributes, _ATTRIBUTE_VALUE + place)
        put(one, config, _ATTRIBUTE_COUNT)
    with b.when(b.icmp("ne", programmatic, V("i32", "0"))):
        count = b.load("i32", b.gep(config, i64(_ATTRIBUTE_COUNT), "i32"), 4)
        taken = b.mul(b.convert("zext", count, "i64"), i64(2 * _ATTRIBUTE_WORDS))
        put(V("i32", str(PROGRAMMATIC_SERIALIZATION)), attributes, taken)
        put(one, attributes, b.add(taken, i64(_ATTRIBUTE_VALUE)))
        put(b.add(count, one), config, _ATTRIBUTE_COUNT)
