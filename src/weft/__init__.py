"""Weft: a deep-learning compiler from PyTorch, ONNX, StableHLO and Triton's language to machine code.

The public names are imported when they are first used, so that `import weft` costs nothing and needs no framework.
"""

from __future__ import annotations

import typing as _typing

if _typing.TYPE_CHECKING:
    from weft import func as func
    from weft.artifact.read import load as load
    from weft.config import Config as Config
    from weft.errors import ArtifactError as ArtifactError
    from weft.errors import CompilationError as CompilationError
    from weft.errors import CountError as CountError
    from weft.errors import DataError as DataError
    from weft.errors import DeviceError as DeviceError
    from weft.errors import DeviceMemoryError as DeviceMemoryError
    from weft.errors import DivisionError as DivisionError
    from weft.errors import DTypeError as DTypeError
    from weft.errors import GuardError as GuardError
    from weft.errors import KernelFaultError as KernelFaultError
    from weft.errors import LoweringError as LoweringError
    from weft.errors import NoDeviceError as NoDeviceError
    from weft.errors import ParseError as ParseError
    from weft.errors import PlaceError as PlaceError
    from weft.errors import PowerError as PowerError
    from weft.errors import ShapeError as ShapeError
    from weft.errors import UnsupportedError as UnsupportedError
    from weft.errors import WeftError as WeftError
    from weft.frontends.torch.api import compile as compile
    from weft.frontends.torch.distributed.distribute import distribute as distribute
    from weft.func import grad as grad
    from weft.func import hessian as hessian
    from weft.func import jvp as jvp
    from weft.func import vjp as vjp
    from weft.func import vmap as vmap
    from weft.runtime.constant_sets import refreeze as refreeze
    from weft.runtime.profile import profile as profile
    from weft.tools.explain.explain import explain as explain

__version__ = "0.1.0"

_HOMES = {
    "compile": "weft.frontends.torch.api",
    "distribute": "weft.frontends.torch.distributed.distribute",
    "load": "weft.artifact.read",
    "refreeze": "weft.runtime.constant_sets",
    "explain": "weft.tools.explain.explain",
    "profile": "weft.runtime.profile",
    "func": "weft.func",
    "grad": "weft.func",
    "vjp": "weft.func",
    "jvp": "weft.func",
    "vmap": "weft.func",
    "hessian": "weft.func",
    "Config": "weft.config",
    "WeftError": "weft.errors",
    "ArtifactError": "weft.errors",
    "ShapeError": "weft.errors",
    "DTypeError": "weft.errors",
    "ParseError": "weft.errors",
    "UnsupportedError": "weft.errors",
    "LoweringError": "weft.errors",
    "CompilationError": "weft.errors",
    "GuardError": "weft.errors",
    "PlaceError": "weft.errors",
    "DivisionError": "weft.errors",
    "CountError": "weft.errors",
    "PowerError": "weft.errors",
    "DataError": "weft.errors",
    "DeviceError": "weft.errors",
    "NoDeviceError": "weft.errors",
    "DeviceMemoryError": "weft.errors",
    "KernelFaultError": "weft.errors",
}

_OF_DATA = {"PlaceError", "DivisionError", "CountError", "PowerError", "DataError", "KernelFaultError"}
"""Errors that say what is wrong in a program's data: of these names, too, but listed in `weft.errors` alone."""

__all__ = ["__version__", *(name for name in _HOMES if name not in _OF_DATA)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> _typing.Any:
    from importlib import import_module

    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    try:
        module = import_module(home)
        value = module if home == f"{__name__}.{name}" else getattr(module, name)
    except ModuleNotFoundError as error:
        from weft.errors import missing

        raise missing(error, f"weft.{name}") or error from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    modules = (name for name, value in globals().items() if isinstance(value, type(_typing)) and name[0] != "_")
    return sorted({*__all__, *modules, "__doc__", "__file__", "__name__", "__path__"})
