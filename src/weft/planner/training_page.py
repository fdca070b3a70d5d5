"""A training plan as one HTML file that needs nothing else."""

from __future__ import annotations

from weft.planner.page import bars, document, safe, table
from weft.planner.training import TrainingPlan


def training_page(plan: TrainingPlan) -> str:
    """The whole page: where a step's time goes, what the fullest rank holds, and other layouts."""
    chosen, job = plan.chosen, plan.job
    title = f"Training {plan.model.name} on {job.gpus} × {plan.gpu.device}"
    parts = [f'<p class="warn">{safe(each)}</p>' for each in plan.model.assumptions]
    rows = [
        ("layout", str(chosen.layout)),
        ("a step", f"{job.batch} × {job.seq} tokens, {chosen.seconds:.3f} s"),
        ("part of the bf16 peak (MFU, attention over the whole square)", f"{chosen.mfu * 100:.1f} %"),
        ("the same with causal attention's half", f"{chosen.causal_mfu * 100:.1f} %"),
        ("tokens/s per GPU", f"{chosen.tokens_s_gpu:.0f}"),
    ]
    if job.tokens:
        rows.append((f"{job.tokens:.3g} tokens", f"{plan.days:.1f} days, ${plan.dollars:,.0f}, without failures"))
    parts.append(table(rows))
    shares = {name: seconds / chosen.seconds for name, seconds in chosen.parts.items() if seconds > 0}
    parts.append("<h2>Where a step's time goes</h2>")
    parts.append(bars(dict(sorted(shares.items(), key=lambda each: -each[1]))))
    parts.append(f"<h2>What the fullest rank holds: {chosen.bytes / 1e9:.1f} of {plan.gpu.memory / 1e9:.1f} GB</h2>")
    parts.append(bars({name: size / plan.gpu.memory for name, size in chosen.memory.items()}))
    others = [
        (str(each.layout), f"{each.seconds:.3f}", f"{each.mfu * 100:.1f}", f"{each.bytes / 1e9:.1f}")
        for each in (chosen, *plan.alternatives)
    ]
    parts.append("<h2>Chosen, and others</h2>" + table(others, ("layout", "s a step", "MFU, %", "GB")))
    parts.append(f"<p>Hardware: {safe(plan.gpu.source)}.</p>")
    return document(title, parts)
