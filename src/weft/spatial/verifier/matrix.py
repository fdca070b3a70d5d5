"""Invariant 5: loads, installs, products and sums of each plane, in the order of time."""

from __future__ import annotations

import numpy as np

from weft.spatial.isa import ADDS, COLUMNS, EMITS, Opcode, load_widths
from weft.spatial.verifier.violations import Checks


def check_matrix(checks: Checks) -> None:
    """Every plane."""
    for plane in range(checks.program.machine.matrix.planes):
        _check_weights(checks, plane)
        _check_sums(checks, plane)


def _of_queue(checks: Checks, plane: int, part: int, opcode: Opcode) -> np.ndarray:
    issues = checks.issues
    own = np.flatnonzero((issues["queue"] == checks.program.units.plane(plane, part)) & (issues["opcode"] == opcode))
    return own[np.argsort(issues["cycle"][own], kind="stable")]


def _check_weights(checks: Checks, plane: int) -> None:
    machine, issues = checks.program.machine, checks.issues
    loads = _of_queue(checks, plane, 0, Opcode.LOAD_WEIGHTS)
    installs = _of_queue(checks, plane, 0, Opcode.INSTALL_WEIGHTS)
    multiplies = _of_queue(checks, plane, 1, Opcode.MULTIPLY)
    loaded, installed = issues["cycle"][loads], issues["cycle"][installs]
    # What is loaded from an install on belongs to the next one.
    owner = np.searchsorted(installed, loaded, side="right")
    for number, install in enumerate(installs.tolist()):
        own = loads[owner == number]
        detail = issues["detail"][own]
        turned = (detail & COLUMNS > 0) * machine.latency.transpose
        late = issues["cycle"][own] + machine.latency.load_weights + turned > issues["cycle"][install]
        checks.refuse(5, own[late], "loads weights too late for the install that follows")
        # An install says how many rows or columns it takes; 0 is all of them.
        count = int(issues["address"][install]) or machine.matrix.rows
        order = np.argsort(issues["address"][own])
        widths = load_widths(detail[order], machine)
        firsts = np.arange(0, count, machine.matrix.load_streams)
        loaded_rows = issues["address"][own][order] * machine.matrix.load_streams
        whole = np.array_equal(loaded_rows, firsts) and np.array_equal(
            np.minimum(loaded_rows + widths, machine.matrix.rows), np.append(firsts[1:], count)
        )
        if not whole:
            checks.refuse(5, np.array([install]), "installs weights that are not loaded exactly once")
        shaped = (detail & ~0xFF) != issues["detail"][install]
        checks.refuse(5, own[shaped], "loads other lanes, or the other side up, than is installed")
        other = (issues["tag"][own] != issues["tag"][install]) | (
            issues["want0"][own] != issues["tag"][install] + issues["address"][own] * machine.matrix.load_streams
        )
        checks.refuse(5, own[other], "loads weights of another tile than is installed")
    checks.refuse(5, loads[owner >= len(installs)], "loads weights that are never installed")
    ready = installed + machine.latency.install_weights
    used = np.searchsorted(ready, issues["cycle"][multiplies], side="right") - 1
    checks.refuse(5, multiplies[used < 0], "multiplies before weights are installed")
    kept = used >= 0
    by = installs[used[kept]] if len(installs) else multiplies[:0]
    wrong = (issues["tag"][by] != issues["tag"][multiplies[kept]]) | (
        issues["detail"][by] != issues["detail"][multiplies[kept]]
    )
    checks.refuse(5, multiplies[kept][wrong], "multiplies by other weights than it is meant to")
    before = np.searchsorted(installed, issues["cycle"][multiplies], side="left") - 1
    during = before > used
    checks.refuse(5, multiplies[during], "multiplies while weights are being installed")


def _check_sums(checks: Checks, plane: int) -> None:
    machine, issues = checks.program.machine, checks.issues
    multiplies = _of_queue(checks, plane, 1, Opcode.MULTIPLY)
    sums = _of_queue(checks, plane, 2, Opcode.ACCUMULATE)
    products = issues["cycle"][multiplies] + machine.latency.multiply
    times = issues["cycle"][sums]
    checks.refuse(5, sums[~np.isin(times, products)], "finds no product in its cycle")
    checks.refuse(5, multiplies[~np.isin(products, times)], "makes a product that is never added")
    if len(multiplies):
        taken = multiplies[np.minimum(np.searchsorted(products, times), len(multiplies) - 1)]
        other = (issues["want0"][taken] != issues["want0"][sums]) | (issues["tag"][taken] != issues["want1"][sums])
        checks.refuse(5, sums[np.isin(times, products) & other], "takes another product than it is meant to")
    rows = issues["address"][sums]
    outside = (rows < 0) | (rows >= machine.matrix.accumulator_rows)
    checks.refuse(5, sums[outside], f"has no such row of {machine.matrix.accumulator_rows} accumulators")
    order = np.lexsort((times, rows))
    row, issue = rows[order], sums[order]
    adds, emits = issues["detail"][issue] & ADDS > 0, issues["detail"][issue] & EMITS > 0
    tags = issues["tag"][issue]
    same_row = np.append(False, row[1:] == row[:-1])
    open_before = np.append(False, ~emits[:-1]) & same_row
    continues = np.append(False, tags[1:] == tags[:-1]) & open_before
    checks.refuse(5, issue[adds & ~continues], "adds to a row that holds no part of its sum")
    checks.refuse(5, issue[~adds & open_before], "writes over a row whose sum was not taken")
    ends = np.append(row[1:] != row[:-1], True) if len(row) else np.zeros(0, bool)
    checks.refuse(5, issue[ends & ~emits], "leaves a sum that is never taken")
