"""`triton.language.extra`: functions of device libraries."""

from weft.triton.language.extra import cuda as cuda
from weft.triton.language.extra import hip as hip
from weft.triton.language.extra import libdevice as libdevice
