"""`triton.language.extra.cuda`: its library of functions, which the CPU has too."""

from weft.triton.language.extra.cuda import libdevice as libdevice
