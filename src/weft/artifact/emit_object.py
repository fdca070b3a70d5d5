"""A model as a shared object and a C header, for callers without Python: code, weights and threads in one file.

    int64_t NAME_run(const int64_t *sizes, const void *const *inputs, void *const *outputs, int threads);
    void    NAME_shapes(const int64_t *sizes, int64_t *shapes);

The header also has a function that takes each argument by its name and type. Weights lie in the file as kernels read
them: nothing is prepared when a program starts, and processes share them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from weft import __version__
from weft.artifact.compile_native import (
    NativeCode,
    compile_native,
    constant_arrays,
    packing_of,
    strides_of,
)
from weft.artifact.native import packed
from weft.artifact.processors import BASELINES, HOST
from weft.artifact.whole_files import write_together
from weft.artifact.write import Request, Source, checked_weights, result_names
from weft.backends.cpu.native_program import ARENA, CALL, SHAPES, outputs_of
from weft.backends.cpu.objects.link_shared import link_shared
from weft.errors import ArtifactError, UnsupportedError
from weft.frontends.text import read_function
from weft.ir.types import Tensor, contiguous_strides
from weft.runtime.signature import Signature

_BLOB = "weft.constant"
_MOST_TOLD = 100
_C_TYPES = {
    "f64": "double",
    "f32": "float",
    "i1": "uint8_t",
    "i4": "int8_t",
    "ui4": "uint8_t",
    "f16": "uint16_t",
    "bf16": "uint16_t",
    "f8E4M3FN": "uint8_t",
    "f8E5M2": "uint8_t",
    "complex<f32>": "float",
    "complex<f64>": "double",
} | {f"{ours}{n}": f"{theirs}{n}_t" for ours, theirs in (("i", "int"), ("ui", "uint")) for n in (8, 16, 32, 64)}
_C_WORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while"""
_CPP_WORDS = """alignas alignof and asm bitand bitor bool catch class compl concept const_cast consteval constexpr
constinit decltype delete dynamic_cast explicit export false friend mutable namespace new noexcept not nullptr
operator or private protected public reinterpret_cast requires static_assert static_cast template this thread_local
throw true try typeid typename using virtual wchar_t xor"""
_NUMBERED = re.compile(r"result\d+")
_OWN = frozenset(("threads", "sizes_", "inputs_", "outputs_", *_C_TYPES.values()))
"""What the function of the header calls its own."""


_VERDICT = """\
  %place_of_found = getelementptr ptr, ptr %outputs, i64 {found}
  %at = load ptr, ptr %place_of_found, align 8
  %found = load i64, ptr %at, align 1
  %ran = icmp eq i64 %verdict, 0
  %told = select i1 %ran, i64 %found, i64 %verdict
"""


def emit_object(path: Path, source: Source, request: Request) -> tuple[Path, Path]:
    """Write a shared object, and beside it the header that declares what it has."""
    if len(request.targets) != 1:
        raise ArtifactError("a shared object is for one target", hint="say which by one --target")
    if request.targets[0].startswith("sm_"):
        raise ArtifactError(
            f"a shared object is for a processor, and {request.targets[0]} is a GPU",
            hint=f"an artifact holds code for GPUs: leave --emit out; processors are {', '.join((HOST, *BASELINES))}",
        )
    if path.suffix == ".h":
        raise ArtifactError(f"{path} is where the header would be", hint="name the shared object: -o model.so")
    function, signature = read_function(source.text, source.function, source.weights)
    weights = checked_weights(source, signature)
    results = result_names(function)
    code = compile_native(function, request.targets[0], request.config)
    name = identifier(path.stem)
    header = path.with_suffix(".h")
    text = c_header(name, code, signature, results, [message for _, message in source.mistakes])
    blobs = _blobs(code, signature, weights)
    found = len(outputs_of(code.planned.plan)) - 1 if source.mistakes else None
    more = _entry_points(name, code, len(blobs), found)
    exports = (f"{name}_run", f"{name}_shapes")
    image = link_shared(code.object_file(more), exports, blobs, path.name)
    write_together({path: image, header: text.encode()})
    return path, header


