"""Triton's names for tuning."""

from weft.frontends.triton.errors import OutOfResources as OutOfResources
from weft.frontends.triton.tuning.autotune import Autotuner as Autotuner
from weft.frontends.triton.tuning.autotune import Heuristics as Heuristics
from weft.frontends.triton.tuning.autotune import autotune as autotune
from weft.frontends.triton.tuning.autotune import heuristics as heuristics
from weft.frontends.triton.tuning.config import Config as Config
