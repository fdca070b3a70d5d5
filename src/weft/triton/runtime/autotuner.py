"""Triton's names for tuning."""

from weft.frontends.triton.autotune import Autotuner as Autotuner
from weft.frontends.triton.autotune import Heuristics as Heuristics
from weft.frontends.triton.autotune import autotune as autotune
from weft.frontends.triton.autotune import heuristics as heuristics
from weft.frontends.triton.config import Config as Config
