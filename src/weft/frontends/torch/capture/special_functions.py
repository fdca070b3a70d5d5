"""Special functions of torch that have no op of their own, by the series and fractions that the field has for them.

`decompositions` traces them into elementwise ops where a graph has one: they fuse, and run where torch does not.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.frontends.torch.capture.series import chebyshev, float_result, polynomial, widened

_I0_NEAR = (
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-09,
    -1.300025009986248e-08,
    6.046995022541919e-08,
    -2.670793853940612e-07,
    1.1173875391201037e-06,
    -4.4167383584587505e-06,
    1.6448448070728896e-05,
    -5.754195010082104e-05,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
)
"""exp(-x) I₀(x) for 0 <= x <= 8, by Chebyshev polynomials in x/2 - 2; the highest first."""

_I0_FAR = (
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-09,
    2.266668990498178e-08,
    2.0489185894690638e-07,
    2.8913705208347567e-06,
    6.889758346916825e-05,
    0.0033691164782556943,
    0.8044904110141088,
)
"""exp(-x) √x I₀(x) for x > 8, in 32/x - 2."""

_I1_NEAR = (
    2.7779141127610464e-18,
    -2.111421214358166e-17,
    1.5536319577362005e-16,
    -1.1055969477353862e-15,
    7.600684294735408e-15,
    -5.042185504727912e-14,
    3.223793365945575e-13,
    -1.9839743977649436e-12,
    1.1736186298890901e-11,
    -6.663489723502027e-11,
    3.625590281552117e-10,
    -1.8872497517228294e-09,
    9.381537386495773e-09,
    -4.445059128796328e-08,
    2.0032947535521353e-07,
    -8.568720264695455e-07,
    3.4702513081376785e-06,
    -1.3273163656039436e-05,
    4.781565107550054e-05,
    -0.00016176081582589674,
    0.0005122859561685758,
    -0.0015135724506312532,
    0.004156422944312888,
    -0.010564084894626197,
    0.024726449030626516,
    -0.05294598120809499,
    0.1026436586898471,
    -0.17641651835783406,
    0.25258718644363365,
)
"""exp(-x) I₁(x) / x for 0 <= x <= 8."""

_I1_FAR = (
    7.517296310842105e-18,
    4.414348323071708e-18,
    -4.6503053684893586e-17,
    -3.209525921993424e-17,
    2.96262899764595e-16,
    3.3082023109209285e-16,
    -1.8803547755107825e-15,
    -3.8144030724370075e-15,
    1.0420276984128802e-14,
    4.272440016711951e-14,
    -2.1015418427726643e-14,
    -4.0835511110921974e-13,
    -7.198551776245908e-13,
    2.0356285441470896e-12,
    1.4125807436613782e-11,
    3.2526035830154884e-11,
    -1.8974958123505413e-11,
    -5.589743462196584e-10,
    -3.835380385964237e-09,
    -2.6314688468895196e-08,
    -2.512236237870209e-07,
    -3.882564808877691e-06,
    -0.00011058893876262371,
    -0.009761097491361469,
    0.7785762350182801,
)
"""exp(-x) √x I₁(x) for x > 8."""

_NDTRI_P0 = (
    -59.96335010141079,
    98.00107541859997,
    -56.67628574690703,
    13.931260938727968,
    -1.2391658386738125,
)
"""The normal quantile near 1/2: numerator"""

_NDTRI_Q0 = (
    1.0,
    1.9544885833814176,
    4.676279128988815,
    86.36024213908905,
    -225.46268785411937,
    200.26021238006066,
    -82.03722561683334,
    15.90562251262117,
    -1.1833162112133,
)
"""and denominator, in the square of the distance to 1/2; the highest first."""

_NDTRI_P1 = (
    4.0554489230596245,
    31.525109459989388,
    57.16281922464213,
    44.08050738932008,
    14.684956192885803,
    2.1866330685079025,
    -0.1402560791713545,
    -0.03504246268278482,
    -0.0008574567851546854,
)
"""The same for √(-2 log y) below 8, in its inverse."""

_NDTRI_Q1 = (
    1.0,
    15.779988325646675,
    45.39076351288792,
    41.3172038254672,
    15.04253856929075,
    2.504649462083094,
    -0.14218292285478779,
    -0.03808064076915783,
    -0.0009332594808954574,
)
"""Its denominator."""

_NDTRI_P2 = (
    3.2377489177694603,
    6.915228890689842,
    3.9388102529247444,
    1.3330346081580755,
    0.20148538954917908,
    0.012371663481782003,
    0.00030158155350823543,
    2.6580697468673755e-06,
    6.239745391849833e-09,
)
"""The same from 8 on."""

_NDTRI_Q2 = (
    1.0,
    6.02427039364742,
    3.6798356385616087,
    1.3770209948908132,
    0.21623699359449663,
    0.013420400608854318,
    0.00032801446468212774,
    2.8924786474538068e-06,
    6.790194080099813e-09,
)
"""Its denominator."""

_ASYMPTOTIC = 12
"""Terms of the series of erfcx from 10 on: the next is below 1e-17 of the first."""
_SHIFTS = 10
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
"""The Bernoulli numbers B₂, B₄, …"""
_ORDERS = 30
"""Polygamma functions of higher orders have factorials that floats hold badly."""


def i0(x: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 0."""
    wide = widened(x)
    return (torch.exp(_size(wide)) * _i0e(_size(wide))).to(float_result(x))


def i0e(x: Tensor) -> Tensor:
    """The same, times exp(-|x|)."""
    return _i0e(widened(x).abs()).to(float_result(x))


