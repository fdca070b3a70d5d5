"""The base of Triton's errors."""

from weft.frontends.triton.errors import TritonError as TritonError