def identifier(name: str) -> str:
    """A name that C and C++ take."""
    word = re.sub(r"[^A-Za-z0-9_]", "_", name) or "model"
    return f"m_{word}" if word[0].isdigit() or word in (*_C_WORDS.split(), *_CPP_WORDS.split()) else word


def _blobs(code: NativeCode, signature: Signature, weights: dict[str, np.ndarray]) -> dict[str, bytes]:
    """The constants as code reads them."""
    plan = code.planned.plan
    arrays = constant_arrays(code.planned, signature, weights)
    blobs: dict[str, bytes] = {}
    for number, constant in enumerate(plan.constants):
        array, packing = arrays[constant.source], packing_of(constant)
        if packing is not None:
            array = packed(array, packing)
        elif strides_of(plan, constant, array) is not None:
            raise UnsupportedError(
                "a weight that code reads by unusual strides", hint="write an artifact instead: leave --emit out"
            )
        blobs[f"{_BLOB}{number}"] = np.ascontiguousarray(array).tobytes() or bytes(64)
    return blobs


def _entry_points(name: str, code: NativeCode, constants: int, found: int | None) -> str:
    """LLVM IR of what C calls: memory for temporaries comes from the C library, and is kept between calls.

    The result numbered `found`, if there is one, says which check the data has not passed: so does the call.
    """
    declared = "\n".join(f"@{_BLOB}{n} = external hidden constant i8" for n in range(constants))
    listed = ", ".join(f"ptr @{_BLOB}{n}" for n in range(constants)) or "ptr null"
    told = "" if found is None else _VERDICT.format(found=found)
    return f"""
{declared}
@weft.constants = internal global [{max(constants, 1)} x ptr] [{listed}], align 8
@weft.kept = internal global ptr null, align 8
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)

define i64 @{name}_run(ptr %sizes, ptr %inputs, ptr %outputs, i32 %threads) nounwind {{
entry:
  %place = alloca ptr, align 8
  %bytes = call i64 @{ARENA}(ptr %sizes)
  %needed = add i64 %bytes, 64
  %kept = atomicrmw xchg ptr @weft.kept, ptr null seq_cst
  %none = icmp eq ptr %kept, null
  br i1 %none, label %new, label %look
look:
  %room = load i64, ptr %kept, align 8
  %fits = icmp uge i64 %room, %needed
  br i1 %fits, label %run, label %drop
drop:
  call void @free(ptr %kept)
  br label %new
new:
  %failed = call i32 @posix_memalign(ptr %place, i64 64, i64 %needed)
  %made = icmp eq i32 %failed, 0
  br i1 %made, label %have, label %refuse
refuse:
  ret i64 -1
have:
  %fresh = load ptr, ptr %place, align 8
  store i64 %needed, ptr %fresh, align 8
  br label %run
run:
  %block = phi ptr [ %kept, %look ], [ %fresh, %have ]
  %arena = getelementptr i8, ptr %block, i64 64
  %wide = sext i32 %threads to i64
  %verdict = call i64 @{CALL}(ptr %sizes, ptr @weft.constants, ptr %inputs, ptr %outputs, ptr %arena, i64 %wide)
  %other = atomicrmw xchg ptr @weft.kept, ptr %block seq_cst
  call void @free(ptr %other)
{told}  ret i64 {"%verdict" if found is None else "%told"}
}}

define void @{name}_shapes(ptr %sizes, ptr %shapes) nounwind {{
  call void @{SHAPES}(ptr %sizes, ptr %shapes)
  ret void
}}
"""


