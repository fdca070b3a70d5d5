"""Draws a schedule: a row for each queue, time to the right, a colour for each op of the graph; as PNG and as a page.

A picture is 1,600 points wide however long the program is, so a point may stand for many cycles.
"""

from __future__ import annotations

import base64
import struct
import zlib
from colorsys import hls_to_rgb
from html import escape

import numpy as np

from weft.spatial.program import Program

_WIDTH, _ROW, _GAP = 1600, 7, 1


def gantt_png(program: Program) -> bytes:
    """The picture, as a PNG file."""
    return _png(_picture(program))


def gantt_page(program: Program, title: str) -> str:
    """A page of its own: the picture, its rows by name, and when each op is at work."""
    image = base64.b64encode(gantt_png(program)).decode()
    rows = program.instructions
    queues = _queues(program)
    last = rows["cycle"] + (rows["count"] - 1) * rows["period"]
    names = "\n".join(f"<div>{escape(program.units.name(queue))}</div>" for queue in queues)
    ops: list[str] = []
    for origin in [int(each) for each in np.unique(rows["origin"])]:
        own = rows["origin"] == origin
        red, green, blue = _colour(origin)
        begin, end = int(rows["cycle"][own].min()), int(last[own].max())
        told = escape(program.origins[origin]) if 0 <= origin < len(program.origins) else "no op"
        ops.append(f'<li><b style="background: rgb({red},{green},{blue})">&emsp;</b> {begin:,} … {end:,}: {told}</li>')
    height = len(queues) * (_ROW + _GAP)
    return f"""<!doctype html><meta charset="utf-8"><title>{escape(title)}</title>
<style>body {{ font: 12px sans-serif }} .rows {{ display: flex }}
.names {{ font: {_ROW - 1}px/{_ROW + _GAP}px sans-serif; white-space: nowrap; padding-right: 6px }}
ul {{ columns: 3; list-style: none }}</style>
<h1>{escape(title)}</h1>
<p>{program.cycles:,} cycles on {escape(program.machine.name)}@{program.machine.digest}: a row for each queue, a colour
for each op; a point is {program.cycles / _WIDTH:.1f} cycles.</p>
<div class="rows"><div class="names">
{names}
</div><img alt="schedule" width="{_WIDTH}" height="{height}" src="data:image/png;base64,{image}"></div>
<ul>
{"".join(ops)}
</ul>
"""


def _queues(program: Program) -> list[int]:
    return sorted({int(queue) for queue in program.instructions["queue"]})


def _picture(program: Program) -> np.ndarray:
    rows, queues = program.instructions, _queues(program)
    places = {queue: number for number, queue in enumerate(queues)}
    image = np.full((max(1, len(queues)) * (_ROW + _GAP), _WIDTH, 3), 255, np.uint8)
    scale = _WIDTH / max(1, program.cycles)
    for row in rows:
        top = places[int(row["queue"])] * (_ROW + _GAP)
        last = int(row["cycle"]) + (int(row["count"]) - 1) * int(row["period"])
        begin, end = int(row["cycle"] * scale), int((last + 1) * scale) + 1
        image[top : top + _ROW, begin:end] = _colour(int(row["origin"]))
    return image


def _colour(origin: int) -> tuple[int, int, int]:
    """Neighbouring ops have colours far apart."""
    red, green, blue = hls_to_rgb(origin * 0.381966 % 1, 0.5, 0.65)
    return int(red * 255), int(green * 255), int(blue * 255)


def _png(image: np.ndarray) -> bytes:
    height, width, _ = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
