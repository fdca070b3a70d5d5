"""Triton's names for launching and tuning."""

from weft.frontends.triton.autotune import Autotuner as Autotuner
from weft.frontends.triton.autotune import Heuristics as Heuristics
from weft.frontends.triton.autotune import autotune as autotune
from weft.frontends.triton.autotune import heuristics as heuristics
from weft.frontends.triton.config import Config as Config
from weft.frontends.triton.errors import InterpreterError as InterpreterError
from weft.frontends.triton.errors import OutOfResources as OutOfResources
from weft.frontends.triton.jit import JITFunction as JITFunction
from weft.frontends.triton.jit import KernelInterface as KernelInterface
from weft.frontends.triton.stand_ins import MockTensor as MockTensor
from weft.frontends.triton.stand_ins import TensorWrapper as TensorWrapper
from weft.frontends.triton.stand_ins import reinterpret as reinterpret
from weft.triton.runtime.driver import driver as driver
