"""Bessel functions of torch that have no op of their own: rational functions near 0, waves or decay beyond.

`decompositions` traces them into elementwise ops where a graph has one. Coefficients are those of torch's kernels: as
these leave out the 1 that leads a denominator of Cephes, results are eager's, up to 2e-6 from the function from 4 to 8.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from weft.frontends.torch.capture.series import chebyshev, float_result, polynomial, widened
from weft.frontends.torch.capture.special_functions import i0, i1

_PP0 = (
    0.0007969367292973471,
    0.08283523921074408,
    1.239533716464143,
    5.447250030587687,
    8.74716500199817,
    5.303240382353949,
    1.0,
)
"""Of order 0, the first wave's share beyond 5, in 25/x²: numerator."""

_PQ0 = (
    0.0009244088105588637,
    0.08562884743544745,
    1.2535274390105895,
    5.470977403304171,
    8.761908832370695,
    5.306052882353947,
    1.0,
)
"""And denominator."""

_QP0 = (
    -0.011366383889846916,
    -1.2825271867050931,
    -19.553954425773597,
    -93.20601521237683,
    -177.68116798048806,
    -147.07750515495118,
    -51.41053267665993,
    -6.050143506007285,
)
"""The second wave's share: numerator."""

_QQ0 = (
    64.3178256118178,
    856.4300259769806,
    3882.4018360540163,
    7240.467741956525,
    5930.727011873169,
    2062.0933166032783,
    242.0057402402914,
)
"""And denominator."""

_RP0 = (
    -4794432209.782018,
    1956174919465.5657,
    -249248344360967.72,
    9708622510473064.0,
)
"""J of order 0 up to 5 without its first zeros, in x²: numerator."""

_RQ0 = (
    499.563147152651,
    173785.4016763747,
    48440965.83399621,
    11185553704.535683,
    2112775201154.892,
    310518229857422.56,
    3.1812195594320496e16,
    1.7108629408104315e18,
)
"""And denominator."""

_PP1 = (
    0.0007621256162081731,
    0.07313970569409176,
    1.1271960812968493,
    5.112079511468076,
    8.424045901417724,
    5.214515986823615,
    1.0,
)
"""Of order 1, the first wave's share beyond 5, in 25/x²: numerator."""

_PQ1 = (
    0.0005713231280725487,
    0.06884559087544954,
    1.105142326340617,
    5.073863861286015,
    8.399855543276042,
    5.209828486823619,
    1.0,
)
"""And denominator."""

_QP1 = (
    0.05108625947501766,
    4.982138729512334,
    75.82382841325453,
    366.7796093601508,
    710.8563049989261,
    597.4896124006136,
    211.68875710057213,
    25.207020585802372,
)
"""The second wave's share: numerator."""

_QQ1 = (
    74.23732770356752,
    1056.4488603826283,
    4986.410583376536,
    9562.318924047562,
    7997.041604473507,
    2826.1927851763908,
    336.0936078106983,
)
"""And denominator."""

_RP1 = (
    -899971225.7055594,
    452228297998.19403,
    -72749424522181.83,
    3682957328638529.0,
)
"""J of order 1 up to 5 without its first zeros, in x²: numerator."""

_RQ1 = (
    620.8364781180543,
    256987.25675774884,
    83514679.14319493,
    22151159547.97925,
    4749141220799.914,
    784369607876235.9,
    8.952223361846274e16,
    5.322786203326801e18,
)
"""And denominator."""

_YP0 = (
    15592.436785523574,
    -14663929.59039716,
    5435264770.518765,
    -982136065717.9115,
    87590639439536.7,
    -3466283033847297.0,
    4.4273326857256984e16,
    -1.8495080043698668e16,
)
"""Y of order 0 up to 5 without its logarithm, in x²: numerator."""

_YQ0 = (
    1041.2835366425984,
    626107.330137135,
    268919633.39381415,
    86400248710.3935,
    20297961275010.555,
    3171577528429750.5,
    2.5059625617265306e17,
)
"""And denominator."""

_YP1 = (
    1263204747.9017804,
    -647355876379.1603,
    114509511541823.73,
    -8127702555013251.0,
    2.024394757135949e17,
    -7.788771962659501e17,
)
"""Y of order 1 up to 5 without its logarithm, in x²: numerator."""

