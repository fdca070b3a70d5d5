"""Triton's name for the device."""

from weft.frontends.triton.target import driver as driver
