"""The Airy function of torch, which has no op of its own: waves below, its power series near 0, decay above.

`decompositions` traces it into elementwise ops where a graph has it.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.frontends.torch.capture.series import float_result, polynomial, widened

_AN = (
    0.346538101525629,
    12.007595273964581,
    76.27960536152345,
    168.08922493463058,
    159.75639135016442,
    70.53609068404442,
    14.026469116338967,
    1.0,
)
"""The decay from 2.09 on, in the inverse of 2/3 x√x: numerator."""

_AD = (
    0.5675945326387702,
    14.75625625848472,
    84.51389701414746,
    177.31808814540045,
    164.2346928715297,
    71.47784008255756,
    14.095913560783403,
    1.0,
)
"""And denominator."""

_AFN = (
    -0.1316963234183318,
    -0.6264565444319123,
    -0.6931580360369335,
    -0.2797799815451191,
    -0.04919001326095003,
    -0.004062659235948854,
    -0.0001592764962392621,
    -2.776491081552329e-06,
    -1.6778769848911465e-08,
)
"""The first wave's share below -2.09, in the square of that: numerator."""

_AFD = (
    13.356042070655324,
    32.682503279522464,
    26.736704094149957,
    9.187074029072596,
    1.4752914677166642,
    0.11568717379518804,
    0.004402916416152112,
    7.547203482874142e-05,
    4.5185009297058035e-07,
)
"""And denominator."""

_AGN = (
    0.01973399320916857,
    0.39110302961568827,
    1.0657989759959559,
    0.9391692298166502,
    0.35146565610554764,
    0.06338889196289255,
    0.005858041130483885,
    0.000282851600836737,
    6.98793669997261e-06,
    8.117892395543892e-08,
    3.415517847659236e-10,
)
"""The second wave's share: numerator."""

_AGD = (
    9.30892908077442,
    19.835292871831214,
    15.564662893286462,
    5.476860694229755,
    0.9542936116189619,
    0.08645808263523921,
    0.004126565238242226,
    0.00010125908511650914,
    1.1716673321441352e-06,
    4.9183457006293e-09,
)
"""And denominator."""

_BORDER = 2.09
_LAST = 103.892
"""Beyond it, the function is smaller than any float."""
_AT_ZERO, _SLOPE = 0.3550280538878172, 0.2588194037928068
_TERMS = 18
"""Of each of the two power series: up to the border, the next is below 1e-17 of the first."""


def _series(shift: int) -> tuple[float, ...]:
    """Coefficients of x³: 1, 1/(2·3), 1/(2·3·5·6) … or, shifted, 1, 1/(3·4), 1/(3·4·6·7) …; the highest first."""
    found = [1.0]
    for n in range(1, _TERMS):
        found.append(found[-1] / ((3 * n - 1 + shift) * (3 * n + shift)))
    return tuple(reversed(found))


_EVEN, _ODD = _series(0), _series(1)


def airy_ai(x: Tensor) -> Tensor:
    """The Airy function of the first kind."""
    wide = widened(x)
    size = wide.abs()
    root = torch.sqrt(size)
    angle = 2 * size * root / 3
    scale = 1 / (math.sqrt(math.pi) * torch.sqrt(root))
    z = 1 / angle
    square, turned = z * z, angle + 0.25 * math.pi
    first = 1 + square * polynomial(square, _AFN) / polynomial(square, _AFD)
    second = z * polynomial(square, _AGN) / polynomial(square, _AGD)
    wave = scale * (torch.sin(turned) * first - torch.cos(turned) * second)
    decay = 0.5 * scale * polynomial(z, _AN) / polynomial(z, _AD) * torch.exp(-angle)
    cube = wide * wide * wide
    near = _AT_ZERO * polynomial(cube, _EVEN) - _SLOPE * wide * polynomial(cube, _ODD)
    found = torch.where(wide < -_BORDER, wave, torch.where(wide < _BORDER, near, decay))
    found = torch.where(torch.isinf(wide), math.nan, torch.where(wide > _LAST, 0.0, found))
    return found.to(float_result(x))
