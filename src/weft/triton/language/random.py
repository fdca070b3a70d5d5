"""`triton.language.random`."""

from weft.frontends.triton.language.random import N_ROUNDS_DEFAULT as N_ROUNDS_DEFAULT
from weft.frontends.triton.language.random import pair_uniform_to_normal as pair_uniform_to_normal
from weft.frontends.triton.language.random import philox as philox
from weft.frontends.triton.language.random import philox_impl as philox_impl
from weft.frontends.triton.language.random import rand as rand
from weft.frontends.triton.language.random import rand4x as rand4x
from weft.frontends.triton.language.random import randint as randint
from weft.frontends.triton.language.random import randint4x as randint4x
from weft.frontends.triton.language.random import randn as randn
from weft.frontends.triton.language.random import randn4x as randn4x
from weft.frontends.triton.language.random import uint_to_uniform_float as uint_to_uniform_float
