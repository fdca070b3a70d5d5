"""`triton.language.extra.hip`: its library of functions, which the CPU has too."""

from weft.triton.language.extra.hip import libdevice as libdevice