_YQ1 = (
    594.3015923461282,
    235564.09294306856,
    73481194.44597217,
    18760131610.870617,
    3882312774962.3857,
    620557727146953.8,
    6.871410873553005e16,
    3.9727060811656064e18,
)
"""And denominator."""

_KA0 = (
    1.374465435613523e-16,
    4.25981614279661e-14,
    1.0349695257633842e-11,
    1.904516377220209e-09,
    2.5347910790261494e-07,
    2.286212103119452e-05,
    0.001264615411446926,
    0.0359799365153615,
    0.3442898999246285,
    -0.5353273932339028,
)
"""K of order 0 up to 2 without its logarithm, by Chebyshev polynomials in x² - 2; the highest first."""

_KB0 = (
    5.300433772686263e-18,
    -1.6475804301524212e-17,
    5.2103915050390274e-17,
    -1.678231096805412e-16,
    5.512055978524319e-16,
    -1.848593377343779e-15,
    6.3400764774050706e-15,
    -2.2275133269916698e-14,
    8.032890775363575e-14,
    -2.9800969231727303e-13,
    1.140340588208475e-12,
    -4.514597883373944e-12,
    1.8559491149547177e-11,
    -7.957489244477107e-11,
    3.577397281400301e-10,
    -1.69753450938906e-09,
    8.574034017414225e-09,
    -4.660489897687948e-08,
    2.766813639445015e-07,
    -1.8317555227191195e-06,
    1.39498137188765e-05,
    -0.00012849549581627802,
    0.0015698838857300533,
    -0.0314481013119645,
    2.4403030820659555,
)
"""exp(x) √x times it from 2 on, in 8/x - 2."""

_KA1 = (
    -7.023863479386288e-18,
    -2.427449850519366e-15,
    -6.666901694199329e-13,
    -1.4114883926335278e-10,
    -2.213387630734726e-08,
    -2.4334061415659684e-06,
    -0.0001730288957513052,
    -0.006975723859639864,
    -0.12261118082265715,
    -0.3531559607765449,
    1.5253002273389478,
)
"""K of order 1 up to 2 without its logarithm, by Chebyshev polynomials in x² - 2; the highest first."""

_KB1 = (
    -5.756744483665017e-18,
    1.7940508731475592e-17,
    -5.689462558442859e-17,
    1.838093544366639e-16,
    -6.057047248373319e-16,
    2.038703165624334e-15,
    -7.019837090418314e-15,
    2.4771544244813043e-14,
    -8.976705182324994e-14,
    3.3484196660784293e-13,
    -1.2891739609510289e-12,
    5.13963967348173e-12,
    -2.1299678384275683e-11,
    9.218315187605006e-11,
    -4.1903547593418965e-10,
    2.015049755197033e-09,
    -1.0345762465678097e-08,
    5.7410841254500495e-08,
    -3.5019606030878126e-07,
    2.406484947837217e-06,
    -1.936197974166083e-05,
    0.00019521551847135162,
    -0.002857816859622779,
    0.10392373657681724,
    2.7206261904844427,
)
"""exp(x) √x times it from 2 on, in 8/x - 2."""

_ZEROS = ((5.783185962946785, 30.471262343662087), (14.681970642123893, 49.2184563216946))
"""Squares of the first zeros of J of order 0 and 1."""
_WAVE = (((_PP0, _PQ0), (_QP0, _QQ0), 0.25 * math.pi), ((_PP1, _PQ1), (_QP1, _QQ1), 0.75 * math.pi))
"""By order: shares of two waves, and their phase."""
_SPHERICAL = tuple((-1) ** n / math.factorial(2 * n + 1) for n in reversed(range(7)))


def bessel_j0(x: Tensor) -> Tensor:
    """The Bessel function of the first kind, of order 0."""
    size = widened(x).abs()
    return torch.where(size <= 5, _near_j(size, 0, _RP0, _RQ0), _wave(size, 0, turned=False)).to(float_result(x))


def bessel_j1(x: Tensor) -> Tensor:
    """The Bessel function of the first kind, of order 1."""
    return _j1(widened(x)).to(float_result(x))


