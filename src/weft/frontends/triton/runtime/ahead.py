"""`triton.compile(ASTSource(...))`: a kernel compiled for types that are written down, without a launch.

compile(ASTSource(kernel, {"x": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 64}))  ──►  a compiled kernel
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from weft.frontends.triton.errors import ArgumentError, KernelTypeError, KernelValueError
from weft.frontends.triton.language.constants import constexpr_type, unwrap
from weft.frontends.triton.language.types import dtype, pointer_type
from weft.frontends.triton.runtime.compiled import CompiledKernel
from weft.frontends.triton.runtime.compiling import kernel_code
from weft.frontends.triton.runtime.jit import JITFunction
from weft.frontends.triton.runtime.kernel_handle import Origin
from weft.frontends.triton.runtime.specialise import ANNOTATIONS, Described, Word
from weft.frontends.triton.tuning.autotune import kernel_of

_CONSTANT = "constexpr"


class ASTSource:
    """A kernel and what to compile it for: the types of parameters by name, and the values of those that are known."""

    def __init__(
        self,
        fn: Any,
        signature: Mapping[str, str],
        constexprs: Mapping[Any, Any] | None = None,
        attrs: Mapping[Any, Any] | None = None,
    ) -> None:
        self.fn: JITFunction = kernel_of(fn)
        self.name = self.fn.__name__
        self.signature = dict(signature)
        wrong = [name for name in self.signature if name not in self.fn.arg_names]
        if wrong:
            raise ArgumentError(f"{self.name} has no parameter {wrong[0]}", hint=f"it has {self.fn.arg_names}")
        names = self.fn.arg_names
        self.constants: dict[str, Any] = {}
        for key, value in (constexprs or {}).items():
            self.constants[key if isinstance(key, str) else names[key[0]]] = value
        self.attrs = dict(attrs or {})

    def hash(self) -> str:
        """A digest of all that the compiled kernel depends on."""
        parts = [self.fn.cache_key, sorted(self.signature.items()), sorted(self.constants.items()), str(self.attrs)]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def described(self) -> list[Described]:
        """What the kernel is compiled for, parameter by parameter."""
        return [self._described(parameter.name, parameter.default) for parameter in self.fn.params]

    def _described(self, name: str, default: Any) -> Described:
        text = self.signature.get(name, _CONSTANT)
        if name in self.constants:
            return Described(constexpr_type(unwrap(self.constants[name])))
        if text != _CONSTANT:
            return _typed(name, text)
        if default is self.fn.signature.empty:
            raise KernelValueError(
                f"{self.name}: neither a type nor a value is given for {name}",
                hint='name it in the signature, {"x": "*fp32"}, or give its value in `constexprs`',
            )
        return Described(constexpr_type(unwrap(default)))


def _typed(name: str, text: str) -> Described:
    element = ANNOTATIONS.get(text.lstrip("*k"))
    if element is None:
        raise KernelTypeError(f"{name}: {text} is not a type", hint='types are "*fp32", "i32", "fp16", "constexpr" ...')
    scalar = dtype(element)
    if text.startswith("*"):
        return Described(pointer_type(scalar, const=text.startswith("*k")), (Word(scalar.stored, pointer=True),))
    return Described(scalar, (Word(scalar.stored),))


class AheadKernel(CompiledKernel):
    """A kernel compiled without a launch, with its text at every level."""

    def __init__(self, source: ASTSource, described: list[Described], debug: bool) -> None:
        super().__init__(kernel_code(source.fn, described, None, debug))
        self._source = source
        self.origin = Origin(source.fn, described, None, {"debug": debug})

    @property
    def src(self) -> ASTSource:
        return self._source

    @property
    def hash(self) -> str:
        """A digest of all that it depends on."""
        return self._source.hash()


def compile(src: Any, target: Any = None, options: Mapping[str, Any] | None = None) -> AheadKernel:
    """Compile a kernel for this processor."""
    if not isinstance(src, ASTSource):
        raise KernelTypeError(
            f"{type(src).__name__} cannot be compiled", hint="pass triton.compiler.ASTSource(fn, signature, constexprs)"
        )
    if target is not None and target.backend != "cpu":
        raise KernelValueError(f"there is no backend for {target}", hint="leave `target` out: kernels run on the CPU")
    return AheadKernel(src, src.described(), bool((options or {}).get("debug", src.fn.debug)))
