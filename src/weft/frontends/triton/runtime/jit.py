"""`@jit`: a Python function as a kernel.

kernel[grid](x, y, n, BLOCK=1024)  ──►  run ──┬─► interpret.py   the Python function itself, a program at a time
                                              └─► launch.py      arguments → key → compiled kernel → threads
"""

# Arguments may be anything, and torch types only a part of what it has.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import ast
import inspect
import itertools
import operator
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, overload
from weakref import WeakValueDictionary

from weft.config import truth
from weft.forks import cached_property
from weft.frontends.triton.builders import builder
from weft.frontends.triton.compiler.source import Fingerprint, Source, fingerprint
from weft.frontends.triton.errors import LaunchError
from weft.frontends.triton.language.constants import constexpr_type, unwrap
from weft.frontends.triton.runtime.hooks import ENTER, EXIT, LaunchFacts
from weft.frontends.triton.runtime.ignored_options import all_told
from weft.frontends.triton.runtime.specialise import Parameter
from weft.frontends.triton.runtime.stand_ins import MockTensor

if TYPE_CHECKING:
    from weft.frontends.triton.runtime.launch import Launcher

Grid: TypeAlias = "tuple[int, ...] | list[int] | int | Callable[[dict[str, Any]], tuple[int, ...]]"

OPTIONS = frozenset(
    {
        *("num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override", "debug", "enable_fp_fusion", "extern_libs"),
        *("launch_cooperative_grid", "launch_pdl", "cluster_dims", "allow_fp8e4nv", "allowed_dot_input_precisions"),
        *("default_dot_input_precision", "max_num_imprecise_acc_default", "sanitize_overflow", "arch", "waves_per_eu"),
        *(
            "matrix_instr_nonkdim",
            "kpack",
            "enable_reflect_ftz",
            "instrumentation_mode",
            "warp_size",
            "num_consumer_groups",
        ),
        *("num_buffers_warp_spec", "minRegAutoWS", "maxRegAutoWS", "pingpongAutoWS", "schedule_hint", "backend_name"),
    }
)
"""Keywords of a launch that tune GPU code: a CPU kernel takes no notice of them, save `debug`. Those that no kernel
takes notice of are in `ignored_options`."""
COUNTS = {
    "num_warps": "a power of two",
    "num_ctas": "a power of two",
    "num_stages": "an integer that is not negative",
    "maxnreg": "a positive integer, or None",
}
"""Those of them that count something, and what they have to be."""

_interpreted: ContextVar[bool | None] = ContextVar("_interpreted", default=None)
interpreted_here = _interpreted.get
"""What `interpret()` says where the caller is; None where it says nothing."""
python_frames: ContextVar[bool] = ContextVar("python_frames", default=False)
"""Whether the kernel that is running is the Python function itself, so that its calls are Python's own."""


_looked_at: ContextVar[tuple[JITCallable, ...]] = ContextVar("_looked_at", default=())
"""The functions whose fingerprints are being made here: one that calls itself is met again among them."""

KERNELS: WeakValueDictionary[int, KernelInterface] = WeakValueDictionary()
"""The kernels of this process, by number: what Dynamo can hold in place of a kernel."""

_numbers = itertools.count()

_tracing: Callable[[], bool] | None = None
"""Whether Dynamo is tracing, where torch is loaded: then a launch becomes an operator of the graph."""


def _meet_torch() -> None:
    """Have launches inside of `torch.compile` seen, once torch is there."""
    global _tracing
    if _tracing is None and (torch := sys.modules.get("torch")) is not None and hasattr(torch, "compiler"):
        _tracing = torch.compiler.is_dynamo_compiling


