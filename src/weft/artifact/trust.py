"""Whose machine code may run: what this user made on this machine, or what a key has signed that the user has listed.

An artifact's manifest has the digest of every other member, so that who vouches for the manifest vouches for all.

    ~/.config/weft/machine.key     32 secret bytes of this user, made when the first artifact is written
    ~/.config/weft/trusted_keys    public keys in hexadecimal, one a line, with a comment behind it

`WEFT_CONFIG_DIR` names another folder. The seal of a machine is a keyed hash (HMAC) that the machine's identity is part
of: a home that machines share does not carry it from one to the other.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.artifact.checked_json import parse_json
from weft.artifact.manifest import SIGNATURES
from weft.errors import ArtifactTrustError, CorruptArtifactError

KEY, LIST = "machine.key", "trusted_keys"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_MOST_LIST = 1 << 20
_CONTEXT = b"weft artifact\0"
_NO_KEYS = (OSError, RuntimeError, UnicodeDecodeError)
"""Where nothing can be read, where the user has no home (as many in containers), and where the list is no text."""


@dataclass(frozen=True)
class Signatures:
    """Who vouches for a manifest: a machine, and the holder of a key."""

    machine: str = ""
    key: str = ""
    signature: str = ""


def folder() -> Path:
    """Where the keys of this user lie."""
    if configured := os.environ.get("WEFT_CONFIG_DIR"):
        return Path(configured)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "weft"


def seal(manifest: bytes) -> str:
    """The seal of this user on this machine, or none where no key can be kept."""
    try:
        secret = _secret() or _new_secret()
    except _NO_KEYS:
        return ""
    return "" if secret is None else _seal(secret, manifest)


def signed(manifest: bytes, key_file: Path) -> tuple[str, str]:
    """The public key of a file with a secret one, 64 hexadecimal digits, and its signature of a manifest."""
    from weft.artifact.ed25519 import public_key, sign

    hint = "make one by `openssl rand -hex 32 > FILE; chmod 600 FILE`"
    try:
        status = key_file.stat()
        text = key_file.read_text().strip()
        seed = bytes.fromhex(text)
    except (OSError, ValueError) as error:
        raise ArtifactTrustError(f"{key_file} is no key to sign with: {error}", hint=hint) from None
    if len(seed) != 32 or status.st_mode & _OTHERS:
        raise ArtifactTrustError(
            f"{key_file} has to have 64 hexadecimal digits, and to be readable by its owner alone", hint=hint
        )
    return public_key(seed).hex(), sign(seed, _CONTEXT + manifest).hex()


def who_vouches(manifest: bytes, signatures: Signatures) -> str:
    """Whom this user trusts for an artifact: `machine`, `key ...`, or nobody."""
    try:
        secret = _secret()
        listed = _listed()
    except _NO_KEYS:
        return ""
    if secret is not None and signatures.machine and hmac.compare_digest(_seal(secret, manifest), signatures.machine):
        return "machine"
    if signatures.key in listed:
        from weft.artifact.ed25519 import is_signed

        key, signature = bytes.fromhex(signatures.key), bytes.fromhex(signatures.signature)
        if is_signed(key, _CONTEXT + manifest, signature):
            return f"key {signatures.key}"
        raise ArtifactTrustError(
            f"the artifact says that it is signed by {signatures.key[:16]}…, a key that you trust, and it is not",
            hint="it was changed after that: fetch the file again",
        )
    return ""


def parse_signatures(text: bytes) -> Signatures:
    """What a file says of who vouches for it, which anyone can write."""
    given: dict[str, Any] = parse_json(text, SIGNATURES)
    if given.keys() != {"machine", "key", "signature"}:
        raise CorruptArtifactError(f"{SIGNATURES} has other entries than it should")
    lengths = {"machine": 64, "key": 64, "signature": 128}
    for name, length in lengths.items():
        value = given[name]
        if not isinstance(value, str) or len(value) not in (0, length) or set(value) - set("0123456789abcdef"):
            raise CorruptArtifactError(f"{SIGNATURES} has a {name} that is none")
    return Signatures(**given)


def _seal(secret: bytes, manifest: bytes) -> str:
    return hmac.new(secret, _CONTEXT + _machine() + b"\0" + manifest, hashlib.sha256).hexdigest()


def _machine() -> bytes:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with suppress(OSError):
            if found := Path(path).read_bytes().strip():
                return found
    return os.uname().nodename.encode()


def _secret() -> bytes | None:
    """The secret of this user; none where there is none that others could not have read or written."""
    try:
        status = (folder() / KEY).lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        return None
    data = (folder() / KEY).read_bytes()
    return data if len(data) == 32 else None


def _new_secret() -> bytes | None:
    where = folder()
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = where / KEY
    temporary = where / f".{KEY}.{os.getpid()}-{os.urandom(4).hex()}"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(os.urandom(32))
    try:
        os.link(temporary, path)  # fails where another process was first, whose key it is then
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return _secret()


def _listed() -> frozenset[str]:
    """The keys that the user trusts; none where others could have written the list."""
    path = folder() / LIST
    try:
        status = path.stat()
    except FileNotFoundError:
        return frozenset()
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & _OTHERS_WRITE or status.st_size > _MOST_LIST:
        return frozenset()
    words = (line.split() for line in path.read_text().splitlines())
    keys = (line[0].lower() for line in words if line and not line[0].startswith("#"))
    return frozenset(key for key in keys if len(key) == 64 and not set(key) - set("0123456789abcdef"))
