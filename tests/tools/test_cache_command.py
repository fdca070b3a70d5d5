"""`weft cache` lists, checks and removes compiled programs."""

from __future__ import annotations

from pathlib import Path

from weft.runtime.cache import DiskCache, cache_key

from .conftest import last_json


def filled(tmp_path: Path) -> DiskCache:
    store = DiskCache(tmp_path / "cache")
    for name in ("a", "b"):
        store.put(cache_key(name), {"name": name}, {"code": b"x" * 100})
    return store


def test_list(weft, tmp_path: Path) -> None:
    assert last_json(weft("cache", "list", "--json"))["entries"] == []
    filled(tmp_path)
    figures = last_json(weft("cache", "list", "--json"))
    assert {entry["key"] for entry in figures["entries"]} == {cache_key("a"), cache_key("b")}
    assert figures["bytes"] > 200 and figures["root"] == str(tmp_path / "cache")
    assert cache_key("a")[:16] in weft("cache", "list").stdout


def test_clear(weft, tmp_path: Path) -> None:
    store = filled(tmp_path)
    assert "removed 2 programs" in weft("cache", "clear").stdout
    assert store.entries() == []
    assert last_json(weft("cache", "clear", "--json"))["removed"] == 0


def test_verify(weft, tmp_path: Path) -> None:
    filled(tmp_path)
    assert weft("cache", "verify").exit_code == 0
    damaged = tmp_path / "cache" / f"{cache_key('a')}.weft"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"y")
    result = weft("cache", "verify", "--json")
    assert result.exit_code == 1
    assert [entry["key"] for entry in last_json(result)["bad"]] == [cache_key("a")]
    assert weft("cache", "verify", "--fix").exit_code == 0
    assert last_json(weft("cache", "verify", "--json")) == {
        "ok": True,
        "root": str(tmp_path / "cache"),
        "checked": 1,
        "bad": [],
        "fixed": False,
    }


def test_a_place_that_cannot_be_a_cache_is_an_error(weft, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    for command in ("list", "clear", "verify"):
        result = weft("cache", command)
        assert result.exit_code == 1 and "is not a directory" in result.stderr
