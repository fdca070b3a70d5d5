"""`triton.language.extra`: functions of device libraries."""

from weft.triton.language.extra import libdevice as libdevice
