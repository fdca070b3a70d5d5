"""The graph dialect: whole-tensor ops, one class each. Importing this package fills the registry."""

from weft.ops import activation as activation
from weft.ops import arithmetic as arithmetic
from weft.ops import attention as attention
from weft.ops import bitwise as bitwise
from weft.ops import cast as cast
from weft.ops import comparison as comparison
from weft.ops import convolution as convolution
from weft.ops import create as create
from weft.ops import dot as dot
from weft.ops import fold as fold
from weft.ops import grid_sample as grid_sample
from weft.ops import index as index
from weft.ops import movement as movement
from weft.ops import pool as pool
from weft.ops import random as random
from weft.ops import reduce as reduce
from weft.ops import resize as resize
from weft.ops import rounding as rounding
from weft.ops import scan as scan
from weft.ops import scatter as scatter
from weft.ops import select as select
from weft.ops import shape as shape
from weft.ops import sort as sort
from weft.ops import special as special
from weft.ops import transcendental as transcendental
