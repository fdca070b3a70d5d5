"""A plan as one HTML file that needs nothing else: its plots are SVG, written here."""

from __future__ import annotations

import html
from typing import Any

from weft.planner.plan import Plan
from weft.planner.report import figures, load_words

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 320, 60, 40
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.25em .8em;border-bottom:1px solid #ddd}"
    "td,th{text-align:right}"
    "td:first-child,th:first-child{text-align:left}svg{background:#fafafa;border:1px solid #ddd}"
    "pre{background:#f3f3f3;padding:.6em;overflow:auto}.warn{background:#fff3cd;padding:.5em}"
)


def page(plan: Plan) -> str:
    """The whole page."""
    found = figures(plan)
    title = f"{plan.model.name} on {plan.gpu.device}"
    chosen = found["chosen"]
    parts = [f'<p class="warn">{safe(each)}</p>' for each in (*plan.gives_way, *plan.assumptions)]
    parts.append(
        table(
            [
                ("mapping", chosen["mapping"]),
                ("replicas, and spare", f"{plan.replicas} + {plan.spare}"),
                ("GPUs, nodes, racks", f"{plan.gpus}, {plan.nodes}, {plan.racks}"),
                ("power", f"{found['power_kw']:.1f} kW"),
                ("dollars per million output tokens", f"{plan.cost_per_million:.3f}"),
                ("tokens/s per GPU (closed form)", f"{chosen['tokens_s_gpu']:.0f}"),
                ("a decoding step may be off by", f"{plan.band * 100:.0f} %"),
            ]
        )
    )
    parts.append("<h2>Tokens a second: for a GPU against for a user</h2>")
    parts.append(
        _scatter(
            [(each["tokens_s_user"], each["tokens_s_gpu"], each["mapping"]) for each in found["front"]],
            (chosen["tokens_s_user"], chosen["tokens_s_gpu"]),
        )
    )
    at, most = load_words(plan)
    parts.append(f"<h2>What users see, simulated at {safe(at)}</h2>")
    seen = found["simulated"]
    rows = [
        (name, *(f"{seen[key][each]:.1f}" for each in ("p50", "p90", "p99")))
        for name, key in (("TTFT, ms", "ttft_ms"), ("TPOT, ms", "tpot_ms"), ("end to end, ms", "e2e_ms"))
    ]
    parts.append(table(rows, ("", "p50", "p90", "p99")))
    parts.append(f"<p>{safe(found['definition'])}. {safe(most)}</p>")
    parts.append("<h2>Where a decoding step's time goes</h2>" + bars(found["breakdown"]))
    rows = [
        (each["name"], each["kind"], f"{each['ms']:.3f}", each["from"], f"{each['may_be_off_by'] * 100:.0f} %")
        for each in sorted(found["operations"], key=lambda each: -each["ms"])
    ]
    parts.append(table(rows, ("operation", "kind", "ms", "from", "may be off by")))
    parts.append(
        "<h2>With 10 % more of it</h2>"
        + table([(name, f"{value * 100:+.1f} %") for name, value in found["sensitivity"].items()])
    )
    parts.append(
        "<h2>Memory of a GPU</h2>"
        + table(
            [
                (
                    name,
                    f"{value / 1e9:.2f} GB"
                    if name in ("weights", "activations", "communicators", "cache")
                    else f"{value}",
                )
                for name, value in found["memory"].items()
            ]
        )
    )
    rows = [
        (
            each["mapping"],
            f"{each['concurrency']:.0f}",
            f"{each['tokens_s_gpu']:.0f}",
            f"{each['tpot_ms']:.1f}",
            f"{each['ttft_ms']:.0f}",
        )
        for each in found["alternatives"]
    ]
    parts.append(
        "<h2>Alternatives</h2>" + table(rows, ("mapping", "concurrency", "tokens/s/GPU", "TPOT, ms", "TTFT, ms"))
    )
    parts.append("<h2>Start a replica</h2>" + "".join(f"<pre>{safe(each)}</pre>" for each in found["launch"].values()))
    if plan.settings.calibration is not None:
        parts.append(f"<p>{safe(plan.settings.calibration)}.</p>")
    price = f"{plan.gpu.price_per_hour:.2f} dollars a GPU and hour, an assumption"
    parts.append(f"<p>Hardware: {safe(plan.gpu.source)}. Price: {price}.</p>")
    return document(title, parts)


def document(title: str, parts: list[str]) -> str:
    """A whole page of parts under its title."""
    body = "\n".join([f"<h1>{safe(title)}</h1>", *parts])
    head = f'<meta charset="utf-8"><title>{safe(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def safe(text: Any) -> str:
    """Text as HTML has it."""
    return html.escape(str(text))


def table(rows: list[Any], head: tuple[str, ...] = ()) -> str:
    """Rows under a head."""
    top = f"<tr>{''.join(f'<th>{safe(each)}</th>' for each in head)}</tr>" if head else ""
    body = "".join(f"<tr>{''.join(f'<td>{safe(each)}</td>' for each in row)}</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _scatter(marks: list[tuple[float, float, str]], chosen: tuple[float, float]) -> str:
    most_x, most_y = max(each[0] for each in marks) * 1.05, max(each[1] for each in marks) * 1.05

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / most_x * (_WIDTH - _LEFT - 20), (_HEIGHT - _BOTTOM) * (1 - y / most_y) + 10

    drawn = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img">']
    for step in range(5):
        x, y = most_x * step / 4, most_y * step / 4
        drawn.append(
            f'<text x="{place(x, 0)[0]:.0f}" y="{_HEIGHT - 14}" font-size="11" text-anchor="middle">{x:.0f}</text>'
        )
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{place(0, y)[1] + 4:.0f}" font-size="11" text-anchor="end">{y:.0f}</text>'
        )
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y, _ in marks))
    drawn.append(f'<polyline points="{path}" fill="none" stroke="#888"/>')
    for x, y, name in marks:
        a, b = place(x, y)
        told = f"{safe(name)}: {x:.0f} a user, {y:.0f} a GPU"
        drawn.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="#1f6feb"><title>{told}</title></circle>')
    a, b = place(*chosen)
    ring = 'r="7" fill="none" stroke="#d1242f" stroke-width="2"'
    drawn.append(f'<circle cx="{a:.1f}" cy="{b:.1f}" {ring}><title>chosen</title></circle>')
    return (
        "".join(drawn)
        + f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 2}" font-size="11" text-anchor="middle">tokens/s/user</text></svg>'
    )


def bars(shares: dict[str, float]) -> str:
    """A bar for each share of one."""
    high = 24 * len(shares) + 8
    drawn = [f'<svg viewBox="0 0 {_WIDTH} {high}" width="{_WIDTH}" height="{high}" role="img">']
    for index, (name, share) in enumerate(shares.items()):
        y = 24 * index + 6
        drawn.append(f'<rect x="130" y="{y}" width="{share * (_WIDTH - 200):.1f}" height="16" fill="#1f6feb"/>')
        drawn.append(f'<text x="124" y="{y + 13}" font-size="12" text-anchor="end">{safe(name)}</text>')
        drawn.append(
            f'<text x="{136 + share * (_WIDTH - 200):.1f}" y="{y + 13}" font-size="12">{share * 100:.0f} %</text>'
        )
    return "".join(drawn) + "</svg>"
