"""Ed25519 (RFC 8032): signatures of artifacts, in plain Python, so that a base install can check them.

Checking takes a few milliseconds and handles nothing secret. Signing is not hardened against who can time it: it is
done where artifacts are made.
"""

from __future__ import annotations

import hashlib

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_ROOT = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]
_ZERO: _Point = (0, 1, 1, 0)


def public_key(seed: bytes) -> bytes:
    """The public key of a secret of 32 bytes."""
    return _encoded(_times(_secret(seed)[0], _BASE))


def sign(seed: bytes, message: bytes) -> bytes:
    """The signature of a message, 64 bytes."""
    scalar, prefix = _secret(seed)
    key = _encoded(_times(scalar, _BASE))
    nonce = _hashed(prefix, message)
    first = _encoded(_times(nonce, _BASE))
    return first + ((nonce + _hashed(first, key, message) * scalar) % _L).to_bytes(32, "little")


def is_signed(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature of a message is by the holder of a key."""
    if len(key) != 32 or len(signature) != 64:
        return False
    owner, first = _decoded(key), _decoded(signature[:32])
    scalar = int.from_bytes(signature[32:], "little")
    if owner is None or first is None or scalar >= _L:
        return False
    expected = _sum(first, _times(_hashed(signature[:32], key, message), owner))
    return _are_equal(_times(scalar, _BASE), expected)


def _hashed(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little") % _L


def _secret(seed: bytes) -> tuple[int, bytes]:
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | 1 << 254
    return scalar, digest[32:]


def _sum(a: _Point, b: _Point) -> _Point:
    """The sum of points in extended coordinates, x = X/Z, y = Y/Z, x*y = T/Z."""
    first = (a[1] - a[0]) * (b[1] - b[0]) % _P
    second = (a[1] + a[0]) * (b[1] + b[0]) % _P
    third = 2 * a[3] * b[3] * _D % _P
    fourth = 2 * a[2] * b[2] % _P
    e, f, g, h = second - first, fourth - third, fourth + third, second + first
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(scalar: int, point: _Point) -> _Point:
    total = _ZERO
    while scalar:
        if scalar & 1:
            total = _sum(total, point)
        point = _sum(point, point)
        scalar >>= 1
    return total


def _are_equal(a: _Point, b: _Point) -> bool:
    return (a[0] * b[2] - b[0] * a[2]) % _P == 0 and (a[1] * b[2] - b[1] * a[2]) % _P == 0


def _encoded(point: _Point) -> bytes:
    inverse = pow(point[2], _P - 2, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _decoded(text: bytes) -> _Point | None:
    number = int.from_bytes(text, "little")
    sign_bit, y = number >> 255, number & ((1 << 255) - 1)
    x = _x_of(y, sign_bit) if y < _P else None
    return None if x is None else (x, y, 1, x * y % _P)


def _x_of(y: int, sign_bit: int) -> int | None:
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    if square == 0:
        return None if sign_bit else 0
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT % _P
    if (x * x - square) % _P:
        return None
    return _P - x if x & 1 != sign_bit else x


_BASE_Y = 4 * pow(5, _P - 2, _P) % _P
_BASE_X = _x_of(_BASE_Y, 0)
assert _BASE_X is not None
_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)
