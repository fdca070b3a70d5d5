"""Fixtures of the tests of executors."""

from .processor_as_gpu import carried_out, phased, processor_as_gpu

__all__ = ["carried_out", "phased", "processor_as_gpu"]
