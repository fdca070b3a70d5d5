"""Options of a launch that Weft takes and has no use for: each is told once.

matmul[grid](a, b, c, num_ctas=2)     →     weft: script.py:12: num_ctas=2 of matmul has no effect, Weft chooses ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.diagnostics import warn, was_told


@dataclass(frozen=True)
class _Ignored:
    """An option without effect: the values with which nothing is lost, and what to do instead."""

    why: str
    advice: str
    harmless: tuple[Any, ...] = ()
    everywhere: bool = True
    """Whether it is missed on a CPU as well: what only makes GPU code faster is not."""


_OTHER_GPUS = "it is an option of AMD's GPUs"
_OTHER_WARPS = "it is an option of other compilers for warp specialization"
_LEAVE_OUT = "leave it out"
IGNORED: dict[str, _Ignored] = {
    "num_stages": _Ignored(
        "Weft makes pipelines as deep as shared memory has room for", _LEAVE_OUT, tuple(range(2, 17)), everywhere=False
    ),
    "num_ctas": _Ignored("Weft chooses which programs share a cluster", _LEAVE_OUT, (1,), everywhere=False),
    "cluster_dims": _Ignored(
        "Weft chooses which programs share a cluster", _LEAVE_OUT, ((1, 1, 1), [1, 1, 1]), everywhere=False
    ),
    "launch_pdl": _Ignored("Weft decides by itself which kernels begin early", _LEAVE_OUT, (True,), everywhere=False),
    "launch_cooperative_grid": _Ignored(
        "programs of a grid may run one after another",
        "launch a second kernel to wait for all of them",
        (False,),
    ),
    "enable_fp_fusion": _Ignored(
        "products and sums are fused where that is quicker", "round between them by a cast", (True,)
    ),
    "enable_reflect_ftz": _Ignored("denormal numbers are kept", _LEAVE_OUT, (False,)),
    "extern_libs": _Ignored("libdevice is written in Weft's own language", _LEAVE_OUT, ((), {}, [])),
    "ir_override": _Ignored("the IR of Triton is not read", "change the kernel"),
    "default_dot_input_precision": _Ignored(
        "a dot has its own", "give input_precision to tl.dot", ("tf32",), everywhere=False
    ),
    "allowed_dot_input_precisions": _Ignored("all that tl.dot names are allowed", _LEAVE_OUT),
    "max_num_imprecise_acc_default": _Ignored(
        "sums of dots are of f32", "give max_num_imprecise_acc to tl.dot", (0,), everywhere=False
    ),
    "allow_fp8e4nv": _Ignored("it is allowed wherever the GPU has it", _LEAVE_OUT, (True,)),
    "sanitize_overflow": _Ignored("integers wrap", "test for overflow with tl.device_assert", (False,)),
    "instrumentation_mode": _Ignored("Weft has its own profiles", "use weft explain, or torch.profiler", ("",)),
    "arch": _Ignored("code is made for the GPU at hand", _LEAVE_OUT, everywhere=False),
    "backend_name": _Ignored("code is made for the device of the tensors", _LEAVE_OUT, everywhere=False),
    "warp_size": _Ignored("a warp of the GPU has 32 threads", _LEAVE_OUT, (32,), everywhere=False),
    **{
        name: _Ignored(_OTHER_GPUS, _LEAVE_OUT, (0,), everywhere=False)
        for name in ("waves_per_eu", "matrix_instr_nonkdim", "kpack", "schedule_hint")
    },
    **{
        name: _Ignored(_OTHER_WARPS, _LEAVE_OUT, (0, False), everywhere=False)
        for name in ("num_consumer_groups", "num_buffers_warp_spec", "minRegAutoWS", "maxRegAutoWS", "pingpongAutoWS")
    },
}
"""Options that are taken and have no effect."""
_SILENT: set[str] = set()
"""Options that were given to launches on a CPU, which does not miss them."""


def all_told(options: Mapping[str, Any]) -> bool:
    """Whether nothing is to be said of the options of a launch, or was said before."""
    missed = [name for name in IGNORED.keys() & options.keys() if _is_missed(IGNORED[name], options[name])]
    return all([name in _SILENT or was_told("options", _cause(name)) for name in missed])


def tell_ignored(options: Mapping[str, Any], kernel: str, *, on_gpu: bool) -> None:
    """Warn of options of a launch that have no effect, of each once."""
    for name in IGNORED.keys() & options.keys():
        ignored = IGNORED[name]
        if not _is_missed(ignored, options[name]):
            continue
        if on_gpu or ignored.everywhere:
            what = f"{name}={options[name]!r} of {kernel} has no effect"
            warn("options", what, ignored.why, ignored.advice, cause=_cause(name))
        else:
            _SILENT.add(name)


def _cause(name: str) -> str:
    return f"{name} of a launch"


def _is_missed(ignored: _Ignored, value: Any) -> bool:
    return value is not None and value not in ignored.harmless
