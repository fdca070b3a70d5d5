"""`weft cache`: what compiled programs are kept on disk; remove them, or check every byte."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from rich.table import Table

from weft.errors import WeftError
from weft.runtime.cache import DiskCache
from weft.tools.terminal import Terminal, counted


def _store() -> DiskCache:
    store = DiskCache()
    if (reason := store.unusable()) is not None:
        raise WeftError(
            f"the cache in {store.root} cannot be used: {reason}", hint="set WEFT_CACHE_DIR to another place"
        )
    return store


def list_entries(terminal: Terminal) -> None:
    """Print the entries, the most recently used first."""
    store = _store()
    entries = store.entries()
    total = sum(entry.size for entry in entries)
    table = Table("key", "kB", "last used", "written by", title=str(store.root), title_justify="left")
    for entry in entries:
        used = datetime.fromtimestamp(entry.modified).isoformat(" ", "seconds")
        table.add_row(entry.key[:16], f"{entry.size / 1e3:.1f}", used, f"Weft {entry.created_by}")
    terminal.show(table, f"{counted(len(entries), 'program')}, {total / 1e6:.1f} of {store.limit_bytes / 1e6:.0f} MB")
    figures = {
        "ok": True,
        "root": str(store.root),
        "enabled": store.enabled,
        "bytes": total,
        "limit": store.limit_bytes,
    }
    terminal.finish({**figures, "entries": [asdict(entry) for entry in entries]})


def clear(terminal: Terminal) -> None:
    """Remove every entry."""
    store = _store()
    with terminal.working("clearing the cache"):
        removed = store.clear()
    terminal.show(f"removed {counted(removed, 'program')} from {store.root}")
    terminal.finish({"ok": True, "root": str(store.root), "removed": removed})


def verify(terminal: Terminal, *, fix: bool) -> None:
    """Read every entry whole; exit with 1 if one is bad and was not removed."""
    store = _store()
    with terminal.working("reading the cache"):
        count = len(store.entries())
        bad = store.verify(fix=fix)
    for entry in bad:
        terminal.show(f"{entry.key[:16]}: {entry.reason}")
    done = "removed" if fix else "`weft cache verify --fix` removes them"
    terminal.show(f"{counted(count, 'program')} in {store.root}, {len(bad)} bad" + (f" ({done})" if bad else ""))
    figures = {"root": str(store.root), "checked": count, "bad": [asdict(entry) for entry in bad], "fixed": fix}
    terminal.finish({"ok": not bad or fix, **figures}, code=1 if bad and not fix else 0)
