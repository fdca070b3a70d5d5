"""Triton's names for kernels and what they take."""

from weft.frontends.triton.compiler.constexpr_function import BoundConstexprFunction as BoundConstexprFunction
from weft.frontends.triton.compiler.constexpr_function import ConstexprFunction as ConstexprFunction
from weft.frontends.triton.compiler.constexpr_function import constexpr_function as constexpr_function
from weft.frontends.triton.runtime.hooks import JitFunctionInfo as JitFunctionInfo
from weft.frontends.triton.runtime.hooks import serialize_specialization_data as serialize_specialization_data
from weft.frontends.triton.runtime.jit import JITCallable as JITCallable
from weft.frontends.triton.runtime.jit import JITFunction as JITFunction
from weft.frontends.triton.runtime.jit import KernelInterface as KernelInterface
from weft.frontends.triton.runtime.jit import jit as jit
from weft.frontends.triton.runtime.specialise import SHORT_NAMES, Parameter
from weft.frontends.triton.runtime.stand_ins import MockTensor as MockTensor
from weft.frontends.triton.runtime.stand_ins import TensorWrapper as TensorWrapper
from weft.frontends.triton.runtime.stand_ins import reinterpret as reinterpret

KernelParam = Parameter
type_canonicalisation_dict = SHORT_NAMES
