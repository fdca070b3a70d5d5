"""Zeta and incomplete gamma functions of torch: sums and fractions, of as many terms as the data need.

`decompositions` traces them where a graph has one. They are computed in float64 whatever they are given.
"""

# torch leaves some of its functions without types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.frontends.torch.capture.data_loops import by_parts, repeat_while
from weft.frontends.torch.capture.series import float_operands, polynomial, together

_TEMME = (
    (
        1.1004392031956135e-13,
        -5.0276692801141755e-12,
        2.4361948020667415e-11,
        -5.830772132550426e-11,
        -2.551419399494625e-11,
        9.14769958223679e-10,
        -4.382036018453353e-09,
        1.0261809784240309e-08,
        6.707853543401498e-09,
        -1.7665952736826078e-07,
        8.296711340953087e-07,
        -1.85406221071516e-06,
        -2.1854485106799924e-06,
        3.919263178522438e-05,
        -0.0001787551440329218,
        0.0003527336860670194,
        0.0011574074074074073,
        -0.014814814814814815,
        0.08333333333333333,
        -0.3333333333333333,
    ),
    (
        4.162792991842583e-10,
        -1.0091543710600413e-09,
        -1.7543241719747647e-11,
        1.1951628599778148e-08,
        -5.752545603517705e-08,
        1.378633446915721e-07,
        4.647127802807434e-09,
        -1.6120900894563446e-06,
        7.64916091608111e-06,
        -1.8098550334489977e-05,
        -4.018775720164609e-07,
        0.00020576131687242798,
        -0.0009902263374485596,
        0.0026455026455026454,
        -0.003472222222222222,
        -0.001851851851851852,
    ),
    (
        6.228974084922022e-09,
        -1.409252991086752e-08,
        -2.0477098421990866e-10,
        1.4280614206064242e-07,
        -6.298992138380055e-07,
        1.3721957309062932e-06,
        3.423578734096138e-08,
        -1.2760635188618728e-05,
        5.2923448829120125e-05,
        -0.00010736653226365161,
        2.0093878600823047e-06,
        0.0007716049382716049,
        -0.0026813271604938273,
        0.004133597883597883,
    ),
    (
        8.099464905388083e-08,
        -1.6958404091930278e-07,
        -2.7861080291528143e-11,
        1.4230900732435883e-06,
        -5.6749528269915965e-06,
        1.1082654115347302e-05,
        -2.396505113867297e-07,
        -7.561801671883977e-05,
        0.00026772063206283885,
        -0.0004691894943952557,
        0.00022947209362139917,
        0.0006494341563786008,
    ),
)
"""Temme's expansion of the incomplete gamma function for large a: by powers of 1/a, each by powers of the distance of x
from a, the highest first."""
_LARGE = 1e4
"""The a from which that expansion is exact, while x is within a third of it."""
_NEAR = 0.3
_LOGARITHM = tuple((-1) ** (n + 1) / n for n in range(33, 1, -1))
"""(log(1 + s) - s) / s² near 0, in s; the highest first."""
_STIRLING = (43867 / 244188, -3617 / 122400, 1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
"""a times the rest of Stirling's formula for log(gamma(a)), in 1/a²."""
_STIRLING_FROM = 12.0
_FEW = 24
"""Terms of the series of Q for x up to 1.1."""
_EPSILON = 2.0**-53
_SHIFTS = 9
_EULER_MACLAURIN = (
    12.0,
    -720.0,
    30240.0,
    -1209600.0,
    47900160.0,
    -1.8924375803183791606e9,
    7.47242496e10,
    -2.950130727918164224e12,
    1.1646782814350067249e14,
    -4.5979787224074726105e15,
    1.8152105401943546773e17,
    -7.1661652561756670113e18,
)
"""(2n)! / B₂ₙ"""


def zeta(x: Any, q: Any) -> Tensor:
    """Hurwitz' zeta function: the first terms, and by Euler and Maclaurin the rest."""
    kind, x, q = together(x, q)
    return by_parts(partial(_zeta, kind), x, q)


def _zeta(kind: torch.dtype, x: Tensor, q: Tensor) -> Tensor:
    _, x, q = float_operands(x, q, torch.float64)
    total, place = torch.zeros_like(q), q

    def below(total: Tensor, place: Tensor, x: Tensor) -> Tensor:
        return place <= 0

    def turn(total: Tensor, place: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        going = below(total, place, x)
        return torch.where(going, total + torch.pow(place, -x), total), torch.where(going, place + 1, place)

    # Poles, and what is no power of a negative number, need no terms.
    known = (q > 0) | ((q != torch.floor(q)) & (x == torch.floor(x)) & torch.isfinite(q))
    start = torch.where(known, place, 1.0)
    total, place = repeat_while(lambda *values: below(*values).any(), turn, (total, start), (x,))
    for n in range(_SHIFTS):
        total = total + torch.pow(place + n, -x)
    w = place + _SHIFTS
    last = torch.pow(w, -x)
    total = total + last * w / (x - 1) + 0.5 * last
    factor, power = x, last / w
    for n, divisor in enumerate(_EULER_MACLAURIN):
        total = total + torch.where(power == 0, 0.0, factor * power / divisor)  # factors may have no end
        factor = factor * (x + 2 * n + 1) * (x + 2 * n + 2)
        power = power / (w * w)
    total = torch.where(torch.isnan(x) | torch.isnan(q), math.nan, total)
    total = torch.where(q <= 0, torch.where(q == torch.floor(q), math.inf, torch.where(known, total, math.nan)), total)
    return torch.where(x < 1, math.nan, torch.where(x == 1, math.inf, total)).to(kind)


def igamma(a: Tensor, x: Tensor) -> Tensor:
    """The lower regularized incomplete gamma function."""
    kind, a, x = together(a, x)
    return by_parts(partial(_regularized, kind, upper=False), a, x)


def igammac(a: Tensor, x: Tensor) -> Tensor:
    """The upper regularized incomplete gamma function."""
    kind, a, x = together(a, x)
    return by_parts(partial(_regularized, kind, upper=True), a, x)


def _regularized(kind: torch.dtype, a: Tensor, x: Tensor, *, upper: bool) -> Tensor:
    _, a, x = float_operands(a, x, torch.float64)
    return _at_edges(a, x, _incomplete(a, x)[upper], float(not upper)).to(kind)


def _at_edges(a: Tensor, x: Tensor, found: Tensor, far: float) -> Tensor:
    """What is found inside, and limits where x is large (`far`), or a."""
    outside = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | (torch.isinf(a) & torch.isinf(x))
    found = torch.where((a == 0) | torch.isinf(x), far, found)
    found = torch.where((x == 0) | torch.isinf(a), torch.where(a == 0, far, 1 - far), found)
    settled = (x == 0) | torch.isinf(a) | torch.isinf(x)  # whatever the other one is, as eager has it
    return torch.where(outside | ((torch.isnan(a) | torch.isnan(x)) & ~settled), math.nan, found)


def _incomplete(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P and Q, each computed as such where it is the small one."""
    inside = (a > 0) & (x > 0) & torch.isfinite(a) & torch.isfinite(x)
    a, x = torch.where(inside, a, 1.0), torch.where(inside, x, 1.0)
    distance = (x - a) / a
    near = distance.abs() < _NEAR
    drop = torch.where(near, distance * distance * polynomial(distance, _LOGARITHM), torch.log(x / a) - distance)
    expanded = near & (a > _LARGE)
    by_fraction = (x > 1.1) & (x >= a)
    density = _density(a, x, drop)
    lower = density * _series(a, x, ~by_fraction & ~expanded)
    upper = density * a * _fraction(a, x, by_fraction & ~expanded)
    tiny = (x <= 1.1) & torch.where(x <= 0.5, -0.4 / torch.log(x) >= a, x * 1.1 >= a)
    other = torch.where(tiny, _upper_near_zero(a, x), 1 - lower)
    p, q = torch.where(by_fraction, 1 - upper, lower), torch.where(by_fraction, upper, other)
    eta = torch.sign(distance) * torch.sqrt(-2 * drop)
    rest, inverse = torch.zeros_like(a), 1 / a
    for row in reversed(_TEMME):
        rest = rest * inverse + polynomial(eta, row)
    rest = rest * torch.exp(a * drop) / torch.sqrt(2 * math.pi * a)
    root = eta * torch.sqrt(a / 2)
    p = torch.where(expanded, 0.5 * torch.special.erfc(-root) - rest, p)
    return p, torch.where(expanded, 0.5 * torch.special.erfc(root) + rest, q)


def _density(a: Tensor, x: Tensor, drop: Tensor) -> Tensor:
    """xᵃ exp(-x) / gamma(a + 1), of `drop` = log(x/a) - (x - a)/a: for large a, what is left of large logarithms."""
    large = a > _STIRLING_FROM
    safe = torch.where(large, a, _STIRLING_FROM)
    inverse = 1 / safe
    rest = polynomial(inverse * inverse, _STIRLING) * inverse
    by_stirling = torch.exp(a * drop - rest) / torch.sqrt(2 * math.pi * safe)
    return torch.where(large, by_stirling, torch.exp(a * torch.log(x) - x - torch.lgamma(a + 1)))


def _series(a: Tensor, x: Tensor, wanted: Tensor) -> Tensor:
    """1 + x/(a + 1) + x²/((a + 1)(a + 2)) + …"""

    def going(n: Tensor, term: Tensor, total: Tensor, a: Tensor, x: Tensor) -> Tensor:
        return (term > _EPSILON * total).any()

    def turn(n: Tensor, term: Tensor, total: Tensor, a: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        term = term * (x / (a + n))
        return n + 1, term, total + term

    one = torch.ones_like(a)
    # A term of 0 stays one.
    return repeat_while(going, turn, (_one(a), torch.where(wanted, one, 0.0), one), (a, x))[2]


def _fraction(a: Tensor, x: Tensor, wanted: Tensor) -> Tensor:
    """1/(x + 1 - a - 1(1 - a)/(x + 3 - a - 2(2 - a)/(x + 5 - a - …))), from above by Lentz' method."""
    a, x = torch.where(wanted, a, 1.0), torch.where(wanted, x, 2.0)

    def is_open(n: Tensor, c: Tensor, d: Tensor, found: Tensor, change: Tensor, a: Tensor, x: Tensor) -> Tensor:
        return (change - 1).abs() > 4 * _EPSILON

    def turn(
        n: Tensor, c: Tensor, d: Tensor, found: Tensor, change: Tensor, a: Tensor, x: Tensor
    ) -> tuple[Tensor, ...]:
        above, below = n * (a - n), x + 2 * n + 1 - a
        d = 1 / _nonzero(above * d + below)
        c = _nonzero(below + above / c)
        step = torch.where(is_open(n, c, d, found, change, a, x), c * d, 1.0)  # what has converged stays
        return n + 1, c, d, found * step, step

    first = 1 / (x + 1 - a)
    start = (_one(a), torch.full_like(a, 1e300), first, first, torch.full_like(a, 2.0))
    return repeat_while(lambda *values: is_open(*values).any(), turn, start, (a, x))[3]


def _one(like: Tensor) -> Tensor:
    return torch.ones((), dtype=like.dtype, device=like.device)


def _nonzero(x: Tensor) -> Tensor:
    return torch.where(x == 0, 1e-300, x)


def _upper_near_zero(a: Tensor, x: Tensor) -> Tensor:
    """Q for small x by a series that does not cancel; see 8.7.3 of DLMF."""
    factor, total = torch.ones_like(x), torch.zeros_like(x)
    for n in range(1, _FEW):
        factor = factor * (-x / n)
        total = total + factor / (a + n)
    power = a * torch.log(x)
    return -torch.expm1(power - torch.lgamma(1 + a)) - torch.exp(power - torch.lgamma(a)) * total