def _j1(wide: Tensor) -> Tensor:
    size = wide.abs()
    found = torch.where(size <= 5, size * _near_j(size, 1, _RP1, _RQ1), _wave(size, 1, turned=False))
    return torch.where(wide < 0, -found, found)


def bessel_y0(x: Tensor) -> Tensor:
    """The Bessel function of the second kind, of order 0."""
    wide = widened(x)
    near = _ratio(wide * wide, _YP0, _YQ0) + 2 / math.pi * torch.log(wide) * bessel_j0(wide)
    return _of_positive(wide, torch.where(wide <= 5, near, _wave(wide, 0, turned=True)), -math.inf).to(float_result(x))


def bessel_y1(x: Tensor) -> Tensor:
    """The Bessel function of the second kind, of order 1."""
    wide = widened(x)
    near = wide * _ratio(wide * wide, _YP1, _YQ1) + 2 / math.pi * (_j1(wide) * torch.log(wide) - 1 / wide)
    return _of_positive(wide, torch.where(wide <= 5, near, _wave(wide, 1, turned=True)), -math.inf).to(float_result(x))


def modified_bessel_k0(x: Tensor) -> Tensor:
    """The modified Bessel function of the second kind, of order 0."""
    return _k0(widened(x), scaled=False).to(float_result(x))


def scaled_modified_bessel_k0(x: Tensor) -> Tensor:
    """The same, times exp(x)."""
    return _k0(widened(x), scaled=True).to(float_result(x))


def modified_bessel_k1(x: Tensor) -> Tensor:
    """The modified Bessel function of the second kind, of order 1."""
    return _k1(widened(x), scaled=False).to(float_result(x))


def scaled_modified_bessel_k1(x: Tensor) -> Tensor:
    """The same, times exp(x)."""
    return _k1(widened(x), scaled=True).to(float_result(x))


def spherical_bessel_j0(x: Tensor) -> Tensor:
    """The spherical Bessel function of the first kind, of order 0: sin(x) / x."""
    wide = widened(x)
    beyond = torch.where(torch.isinf(wide), 0.0, torch.sin(wide) / wide)
    return torch.where(wide.abs() < 0.5, polynomial(wide * wide, _SPHERICAL), beyond).to(float_result(x))


def _near_j(size: Tensor, order: int, above: Sequence[float], below: Sequence[float]) -> Tensor:
    square = size * size
    first, second = _ZEROS[order]
    return (square - first) * (square - second) * _ratio(square, above, below)


def _wave(x: Tensor, order: int, *, turned: bool) -> Tensor:
    """J beyond 5, or Y, which is the same a quarter of a turn later."""
    first, second, phase = _WAVE[order]
    square, angle = 25 / (x * x), x - phase
    one, other = _ratio(square, *first), 5 / x * _ratio(square, *second)
    sine, cosine = torch.sin(angle), torch.cos(angle)
    found = one * sine + other * cosine if turned else one * cosine - other * sine
    return found * math.sqrt(2 / math.pi) * torch.rsqrt(x)


def _k0(x: Tensor, *, scaled: bool) -> Tensor:
    near = chebyshev(x * x - 2, _KA0) - torch.log(0.5 * x) * i0(x)
    return _decaying(x, near, _KB0, scaled)


def _k1(x: Tensor, *, scaled: bool) -> Tensor:
    near = torch.log(0.5 * x) * i1(x) + chebyshev(x * x - 2, _KA1) / x
    return _decaying(x, near, _KB1, scaled)


def _decaying(x: Tensor, near: Tensor, far: Sequence[float], scaled: bool) -> Tensor:
    beyond = chebyshev(8 / x - 2, far) * torch.rsqrt(x)
    found = (
        torch.where(x <= 2, near * torch.exp(x), beyond)
        if scaled
        else torch.where(x <= 2, near, beyond * torch.exp(-x))
    )
    return _of_positive(x, found, math.inf)


def _of_positive(x: Tensor, found: Tensor, at_zero: float) -> Tensor:
    """What a function with a pole at 0 is elsewhere; below it, it is not real."""
    return torch.where(x == 0, at_zero, torch.where(x < 0, math.nan, found))


def _ratio(x: Tensor, above: Sequence[float], below: Sequence[float]) -> Tensor:
    return polynomial(x, above) / polynomial(x, below)
