"""`triton.language.math`."""

from weft.frontends.triton.elementary import abs as abs
from weft.frontends.triton.elementary import ceil as ceil
from weft.frontends.triton.elementary import cos as cos
from weft.frontends.triton.elementary import div_rn as div_rn
from weft.frontends.triton.elementary import erf as erf
from weft.frontends.triton.elementary import exp as exp
from weft.frontends.triton.elementary import exp2 as exp2
from weft.frontends.triton.elementary import fdiv as fdiv
from weft.frontends.triton.elementary import floor as floor
from weft.frontends.triton.elementary import fma as fma
from weft.frontends.triton.elementary import log as log
from weft.frontends.triton.elementary import log2 as log2
from weft.frontends.triton.elementary import rsqrt as rsqrt
from weft.frontends.triton.elementary import sin as sin
from weft.frontends.triton.elementary import sqrt as sqrt
from weft.frontends.triton.elementary import sqrt_rn as sqrt_rn
from weft.frontends.triton.elementary import umulhi as umulhi
