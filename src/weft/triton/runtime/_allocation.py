"""Triton's names for memory that a kernel gets beside its arguments."""

from weft.frontends.triton.runtime.sizes import NullAllocator as NullAllocator
from weft.frontends.triton.runtime.sizes import set_allocator as set_allocator