def c_header(
    name: str, code: NativeCode, signature: Signature, results: Sequence[str], mistakes: Sequence[str] = ()
) -> str:
    """The header of a model's shared object."""
    plan = code.planned.plan
    free = [place for place in range(len(signature.names)) if place not in signature.constants]
    inputs = _unique([signature.names[place] for place in free], taken=[f"{name}_run"])
    tensors = [plan.buffers[number].tensor for number in plan.inputs]
    numbers = outputs_of(plan)
    if list(plan.outputs) != numbers:
        raise UnsupportedError(
            "a result that is an argument, a weight or another result, which a C caller would have to copy",
            hint="write an artifact instead, or let the model give new tensors",
        )
    for number in numbers:
        buffer = plan.buffers[number]
        if buffer.layout.strides != contiguous_strides(buffer.tensor.shape):
            raise UnsupportedError("a result with unusual strides", hint="let the model give contiguous tensors")
    outputs = [plan.buffers[number].tensor for number in numbers]
    sizes = _unique(list(plan.symbols), taken=[f"{name}_run", *inputs])
    made = _unique(results, taken=[f"{name}_run", *inputs, *sizes], numbered=True)
    guard = f"WEFT_{name.upper()}_H"
    parameters = [
        *(f"int64_t {each}" for each in sizes),
        *(
            f"{'' if place in signature.replaced else 'const '}{_c_type(t)} *{n} /* {_shape(t)} */"
            for place, n, t in zip(free, inputs, tensors, strict=True)
        ),
        *(f"{_c_type(t)} *{n} /* {_shape(t)} */" for n, t in zip(made, outputs, strict=True)),
        "int threads",
    ]
    listed = ",\n    ".join(parameters)
    verdict = _told(mistakes)
    made_for = f"{code.name} ({code.target.cpu}, {code.target.triple.partition('-')[0]})"
    needs = ", ".join(code.requires) if code.name != HOST else "all that the one has on which this was made"
    lines = f"""
/* {name}: a model compiled by Weft {__version__} for {made_for}.
 *
 * Arrays lie row by row; they need no alignment but that of their elements.{verdict}
 * A call returns 0, -1 where there is no memory, or the number of a check that the data has not passed.
 * Calls may be made from several threads. In a forked child, use no more than one thread.
 * The processor has to have: {needs}.
 */
#ifndef {guard}
#define {guard}

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define {name.upper()}_SIZES {len(sizes)}
#define {name.upper()}_INPUTS {len(inputs)}
#define {name.upper()}_OUTPUTS {len(outputs)}

/* `sizes` are {", ".join(sizes) or "none: it may be NULL"}; inputs and outputs are in the order of the function below.
 */
int64_t {name}_run(const int64_t *sizes, const void *const *inputs, void *const *outputs, int threads);

/* Writes the shapes of all results behind each other: {", ".join(_shape(each) for each in outputs)}. */
void {name}_shapes(const int64_t *sizes, int64_t *shapes);

static inline int64_t {name}(
    {listed}) {{
    const int64_t sizes_[] = {{{", ".join([*sizes, "0"])}}};
    const void *const inputs_[] = {{{", ".join([*inputs, "0"])}}};
    void *const outputs_[] = {{{", ".join([*made, "0"])}}};
    return {name}_run(sizes_, inputs_, outputs_, threads);
}}

#ifdef __cplusplus
}}
#endif

#endif
"""
    return lines.lstrip()


def _told(mistakes: Sequence[str]) -> str:
    """What numbers of the last result stand for, in words that cannot end a comment."""
    if not mistakes:
        return ""
    plain = [re.sub(r"[^A-Za-z0-9 _.,:;()'\[\]-]", "_", each)[:_MOST_TOLD] for each in mistakes]
    listed = "".join(f"\n *   {number}: {each}" for number, each in enumerate(plain, 1))
    return f" The last result\n * is what a check of the data has found, 0 if nothing is wrong:{listed}"


def _c_type(tensor: Tensor) -> str:
    return _C_TYPES[tensor.dtype.name]


def _shape(tensor: Tensor) -> str:
    return f"{tensor.dtype.name}[{', '.join(map(str, tensor.shape))}]"


def _unique(names: Sequence[str], taken: Sequence[str], *, numbered: bool = False) -> list[str]:
    """Names that C takes, no two alike, and none that the header has a meaning for.

    Results without a name are `numbered`, and arguments are not called as they are.
    """
    found: list[str] = []
    for name in names:
        word = identifier(name)
        while word in found or word in taken or word in _OWN or (not numbered and _NUMBERED.fullmatch(word)):
            word += "_"
        found.append(word)
    return found
