"""The BLAS library of the process: the one the framework has loaded, by whichever names it exports, else none."""

from __future__ import annotations

import ctypes
from typing import Any

from weft.backends.cpu.fortran_blas import adapter_module
from weft.backends.cpu.target import compile_object, host_target
from weft.runtime.linking import link
from weft.runtime.openmp import address_of, loaded_libraries

LIBRARIES = r"^lib(openblas|mkl_rt|torch_cpu|blas|cblas)"
_FORTRAN = {"cblas_sgemm": ("float", "sgemm_"), "cblas_dgemm": ("double", "dgemm_")}
_LIMIT = "MKL_Set_Num_Threads_Local"
"""Limits the threads of calls from the thread that calls it."""
_found: dict[str, int] = {}
_adapters: list[Any] = []
"""What holds the machine code of adapters: they live as long as the process."""


def blas_symbols() -> dict[str, int]:
    """Addresses of the BLAS routines of the library that the process has loaded, by CBLAS's names, or an empty dict."""
    if not _found:  # looked for again until there is one: the framework that brings it may be imported later
        for path in loaded_libraries(LIBRARIES):
            if found := _routines(path):
                _found.update(found)
                break
    return _found


def _routines(path: str) -> dict[str, int]:
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return {}
    direct = {name: address for name in _FORTRAN if (address := _exported(library, name))}
    fortran = {name: (element, _exported(library, symbol)) for name, (element, symbol) in _FORTRAN.items()}
    has_fortran, limit = all(address for _, address in fortran.values()), _exported(library, _LIMIT)
    if len(direct) == len(_FORTRAN) and not (has_fortran and limit):
        return direct
    if not has_fortran:
        return {}
    target = host_target()
    adapters = link(compile_object(adapter_module(target.triple, fortran, limit), target), list(fortran))
    _adapters.append(adapters)
    return {name: adapters[name] for name in fortran}


def _exported(library: ctypes.CDLL, name: str) -> int:
    """The address of a symbol, or 0: no library is known to have any."""
    return address_of(library, name) if hasattr(library, name) else 0
