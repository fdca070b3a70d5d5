"""Draws a model over racks of chips: what fills the memory of every chip, and what a token's time is spent on."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from weft.spatial.racks import ChipMemory, RackPlan

_COLOURS = {
    "weights": "#3b6ea5",
    "cache": "#c8793b",
    "activations": "#5a9a5a",
    "constants": "#8a6bb0",
    "text": "#777777",
    "hops": "#c8793b",
    "links": "#8a6bb0",
    "rest": "#bbbbbb",
}
_HEIGHT, _WIDTH = 220, 1160


def rack_page(title: str, plans: Sequence[RackPlan], capacity: int) -> str:
    """A page of its own."""
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>{escape(title)}</title>",
        "<style>body { font: 14px sans-serif; margin: 2em } b { padding: 0 .6em }",
        "svg { border: 1px solid #ccc }</style>",
        f"<h1>{escape(title)}</h1>",
    ]
    for plan in plans:
        how = f"{plan.tensor} chips share a layer" if plan.tensor > 1 else "chips one after another"
        parts.append(f"<h2>{plan.chips:,} chips, {how}: {plan.tokens_per_second:,.0f} tokens/s for each user</h2>")
        parts += [_time(plan), _legend(("weights", "hops", "links", "rest")), _memory(plan.memory, capacity)]
        parts.append(_legend(("weights", "cache", "activations", "constants", "text")))
    return "\n".join(parts) + "</html>\n"


def _legend(names: Sequence[str]) -> str:
    return "<p>" + " ".join(f'<b style="background: {_COLOURS[name]}"></b> {name}' for name in names) + "</p>"


def _time(plan: RackPlan) -> str:
    """A token's cycles as a bar."""
    token, x = plan.token, 0.0
    boxes: list[str] = []
    for name, cycles in (
        ("weights", token.weights),
        ("hops", token.hops),
        ("links", token.links),
        ("rest", token.rest),
    ):
        width = max(0.0, cycles / token.cycles * _WIDTH)
        tip = f"<title>{name}: {cycles:,} of {token.cycles:,} cycles</title>"
        boxes.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="24" fill="{_COLOURS[name]}">{tip}</rect>')
        x += width
    return f'<svg width="{_WIDTH}" height="24">{"".join(boxes)}</svg>'


def _memory(chips: Sequence[ChipMemory], capacity: int) -> str:
    """A column for each chip; the frame is its whole memory."""
    each, boxes = _WIDTH / max(1, len(chips)), list[str]()
    for number, chip in enumerate(chips):
        y = float(_HEIGHT)
        for name, size in vars(chip).items():
            height = size / capacity * _HEIGHT
            y -= height
            if height >= 0.05:
                tip = f"<title>chip {number}: {name} {size:,} of {capacity:,} bytes</title>"
                place = f'x="{number * each:.2f}" y="{y:.2f}" width="{each:.2f}" height="{height:.2f}"'
                boxes.append(f'<rect {place} fill="{_COLOURS[name]}">{tip}</rect>')
    return f'<svg width="{_WIDTH}" height="{_HEIGHT}">{"".join(boxes)}</svg>'
