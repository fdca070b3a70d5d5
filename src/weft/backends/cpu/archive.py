"""Several object files as one: an archive as `ar` writes it, of which linkers take all members."""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import CompilationError

_MAGIC = b"!<arch>\n"
_HEADER, _END = 60, b"`\n"


def archive_of(objects: Sequence[bytes]) -> bytes:
    """An archive of object files; one alone needs none."""
    if len(objects) == 1:
        return objects[0]
    parts = [_MAGIC]
    for number, each in enumerate(objects):
        header = f"{f'{number}.o/':16}{0:<12}{0:<6}{0:<6}{'644':8}{len(each):<10}".encode()
        parts += [header + _END, each, b"\n" * (len(each) % 2)]
    return b"".join(parts)


def objects_of(code: bytes) -> list[bytes]:
    """The object files of an archive, or the one that it is."""
    if not code.startswith(_MAGIC):
        return [code]
    found: list[bytes] = []
    at = len(_MAGIC)
    while at < len(code):
        header = code[at : at + _HEADER]
        size, begin = header[48:58].strip(), at + _HEADER
        if header[58:] != _END or not size.isdigit() or begin + int(size) > len(code):
            raise CompilationError("an archive of object files is damaged", hint="compile it anew")
        found.append(code[begin : begin + int(size)])
        at = begin + int(size) + int(size) % 2
    return found
