"""`triton.language.math`."""

from weft.frontends.triton.language.elementary import abs as abs
from weft.frontends.triton.language.elementary import ceil as ceil
from weft.frontends.triton.language.elementary import cos as cos
from weft.frontends.triton.language.elementary import div_rn as div_rn
from weft.frontends.triton.language.elementary import erf as erf
from weft.frontends.triton.language.elementary import exp as exp
from weft.frontends.triton.language.elementary import exp2 as exp2
from weft.frontends.triton.language.elementary import fdiv as fdiv
from weft.frontends.triton.language.elementary import floor as floor
from weft.frontends.triton.language.elementary import fma as fma
from weft.frontends.triton.language.elementary import log as log
from weft.frontends.triton.language.elementary import log2 as log2
from weft.frontends.triton.language.elementary import rsqrt as rsqrt
from weft.frontends.triton.language.elementary import sin as sin
from weft.frontends.triton.language.elementary import sqrt as sqrt
from weft.frontends.triton.language.elementary import sqrt_rn as sqrt_rn
from weft.frontends.triton.language.elementary import umulhi as umulhi
