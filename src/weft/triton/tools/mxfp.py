"""`triton.tools.mxfp`."""

from weft.frontends.triton.mxfp import MXFP4Tensor as MXFP4Tensor
from weft.frontends.triton.mxfp import MXScaleTensor as MXScaleTensor