def interpreting() -> bool:
    """Whether kernels run as Python: `interpret()`, else `WEFT_INTERPRET`, else `TRITON_INTERPRET`."""
    chosen = _interpreted.get()
    if chosen is not None:
        return chosen
    return truth("WEFT_INTERPRET", default=os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"))


@contextmanager
def interpret(enabled: bool = True, races: bool = True) -> Generator[None]:
    """Run the kernels that are launched in here as Python, with real frames: step, print, inspect.

    Tensors that `torch.empty` makes in here are known as uninitialised until something is written to them. Programs
    that write to one place are an error; for a kernel that does so on purpose, `races=False`.
    """
    from weft.frontends.triton.builders import uninitialised, watched_memory

    token, watched = _interpreted.set(enabled), watched_memory.races.set(races)
    try:
        with uninitialised.watching() if enabled else nullcontext():
            yield
    finally:
        _interpreted.reset(token)
        watched_memory.races.reset(watched)


def is_traced() -> bool:
    """Whether Dynamo is tracing what runs here."""
    return _tracing is not None and _tracing()


def is_captured() -> bool:
    """Whether a function is being captured as a graph here: only torch's front end does that, once it is loaded."""
    front = sys.modules.get("weft.frontends.torch.func.capturing")
    return front is not None and front.current_capture() is not None


def is_count(name: str, value: Any) -> bool:
    """Whether an option of a launch that counts something has a value that it can have."""
    if value is None:
        return True
    if type(value) is not int and not hasattr(value, "__index__"):
        return False
    number = operator.index(value)
    if name in ("num_warps", "num_ctas"):
        return number > 0 and not number & (number - 1)
    return number >= (0 if name == "num_stages" else 1)


def options_fit(options: Mapping[str, Any]) -> bool:
    """Whether the options of a launch are known, counts where they count, and nothing is to be said of them."""
    counts = all([is_count(name, options[name]) for name in COUNTS if name in options])
    return counts and OPTIONS.issuperset(options) and all_told(options)


class KernelInterface:
    """What can be launched over a grid."""

    weft_number: int
    """Which of this process's kernels it is: libraries derive classes, whose names are not to meet with ours."""

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **keywords: Any) -> Any:
        """Launch the kernel, or with `warmup` only compile it."""
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Grid, **keywords: Any) -> Any:
        """Compile for arguments like these without running; element types stand for tensors of them."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **keywords)

    def __getitem__(self, grid: Grid) -> Callable[..., Any]:
        """`kernel[grid](...)`: launch so many programs."""

        def launch(*args: Any, **keywords: Any) -> Any:
            if is_traced() or is_captured():
                from weft.frontends.triton.torch.bridge import launch_traced

                return launch_traced(self, grid, args, keywords)
            return self.run(*args, grid=grid, warmup=False, **keywords)

        return launch


def register(kernel: KernelInterface) -> None:
    """Let a kernel be known by a number."""
    kernel.weft_number = next(_numbers)
    KERNELS[kernel.weft_number] = kernel
    _meet_torch()


class JITCallable:
    """A function that may be called from a kernel."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.source = Source(fn)
        self.signature = inspect.signature(fn)
        self._fingerprint: Fingerprint | None = None
        self.__doc__ = fn.__doc__
        self.__name__ = fn.__name__
        self.__qualname__ = fn.__qualname__
        self.__globals__ = fn.__globals__
        self.__module__ = fn.__module__

    @property
    def raw_src(self) -> list[str]:
        """The lines of the function, decorators included."""
        return self.source.raw_lines[0]

    @property
    def starting_line_number(self) -> int:
        """The line of the first decorator."""
        return self.source.raw_lines[1]

    @property
    def src(self) -> str:
        """The text of the function from `def` on."""
        return self.source.text

    def parse(self) -> ast.Module:
        """The syntax tree of the function, in a module."""
        return ast.Module([self.source.parse()], [])

    def get_capture_scope(self) -> dict[str, Any]:
        """The names that the function sees beside its own."""
        return {**self.__globals__, **inspect.getclosurevars(self.fn).nonlocals}

    def fingerprint(self) -> Fingerprint:
        """What a compiled form of this function depends on; made anew when a global has changed."""
        known, active = self._fingerprint, _looked_at.get()
        if known is not None and known.holds():
            return known
        if self in active:
            return Fingerprint(f"recursion in {self.__qualname__}", whole=False)
        token = _looked_at.set((*active, self))
        try:
            made = fingerprint(self.source, _nested, f"{self.__module__}.{self.__qualname__}")
        finally:
            _looked_at.reset(token)
        if made.whole or not active:  # a part of a recursion has not seen the whole of it
            made.whole = True
            self._fingerprint = made
        return made

    @property
    def cache_key(self) -> str:
        """A digest of the function, of those that it calls and of the globals it uses."""
        return self.fingerprint().digest

    @property
    def type(self) -> constexpr_type:
        return constexpr_type(self)

    def _unsafe_update_src(self, new_src: str) -> None:
        """Compile another text in place of the one that the file has."""
        self._fingerprint = None
        self.source.replace(new_src)


def _nested(value: Any) -> Fingerprint | None:
    value = unwrap(value)
    while isinstance(value, KernelInterface) and not isinstance(value, JITFunction):
        value = getattr(value, "fn", None)  # of an autotuned kernel
    return value.fingerprint() if isinstance(value, JITCallable) else None


