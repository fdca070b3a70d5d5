"""Triton's language on Weft: the names and the meaning of Triton 3.7.

`import weft.triton as triton`, `import weft.triton.language as tl`, and kernels are as for Triton. `enable()` makes
`import triton` itself find this package.
"""

from weft.frontends.triton.builders.uninitialised import watch as _watch
from weft.frontends.triton.compiler.constexpr_function import constexpr_function as constexpr_function
from weft.frontends.triton.enable import enable as enable
from weft.frontends.triton.errors import CompilationError as CompilationError
from weft.frontends.triton.errors import InterpreterError as InterpreterError
from weft.frontends.triton.errors import OutOfResources as OutOfResources
from weft.frontends.triton.errors import TritonError as TritonError
from weft.frontends.triton.language.elementwise import must_use_result as must_use_result
from weft.frontends.triton.runtime.ahead import compile as compile
from weft.frontends.triton.runtime.jit import JITFunction as JITFunction
from weft.frontends.triton.runtime.jit import KernelInterface as KernelInterface
from weft.frontends.triton.runtime.jit import interpret as interpret
from weft.frontends.triton.runtime.jit import interpreting as _interpreting
from weft.frontends.triton.runtime.jit import jit as jit
from weft.frontends.triton.runtime.sizes import cdiv as cdiv
from weft.frontends.triton.runtime.sizes import next_power_of_2 as next_power_of_2
from weft.frontends.triton.runtime.sizes import set_allocator as set_allocator
from weft.frontends.triton.runtime.stand_ins import MockTensor as MockTensor
from weft.frontends.triton.runtime.stand_ins import TensorWrapper as TensorWrapper
from weft.frontends.triton.runtime.stand_ins import reinterpret as reinterpret
from weft.frontends.triton.tuning.autotune import autotune as autotune
from weft.frontends.triton.tuning.autotune import heuristics as heuristics
from weft.frontends.triton.tuning.config import Config as Config
from weft.triton import compiler as compiler
from weft.triton import knobs as knobs
from weft.triton import language as language
from weft.triton import runtime as runtime
from weft.triton import testing as testing
from weft.triton import tools as tools

__version__ = "3.7.1"
"""The version of Triton whose names and rules these are."""

if _interpreting():
    _watch()