def i1(x: Tensor) -> Tensor:
    """The modified Bessel function of the first kind, of order 1."""
    wide = widened(x)
    return (torch.exp(_size(wide)) * _i1e(wide, _size(wide))).to(float_result(x))


def i1e(x: Tensor) -> Tensor:
    """The same, times exp(-|x|)."""
    wide = widened(x)
    return _i1e(wide, wide.abs()).to(float_result(x))


def _size(x: Tensor) -> Tensor:
    """The magnitude, with a slope at 0 too: what is even, or odd, has its second derivative there by it."""
    return torch.where(x < 0, -x, x)


def _i0e(size: Tensor) -> Tensor:
    far = torch.clamp_min(size, 8.0)  # so that the side that is not taken stays finite, also in derivatives
    near = torch.clamp_max(size, 8.0)
    beyond = chebyshev(32 / far - 2, _I0_FAR) * torch.rsqrt(far)
    return torch.where(size <= 8, chebyshev(near / 2 - 2, _I0_NEAR), beyond)


def _i1e(x: Tensor, size: Tensor) -> Tensor:
    far, near = torch.clamp_min(size, 8.0), torch.clamp_max(size, 8.0)
    beyond = torch.sign(x) * chebyshev(32 / far - 2, _I1_FAR) * torch.rsqrt(far)
    return torch.where(size <= 8, x * chebyshev(near / 2 - 2, _I1_NEAR), beyond)


def ndtri(y: Tensor) -> Tensor:
    """The quantile of the normal distribution."""
    wide = widened(y)
    least = math.exp(-2)
    upper = wide > 1 - least
    tail = torch.where(upper, 1 - wide, wide)
    middle = tail > least
    distance = torch.where(middle, tail - 0.5, 0.0)
    square = distance * distance
    near = distance + distance * (square * polynomial(square, _NDTRI_P0) / polynomial(square, _NDTRI_Q0))
    x = torch.sqrt(-2 * torch.log(torch.where(middle, least, tail)))
    z = 1 / x
    below = z * polynomial(z, _NDTRI_P1) / polynomial(z, _NDTRI_Q1)
    above = z * polynomial(z, _NDTRI_P2) / polynomial(z, _NDTRI_Q2)
    far = x - torch.log(x) / x - torch.where(x < 8, below, above)
    found = torch.where(middle, near * math.sqrt(2 * math.pi), torch.where(upper, far, -far))
    found = torch.where(wide == 0, -math.inf, torch.where(wide == 1, math.inf, found))
    return found.to(float_result(y))


def erfcx(x: Tensor) -> Tensor:
    """exp(x²) erfc(x), without overflow: the square in two parts below 10, by its series from there on."""
    wide = widened(x)
    near = torch.clamp(wide, -30.0, 10.0)
    coarse = torch.round(near * 64) / 64  # its square is exact
    rest = near - coarse
    product = torch.exp(coarse * coarse) * torch.exp(rest * (near + coarse)) * torch.special.erfc(near)
    far = torch.clamp_min(wide, 10.0)
    inverse = 0.5 / (far * far)
    series = torch.ones_like(far)
    for n in reversed(range(_ASYMPTOTIC)):
        series = 1 - (2 * n + 1) * inverse * series
    beyond = series / (far * math.sqrt(math.pi))
    return torch.where(wide < 10, product, beyond).to(float_result(x))


def polygamma(n: int, x: Tensor) -> Tensor:
    """A derivative of the digamma function: reflected below 1/2, shifted to large numbers, then by its series."""
    if not 0 <= n <= _ORDERS:
        raise NotImplementedError(f"polygamma of order {n}")
    if n == 0:
        return torch.digamma(x)
    wide = widened(x)
    below = wide < 0.5
    z = torch.where(below, 1 - wide, wide)
    sign = -1 if n % 2 == 0 else 1
    total = sum((torch.pow(z + k, -n - 1) for k in range(1, _SHIFTS)), torch.pow(z, -n - 1)) * math.factorial(n)
    w = z + _SHIFTS
    total = total + math.factorial(n - 1) * torch.pow(w, -n) + math.factorial(n) / 2 * torch.pow(w, -n - 1)
    for k, number in enumerate(_BERNOULLI, 1):
        scale = number * math.prod(range(2 * k + 1, 2 * k + n))  # B (2k + n - 1)! / (2k)!
        total = total + scale * torch.pow(w, -n - 2 * k)
    here = sign * total
    # ψₙ(1 - x) - (-1)ⁿ ψₙ(x) is π times a derivative of the cotangent, which is a polynomial in it.
    safe = torch.where(below, wide - torch.round(wide), 0.25)
    angle = safe * math.pi
    cotangent = torch.cos(angle) / torch.sin(angle)
    slope = polynomial(cotangent, [float(c) for c in reversed(_cotangent_derivative(n))]) * math.pi ** (n + 1)
    reflected = (1 if n % 2 == 0 else -1) * here - slope
    pole = (wide <= 0) & (wide == torch.floor(wide))
    return torch.where(pole, sign * math.inf, torch.where(below, reflected, here)).to(float_result(x))


def _cotangent_derivative(n: int) -> list[int]:
    """The n-th derivative of cot as a polynomial in cot, the lowest power first."""
    found = [0, 1]
    for _ in range(n):
        slope = [power * c for power, c in enumerate(found)][1:]
        found = [0] * (len(slope) + 2)
        for power, c in enumerate(slope):
            found[power] -= c
            found[power + 2] -= c
    return found
