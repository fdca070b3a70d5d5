"""A fleet's plan as one HTML file that needs nothing else."""

from __future__ import annotations

from weft.planner.fleet import FleetPlan
from weft.planner.page import bars, document, safe, table
from weft.planner.plan import quantiles


def dollars(plan: FleetPlan) -> str:
    """What a fleet costs, and what one more GPU is told against."""
    least = f"; with parts of replicas and no spares ${plan.least_dollars:,.0f} would do" if not plan.unserved else ""
    against = " One more GPU is told against that optimum in parts of replicas." if plan.worth else ""
    return f"${plan.dollars:,.0f} an hour for the GPUs that are used{least}.{against}"


def fleet_page(plan: FleetPlan) -> str:
    """The whole page: how full each pool is, who serves what, and what is not served."""
    total = sum(pool.gpus for pool in plan.fleet.pools)
    parts = [
        f'<p class="warn">{safe(name)}: {rate:.2f} requests/s are not served: no pool has room</p>'
        for name, rate in plan.unserved.items()
    ]
    for name, count in plan.missing_spares.items():
        parts.append(f'<p class="warn">{safe(name)}: no room for {count} spare replica{"s" if count > 1 else ""}</p>')
    for pair, told in plan.assumptions.items():
        parts += [f'<p class="warn">{safe(pair)}: {safe(words)}</p>' for words in told]
    parts.append(f"<p>{safe(dollars(plan))}</p>")
    parts.append("<h2>How much of each pool is used</h2>")
    parts.append(bars({pool.name: plan.used(pool) / max(pool.gpus, 1) for pool in plan.fleet.pools}))
    pools = [
        (pool.name, pool.gpu.device, pool.gpus, plan.used(pool), str(plan.worth.get(pool.name, "changes nothing")))
        for pool in plan.fleet.pools
    ]
    parts.append(table(pools, ("pool", "GPU", "GPUs", "used", "one more GPU")))
    rows = [
        (
            each.service.name, each.pool.name, str(each.choice.mapping), each.replicas, each.spare, each.gpus,
            f"{each.rate:.1f}", f"{quantiles(each.choice.load.outcome.ttft)['p90'] * 1e3:.0f}",
            f"{quantiles(each.choice.load.outcome.tpot)['p90'] * 1e3:.1f}",
        )
        for each in plan.shares
    ]  # fmt: skip
    head = ("service", "pool", "mapping", "replicas", "spare", "GPUs", "requests/s", "TTFT p90, ms", "TPOT p90, ms")
    parts.append("<h2>Who serves what, at the most that replicas bear</h2>" + table(rows, head))
    if plan.refused:
        parts.append("<h2>What cannot be</h2>" + table(list(plan.refused.items()), ("service and pool", "why")))
    return document(f"A fleet of {total:,} GPUs", parts)
