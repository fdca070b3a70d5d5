"""Settings under the names that Triton gives them: attributes that follow environment variables.

Few have a meaning on a CPU. The others can be set and read, so that programs that do so work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from weft.frontends.triton.runtime.hooks import COMPILED, ENTER, EXIT
from weft.frontends.triton.runtime.hooks import HookChain as HookChain

propagate_env: bool = True
"""Whether what is set here is put into the environment too, for child processes."""


class Knob:
    """A setting: what was assigned, else the environment variable, else the default."""

    def __init__(self, key: str, default: Any = None, parse: Callable[[str], Any] = str) -> None:
        self.key, self.default, self.parse = key, default, parse

    def __set_name__(self, owner: type[base_knobs], name: str) -> None:
        self.name = name
        owner.knob_descriptors = {**owner.knob_descriptors, name: self}

    def __get__(self, instance: base_knobs | None, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if self.name in instance.__dict__:
            return instance.__dict__[self.name]
        text = os.environ.get(self.key) if self.key else None
        return self.default if text is None else self.parse(text)

    def __set__(self, instance: base_knobs, value: Any) -> None:
        instance.__dict__[self.name] = value
        if propagate_env and self.key and isinstance(value, bool | int | str):
            os.environ[self.key] = str(int(value)) if isinstance(value, bool) else str(value)

    def __delete__(self, instance: base_knobs) -> None:
        instance.__dict__.pop(self.name, None)


def _flag(key: str, default: bool = False) -> Knob:
    return Knob(key, default, lambda text: text.lower() not in ("", "0", "false", "off", "no"))


class _Hooks:
    """A chain of functions; one that is assigned takes the place of all."""

    def __init__(self, chain: HookChain) -> None:
        self.chain = chain

    def __get__(self, instance: base_knobs | None, owner: type | None = None) -> Any:
        return self.chain

    def __set__(self, instance: base_knobs, value: Any) -> None:
        if value is not self.chain:
            self.chain.calls[:] = value.calls if isinstance(value, HookChain) else [] if value is None else [value]


class _Hook(_Hooks):
    """One function, or None."""

    def __get__(self, instance: base_knobs | None, owner: type | None = None) -> Any:
        return self.chain.calls[0] if self.chain.calls else None


class base_knobs:
    """A group of settings."""

    knob_descriptors: ClassVar[dict[str, Knob]] = {}

    def copy(self) -> Self:
        made = type(self)()
        made.__dict__.update(self.__dict__)
        return made

    def reset(self) -> Self:
        """Forget what was assigned."""
        self.__dict__.clear()
        return self

    @contextmanager
    def scope(self) -> Generator[None]:
        """Put back at the end what is changed inside."""
        before = dict(self.__dict__)
        environment = {knob.key: os.environ.get(knob.key) for knob in self.knob_descriptors.values() if knob.key}
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)
            for key, value in environment.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


class runtime_knobs(base_knobs):
    interpret = _flag("TRITON_INTERPRET")
    debug = _flag("TRITON_DEBUG")
    sanitize_overflow = _flag("TRITON_SANITIZE_OVERFLOW", True)
    override_arch = Knob("TRITON_OVERRIDE_ARCH")
    launch_enter_hook = _Hooks(ENTER)
    launch_exit_hook = _Hooks(EXIT)
    kernel_load_start_hook = _Hooks(HookChain())
    kernel_load_end_hook = _Hooks(HookChain(reversed=True))
    kernel_unload_hook = _Hooks(HookChain())
    jit_cache_hook = Knob("")
    jit_post_compile_hook = _Hook(COMPILED)
    add_stages_inspection_hook = Knob("")


class cache_knobs(base_knobs):
    dir = Knob("TRITON_CACHE_DIR")
    home_dir = Knob("TRITON_HOME")
    dump_dir = Knob("TRITON_DUMP_DIR")
    override_dir = Knob("TRITON_OVERRIDE_DIR")


class compilation_knobs(base_knobs):
    override = _flag("TRITON_KERNEL_OVERRIDE")
    dump_ir = _flag("TRITON_KERNEL_DUMP")
    store_binary_only = _flag("TRITON_STORE_BINARY_ONLY")
    always_compile = _flag("TRITON_ALWAYS_COMPILE")
    use_ir_loc = Knob("USE_IR_LOC")
    enable_asan = _flag("TRITON_ENABLE_ASAN")
    disable_line_info = _flag("TRITON_DISABLE_LINE_INFO")
    front_end_debugging = _flag("TRITON_FRONT_END_DEBUGGING")
    allow_non_constexpr_globals = _flag("TRITON_ALLOW_NON_CONSTEXPR_GLOBALS")
    instrumentation_mode = Knob("TRITON_INSTRUMENTATION_MODE", "")
    listener = Knob("")


class autotuning_knobs(base_knobs):
    cache = _flag("TRITON_CACHE_AUTOTUNING", True)
    print = _flag("TRITON_PRINT_AUTOTUNING")


class language_knobs(base_knobs):
    fp32_default = Knob("TRITON_F32_DEFAULT")
    default_fp_fusion = _flag("TRITON_DEFAULT_FP_FUSION", True)


class build_knobs(base_knobs):
    cc = Knob("CC")
    backend_dirs = Knob("", frozenset())


class redis_knobs(base_knobs):
    host = Knob("TRITON_REDIS_HOST", "localhost")
    port = Knob("TRITON_REDIS_PORT", 6379, int)


class nvidia_knobs(base_knobs):
    ptxas = Knob("TRITON_PTXAS_PATH")
    nvdisasm = Knob("TRITON_NVDISASM_PATH")
    libdevice_path = Knob("TRITON_LIBDEVICE_PATH")


class amd_knobs(base_knobs):
    use_buffer_ops = _flag("AMDGCN_USE_BUFFER_OPS")
    use_async_copy = Knob("TRITON_HIP_USE_ASYNC_COPY")
    use_block_pingpong = Knob("TRITON_HIP_USE_BLOCK_PINGPONG")


class proton_knobs(base_knobs):
    disable = _flag("TRITON_PROTON_DISABLE")


build = build_knobs()
redis = redis_knobs()
cache = cache_knobs()
compilation = compilation_knobs()
autotuning = autotuning_knobs()
runtime = runtime_knobs()
language = language_knobs()
nvidia = nvidia_knobs()
amd = amd_knobs()
proton = proton_knobs()
