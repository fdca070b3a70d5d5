"""Converters from ATen operators to graph ops, a file a family. Importing this package fills `CONVERTERS`."""

from weft.frontends.torch.aten import antialiasing as antialiasing
from weft.frontends.torch.aten import attention as attention
from weft.frontends.torch.aten import attention_gradients as attention_gradients
from weft.frontends.torch.aten import backward as backward
from weft.frontends.torch.aten import convolution as convolution
from weft.frontends.torch.aten import create as create
from weft.frontends.torch.aten import distance as distance
from weft.frontends.torch.aten import embedding as embedding
from weft.frontends.torch.aten import foreach as foreach
from weft.frontends.torch.aten import index as index
from weft.frontends.torch.aten import kernels as kernels
from weft.frontends.torch.aten import linalg as linalg
from weft.frontends.torch.aten import nn as nn
from weft.frontends.torch.aten import packed_attention as packed_attention
from weft.frontends.torch.aten import pointwise as pointwise
from weft.frontends.torch.aten import pooling as pooling
from weft.frontends.torch.aten import random as random
from weft.frontends.torch.aten import recurrent as recurrent
from weft.frontends.torch.aten import reduction as reduction
from weft.frontends.torch.aten import sampling as sampling
from weft.frontends.torch.aten import scatter as scatter
from weft.frontends.torch.aten import searching as searching
from weft.frontends.torch.aten import shape as shape
from weft.frontends.torch.aten import sorting as sorting
from weft.frontends.torch.aten.complex import COMPLEX_CONVERTERS as COMPLEX_CONVERTERS
from weft.frontends.torch.aten.table import CONVERTERS as CONVERTERS
