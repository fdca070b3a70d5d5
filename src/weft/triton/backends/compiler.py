"""Triton's name for a target."""

from weft.frontends.triton.target import GPUTarget as GPUTarget