class JITFunction(JITCallable, KernelInterface):
    """A kernel: a Python function in Triton's language."""

    watcher: Callable[[JITFunction, tuple[Any, ...], dict[str, Any]], Any] | None = None
    """Told of every launch of any kernel."""

    def __init__(
        self,
        fn: Callable[..., Any],
        version: Any = None,
        do_not_specialize: Iterable[int | str] | None = None,
        do_not_specialize_on_alignment: Iterable[int | str] | None = None,
        debug: bool | None = None,
        noinline: bool | None = None,
        repr: Callable[[Any], str] | None = None,
        launch_metadata: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(fn)
        self.module = fn.__module__
        self.version, self.debug, self.noinline = version, debug, noinline
        self.launch_metadata = launch_metadata
        self._repr = repr
        self.do_not_specialize = list(do_not_specialize or ())
        self.do_not_specialize_on_alignment = list(do_not_specialize_on_alignment or ())
        self.params = [
            Parameter(
                number,
                parameter,
                not ({number, parameter.name} & {*self.do_not_specialize}),
                not ({number, parameter.name} & {*self.do_not_specialize_on_alignment}),
            )
            for number, parameter in enumerate(self.signature.parameters.values())
        ]
        self.arg_names = [parameter.name for parameter in self.params]
        self.constexprs = [parameter.num for parameter in self.params if parameter.is_constexpr]
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self.by_environment = interpreting()
        self.defaults = {parameter.name: parameter.default for parameter in self.params if parameter.has_default}
        self.constant_names = [parameter.name for parameter in self.params if parameter.is_constexpr]
        register(self)

    def run(self, *args: Any, grid: Grid, warmup: bool = False, **keywords: Any) -> Any:
        for hook in self.pre_run_hooks:
            hook(*args, **keywords)
        if self.watcher is not None:
            self.watcher(self, args, keywords)
        if self.is_interpreted():
            return None if warmup else self.launcher.interpret(args, grid, keywords)
        if warmup:
            return self.launcher.compiled(args, keywords)
        if ENTER.calls or EXIT.calls:
            return self._run_told(args, grid, keywords)
        return self.launcher.run(grid, *args, **keywords)

    def _run_told(self, args: tuple[Any, ...], grid: Grid, keywords: dict[str, Any]) -> Any:
        """Launch between the hooks that are told of every launch."""
        kernel = self.launcher.compiled(args, keywords)
        values, _ = self.launcher.bind(*args, **keywords)
        facts = LaunchFacts(self, grid, kernel, dict(zip(self.arg_names, values, strict=True)))
        ENTER(facts)
        self.launcher.run(grid, *args, **keywords)
        EXIT(facts)
        return kernel

    def __getitem__(self, grid: Grid) -> Callable[..., Any]:
        """`kernel[grid](...)`: launch so many programs."""

        if is_traced() or is_captured():
            return super().__getitem__(grid)
        return partial(self.launcher.launch, grid)

    def is_interpreted(self) -> bool:
        """Asked at each launch: the environment is looked at when the kernel is made, `interpret()` now."""
        chosen = _interpreted.get()
        return self.by_environment if chosen is None else chosen

    @cached_property
    def launcher(self) -> Launcher:
        """Binds arguments, and keeps what was compiled for them."""
        from weft.frontends.triton.runtime.launch import Launcher

        return Launcher(self)

    @property
    def device_caches(self) -> Mapping[Any, Any]:
        """What was compiled in this process, under the device: the processor."""
        return {0: (self.launcher.kernels, {}, None, None, None)}

    @staticmethod
    @contextmanager
    def watching(see: Callable[[JITFunction, tuple[Any, ...], dict[str, Any]], Any]) -> Generator[None]:
        """Have a function told of every launch: the kernel, the arguments, the keywords."""
        before, JITFunction.watcher = JITFunction.watcher, staticmethod(see)
        try:
            yield
        finally:
            JITFunction.watcher = before

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """Have a function called with the arguments before each launch."""
        self.pre_run_hooks.append(hook)

    def repr(self, specialization: Any) -> str:
        """The name that a compiled form goes by."""
        return self.__qualname__ if self._repr is None else self._repr(specialization)

    def is_gluon(self) -> bool:
        return False

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """A call from within a kernel."""
        if builder.current.get(None) is None:
            raise LaunchError(
                f"{self.__name__} is a kernel: Cannot call @triton.jit'd outside of the scope of a kernel",
                hint=f"launch it over a grid: {self.__name__}[grid](...)",
            )
        if python_frames.get():
            return self.fn(*args, **keywords)
        from weft.frontends.triton.compiler.compile_function import build_function

        return build_function(self, args, keywords)

    def __repr__(self) -> str:
        return f"JITFunction({self.module}:{self.__qualname__})"


@overload
def jit(fn: Callable[..., Any]) -> JITFunction: ...
@overload
def jit(
    *,
    version: Any = None,
    repr: Callable[[Any], str] | None = None,
    launch_metadata: Callable[..., Any] | None = None,
    do_not_specialize: Iterable[int | str] | None = None,
    do_not_specialize_on_alignment: Iterable[int | str] | None = None,
    debug: bool | None = None,
    noinline: bool | None = None,
) -> Callable[[Callable[..., Any]], JITFunction]: ...
def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Make a kernel of a function in Triton's language; it is compiled for the arguments it is launched with."""
    if fn is None:
        return lambda function: JITFunction(function, **options)
    return JITFunction(fn, **options)
