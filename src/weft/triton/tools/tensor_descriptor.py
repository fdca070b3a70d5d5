"""Triton's name for a tensor descriptor that is made on the host."""

from weft.frontends.triton.runtime.host_descriptor import TensorDescriptor as TensorDescriptor
