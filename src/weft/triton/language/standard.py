"""`triton.language.standard`."""

from weft.frontends.triton.language.elementary import cdiv as cdiv
from weft.frontends.triton.language.elementary import sigmoid as sigmoid
from weft.frontends.triton.language.elementary import softmax as softmax
from weft.frontends.triton.language.reductions import argmax as argmax
from weft.frontends.triton.language.reductions import argmin as argmin
from weft.frontends.triton.language.reductions import bitonic_merge as bitonic_merge
from weft.frontends.triton.language.reductions import cumprod as cumprod
from weft.frontends.triton.language.reductions import cumsum as cumsum
from weft.frontends.triton.language.reductions import max as max
from weft.frontends.triton.language.reductions import min as min
from weft.frontends.triton.language.reductions import reduce_or as reduce_or
from weft.frontends.triton.language.reductions import sort as sort
from weft.frontends.triton.language.reductions import sum as sum
from weft.frontends.triton.language.reductions import topk as topk
from weft.frontends.triton.language.reductions import xor_sum as xor_sum
from weft.frontends.triton.language.shapes import flip as flip
from weft.frontends.triton.language.shapes import interleave as interleave
from weft.frontends.triton.language.shapes import ravel as ravel
from weft.frontends.triton.language.shapes import squeeze as squeeze
from weft.frontends.triton.language.shapes import swizzle2d as swizzle2d
from weft.frontends.triton.language.shapes import unsqueeze as unsqueeze
from weft.frontends.triton.language.shapes import zeros as zeros
from weft.frontends.triton.language.shapes import zeros_like as zeros_like
from weft.frontends.triton.runtime import sizes as _sizes

_is_power_of_two, _log2 = _sizes.is_power_of_two, _sizes.log2
