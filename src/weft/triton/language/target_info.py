"""`triton.language.target_info`: questions about the machine, answered at compile time."""

from typing import Any

from weft.frontends.triton.compiler.constexpr_function import constexpr_function
from weft.frontends.triton.target import driver


def current_target() -> Any:
    """What kernels are compiled for."""
    return driver.active.get_current_target()


@constexpr_function
def is_cuda() -> bool:
    """Is it a GPU of NVIDIA?"""
    return current_target().backend == "cuda"


@constexpr_function
def cuda_capability_geq(major: int, minor: int = 0) -> bool:
    """Is it a GPU of NVIDIA of at least a generation?"""
    target = current_target()
    return target.backend == "cuda" and target.arch >= major * 10 + minor


@constexpr_function
def is_hip() -> bool:
    """Is it a GPU of AMD?"""
    return current_target().backend == "hip"


@constexpr_function
def is_hip_cdna3() -> bool:
    """Is it an MI300?"""
    return current_target().arch == "gfx942"


@constexpr_function
def is_hip_cdna4() -> bool:
    """Is it an MI350?"""
    return current_target().arch == "gfx950"
