"""`enable()`: `import triton` finds Weft, so that modules written for Triton work as they are.

`triton.x` becomes `weft.triton.x`, the same module object under both names. Used as a context manager, what `triton`
was before is put back at the end.
"""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any

from weft.frontends.triton.torch.inductor import StandIn
from weft.frontends.triton.torch.mutation import teach_torch

_NAME = "triton"


class _SameModule(Loader):
    """Hands out the module of Weft in place of a new one."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.ours)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put its own there
        # What is in it is known by its second name at once: importing it later would put the module in place of what
        # its package has under that name, such as `triton.runtime.driver`.
        for name in [name for name in sys.modules if name.startswith(f"{self.ours}.")]:
            sys.modules.setdefault(name.removeprefix("weft."), sys.modules[name])


class _Finder(MetaPathFinder):
    """Finds `triton` and what is in it inside of `weft`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME and not fullname.startswith(f"{_NAME}."):
            return None
        ours = f"weft.{fullname}"
        try:
            found = importlib.util.find_spec(ours)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        return ModuleSpec(fullname, _SameModule(ours), is_package=found.submodule_search_locations is not None)


class Enabled:
    """`import triton` finds Weft; ends with `disable()` or with the block of a `with`."""

    def __init__(self) -> None:
        _let_inductor_look()
        self._finder = _Finder()
        self._before = _take_modules()
        sys.meta_path.insert(0, self._finder)
        importlib.import_module(_NAME)
        _forget_what_torch_found()
        teach_torch()
        self._inductor = StandIn()

    def disable(self) -> None:
        """Let `import triton` find what it did before. Modules that have imported it keep what they have."""
        if self._finder not in sys.meta_path:
            return
        sys.meta_path.remove(self._finder)
        self._inductor.end()
        _take_modules()
        sys.modules.update(self._before)
        _forget_what_torch_found()

    def __enter__(self) -> Enabled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disable()


def enable() -> Enabled:
    """Make `import triton` resolve to Weft in this process: for good, or for the block of a `with`."""
    return Enabled()


def _take_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == _NAME or name.startswith(f"{_NAME}.")]
    return {name: sys.modules.pop(name) for name in names}


def _let_inductor_look() -> None:
    """Inductor makes code for GPUs by parts of Triton that are not its language: it has to look for them before."""
    if _NAME in sys.modules:  # it is there, or on its way: then this is what Inductor finds
        return
    for name in ("torch._inductor.runtime.hints", "torch._inductor.runtime.triton_compat"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _forget_what_torch_found() -> None:
    """torch looks for Triton once and remembers the answer."""
    module: Any = sys.modules.get("torch.utils._triton")
    for value in list(vars(module).values()) if module is not None else ():
        forget = getattr(value, "cache_clear", None)
        if forget is not None:
            forget()
    # torch says in its metrics which Triton it found, and takes for granted that it has loaded it.
    metrics: Any = sys.modules.get("torch._dynamo.utils")
    if metrics is not None and not hasattr(metrics, "triton") and _NAME in sys.modules:
        metrics.triton = sys.modules[_NAME]
