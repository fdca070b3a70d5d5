"""The disk cache gives back exactly what was stored, or nothing, whatever happened to its files and its writers."""

import errno
import hashlib
import itertools
import json
import logging
import os
import random
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft import diagnostics
from weft.runtime import cache, cache_entry
from weft.runtime.cache import BadEntry, CacheEntry, DiskCache, cache_key

KEY = cache_key("the key")
META = {"kernels": ["softmax"], "arena": 4096, "unicode": "×", "nested": {"a": [1.5, None, True]}}
BLOBS = {"object": bytes(range(256)), "empty": b"", "../../evil": b"a blob's name is not a path"}

# A process that imports the cache and nothing else; `expected` is what every process stores under a key.
WORKER = """
import os, random, signal, sys, time
from pathlib import Path
from weft.runtime.cache import DiskCache, cache_key

expected = [
    ({"number": number}, {"code": random.Random(number).randbytes(number * 100_000 + 1), "tail": b"tail"})
    for number in range(8)
]
root, seed = Path(sys.argv[1]), int(sys.argv[2])
store, rng = DiskCache(root), random.Random(seed)

def write():
    number = rng.randrange(8)
    store.put(cache_key(number), *expected[number])

def check(number):
    entry = store.get(cache_key(number))
    assert entry is None or (entry.meta, entry.blobs) == expected[number], f"wrong entry {number}"
    return entry is not None
"""

SHARE = """
for _ in range(60):
    write()
    check(rng.randrange(8))
    if rng.random() < 0.02:
        store.clear()
print("ok")
"""

# The writer is forked, not started, so that 200 of them take seconds; it says when it begins to write.
KILL = """
hits = 0
for round in range(200):
    started, ready = os.pipe()
    child = os.fork()
    if child == 0:
        rng.seed(seed + round)
        os.write(ready, b"x")
        while True:
            write()
    os.read(started, 1)
    time.sleep(rng.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(started), os.close(ready)
    hits += sum(check(number) for number in range(8))
print(hits)
"""


def run_worker(body: str, root: Path, seed: int) -> subprocess.Popen[str]:
    source = str(Path(cache.__file__).parents[2])
    environment = {k: v for k, v in os.environ.items() if k != "WEFT_CACHE"} | {"PYTHONPATH": source}
    command = [sys.executable, "-c", WORKER + body, str(root), str(seed)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WEFT_CACHE", "WEFT_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache"


@pytest.fixture
def store(root: Path) -> DiskCache:
    store = DiskCache(root)
    store.put(KEY, META, BLOBS)
    return store


@pytest.fixture
def path(store: DiskCache, root: Path) -> Path:
    return root / f"{KEY}.weft"


def forge(path: Path, header: Any, *sections: bytes, version: int = cache_entry.FORMAT) -> None:
    """Writes an entry whose header has the right sha256 but says whatever we like."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    prefix = struct.pack(">8sIQ32s", cache_entry.MAGIC, version, len(text), hashlib.sha256(text).digest())
    path.write_bytes(prefix + text + b"".join(sections))


def section(name: str, content: bytes) -> list[Any]:
    return [name, len(content), hashlib.sha256(content).hexdigest()]


def test_an_entry_comes_back_exactly(store: DiskCache) -> None:
    assert store.get(KEY) == CacheEntry(KEY, META, BLOBS)
    assert list(store.get(KEY).blobs) == list(BLOBS)
    assert store.get(cache_key("another")) is None


def test_a_second_put_replaces_the_first(store: DiskCache) -> None:
    store.put(KEY, {"second": 2}, {})
    assert store.get(KEY) == CacheEntry(KEY, {"second": 2}, {})
    assert len(store.entries()) == 1


def test_only_the_user_can_read_the_files(path: Path, root: Path) -> None:
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(root) == [path.name], "no temporary file is left"


def test_every_flipped_byte_is_a_miss(store: DiskCache, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    good = path.read_bytes()
    for position, byte in enumerate(good):
        path.write_bytes(good[:position] + bytes([byte ^ (1 << position % 8)]) + good[position + 1 :])
        caplog.clear()
        diagnostics.forget()  # each cause is told once
        assert store.get(KEY) is None, position
        assert not path.exists(), position
        assert [(r.name, r.levelno) for r in caplog.records] == [("weft.cache", logging.WARNING)], position


def test_a_cause_is_told_once_however_many_entries_it_takes(store: DiskCache, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(3):
        key = cache_key(str(number))
        store.put(key, META, BLOBS)
        path = next(store.root.glob(f"{key}*"))  # type: ignore[union-attr]
        path.write_bytes(b"")
        assert store.get(key) is None
    assert len(caplog.records) == 1
    assert "compiled anew" in caplog.text


def test_every_truncation_and_any_tail_is_a_miss(store: DiskCache, path: Path) -> None:
    good = path.read_bytes()
    for content in itertools.chain((good[:length] for length in range(len(good))), [good + b"\0", good + good]):
        path.write_bytes(content)
        assert store.get(KEY) is None
        assert not path.exists()
    path.write_bytes(good)
    assert store.get(KEY) is not None


def test_noise_is_a_miss(store: DiskCache, path: Path) -> None:
    noise = random.Random(0)
    for length in (0, 1, 51, 52, 53, 1000, 100_000):
        path.write_bytes(noise.randbytes(length))
        assert store.get(KEY) is None


@pytest.mark.parametrize(
    ("header", "sections", "reason"),
    [
        (b"[" * 200_000, [], "malformed"),
        (b"\xff", [], "malformed"),
        ([], [], "malformed"),
        ({}, [], "malformed"),
        ({"key": KEY, "created_by": "1", "sections": 3}, [], "malformed"),
        ({"key": KEY, "created_by": "1", "sections": [["", None, ""]]}, [], "malformed"),
        (b'{"key": "%s", "created_by": "1", "sections": [["", 1e999, ""]]}' % KEY.encode(), [], "malformed"),
        ({"key": KEY, "created_by": "1", "sections": [["", -1, ""], ["", 3, ""]]}, [b"ab"], "negative"),
        ({"key": KEY, "created_by": "1", "sections": [["", 1 << 80, ""]]}, [], "expected"),
        ({"key": "0" * 64, "created_by": "1", "sections": []}, [], "entry of 0000"),
        ({"key": KEY, "created_by": "1", "sections": []}, [], "not a JSON object"),
        ({"key": KEY, "created_by": "1", "sections": [section("", b"{")]}, [b"{"], "not a JSON object"),
        ({"key": KEY, "created_by": "1", "sections": [section("", b"[]")]}, [b"[]"], "not a JSON object"),
        ({"key": KEY, "created_by": "other", "sections": [section("", b"{}")]}, [b"{}"], "written by Weft other"),
    ],
)
def test_a_forged_header_is_a_miss(
    store: DiskCache, path: Path, caplog: pytest.LogCaptureFixture, header: Any, sections: list[bytes], reason: str
) -> None:
    forge(path, header, *sections)
    assert store.get(KEY) is None
    assert reason in caplog.text
    assert not path.exists()


def test_another_format_version_is_a_miss(store: DiskCache, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    forge(path, {}, version=cache_entry.FORMAT + 1)
    assert store.get(KEY) is None
    assert "format version 2, expected 1" in caplog.text


def test_an_entry_under_another_name_is_a_miss(store: DiskCache, path: Path, root: Path) -> None:
    other = cache_key("other")
    path.rename(root / f"{other}.weft")
    assert store.get(other) is None


def test_links_pipes_sockets_and_directories_are_not_entries(store: DiskCache, path: Path, root: Path) -> None:
    target = root.parent / "target"
    path.rename(target)
    path.symlink_to(target)
    assert store.get(KEY) is None
    assert target.exists() and not path.is_symlink()

    os.mkfifo(path)
    assert store.get(KEY) is None

    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(root)  # a socket's path is at most 108 bytes
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)
        assert store.get(KEY) is None
    path.unlink()

    path.mkdir()
    assert store.get(KEY) is None
    store.put(KEY, META, BLOBS)
    assert store.get(KEY) is None
    assert [bad.key for bad in store.verify()] == [KEY]
    assert os.listdir(root) == [path.name]


@pytest.mark.parametrize("key", ["", "..", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n", "é" * 64])
def test_a_key_that_is_not_a_hash_is_refused(store: DiskCache, key: str) -> None:
    with pytest.raises(ValueError, match="64 lower-case hex"):
        store.get(key)
    with pytest.raises(ValueError, match="64 lower-case hex"):
        store.put(key, {}, {})


def test_what_json_cannot_hold_is_refused(store: DiskCache) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        store.put(KEY, {"x": float("nan")}, {})
    with pytest.raises(TypeError):
        store.put(KEY, {"x": object()}, {})
    with pytest.raises(ValueError, match="name"):
        store.put(KEY, {}, {"": b""})
    assert store.get(KEY) is not None


def test_foreign_names_are_left_alone(store: DiskCache, root: Path) -> None:
    foreign = ["README", "x.weft", f"{KEY}.weft.bak", f"{KEY.upper()}.weft", ".tmp", ".12-short.tmp", "é.tmp"]
    for name in foreign:
        (root / name).write_text("mine")
        os.utime(root / name, (0, 0))
    assert len(store.entries()) == 1
    assert store.verify(fix=True) == []
    assert store.clear() == 1
    assert sorted(os.listdir(root)) == sorted(foreign)


def test_entries_lists_the_most_recently_used_first(store: DiskCache, path: Path, root: Path) -> None:
    other, broken = cache_key("other"), cache_key("broken")
    store.put(other, {}, {})
    (root / f"{broken}.weft").write_bytes(b"?")
    for age, key in ((10, broken), (20, other), (30, KEY)):
        os.utime(root / f"{key}.weft", (1e9 - age, 1e9 - age))
    listed = store.entries()
    assert [entry.key for entry in listed] == [broken, other, KEY]
    version = cache_entry.weft_version()
    assert [entry.created_by for entry in listed] == ["unreadable", version, version]
    assert listed[2].size == path.stat().st_size
    assert listed[2].modified == 1e9 - 30
    store.get(KEY)
    assert store.entries()[0].key == KEY


def test_verify_names_the_bad_entries_and_removes_them_if_asked(store: DiskCache, path: Path, root: Path) -> None:
    bad = root / f"{cache_key('bad')}.weft"
    bad.write_bytes(path.read_bytes()[:-1])
    forge(root / f"{KEY}.weft", {"key": KEY, "created_by": "0.0.1", "sections": [section("", b"{}")]}, b"{}")
    assert store.verify() == [BadEntry(cache_key("bad"), f"it is the entry of {KEY}")]
    assert bad.exists()
    assert len(store.verify(fix=True)) == 1
    assert os.listdir(root) == [path.name], "another Weft version's entry stays"


def test_an_entry_that_cannot_be_marked_as_used_is_still_read(
    store: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "utime", fail(errno.EROFS))
    assert store.get(KEY) == CacheEntry(KEY, META, BLOBS)


def test_clear_counts(store: DiskCache, root: Path) -> None:
    store.put(cache_key(2), {}, {})
    assert store.clear() == 2
    assert store.clear() == 0
    assert store.get(KEY) is None


def test_a_missing_directory_is_an_empty_cache(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DiskCache(root)
    assert (store.get(KEY), store.entries(), store.clear(), store.verify()) == (None, [], 0, [])
    assert not root.exists()
    assert not caplog.records


def test_over_the_limit_the_least_recently_used_go(root: Path) -> None:
    store = DiskCache(root, limit_bytes=100_000)
    keys = [cache_key(number) for number in range(9)]
    for age, key in enumerate(reversed(keys)):
        store.put(key, {}, {"code": bytes(10_000)})
        os.utime(root / f"{key}.weft", (1e9 - age, 1e9 - age))
    assert store.get(keys[0]) is not None, "used now, so it is the last to go"
    store.put(cache_key("more"), {}, {"code": bytes(10_000)})
    assert {entry.key for entry in store.entries()} == {cache_key("more"), keys[0], *keys[3:]}
    assert sum(entry.size for entry in store.entries()) <= 90_000


def test_the_limit_holds_after_every_put(root: Path) -> None:
    store = DiskCache(root, limit_bytes=50_000)
    sizes = random.Random(1)
    for number in range(200):
        store.put(cache_key(number), {}, {"code": bytes(sizes.randrange(12_000))})
        assert sum(entry.stat().st_size for entry in root.iterdir()) <= 50_000
        assert store.get(cache_key(number)) is not None


def test_an_entry_larger_than_the_cache_is_not_stored(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = DiskCache(root, limit_bytes=10_000)
    store.put(KEY, {}, {"code": bytes(10_000)})
    assert store.get(KEY) is None
    assert "do not fit" in caplog.text


def test_temporary_files_of_the_dead_are_removed_later(root: Path, store: DiskCache) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    ages = {
        f".{child.pid}-{'0' * 16}.tmp": 120,  # dead
        f".9999999999-{'1' * 16}.tmp": 120,  # no such process can be
        f".{os.getpid()}-{'2' * 16}.tmp": 7200,  # too old to be in use: the process id was used again
        f".{child.pid}-{'3' * 16}.tmp": 5,  # too young to tell: perhaps of another container
        f".{os.getpid()}-{'4' * 16}.tmp": 120,  # alive
        f".1-{'5' * 16}.tmp": 120,  # alive
    }
    now = (root / f"{KEY}.weft").stat().st_mtime
    for name, age in ages.items():
        (root / name).write_bytes(b"half")
        os.utime(root / name, (now - age, now - age))
    DiskCache(root).put(KEY, META, BLOBS)
    assert [name for name in ages if (root / name).exists()] == list(ages)[3:]


def fail(code: int) -> Any:
    def raises(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return raises


@pytest.mark.parametrize("function", ["open", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_failed_write_is_logged_and_leaves_the_cache_as_it_was(
    store: DiskCache, root: Path, caplog: pytest.LogCaptureFixture, function: str, code: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, function, fail(code))
        store.put(KEY, {"new": 1}, {})
    assert os.strerror(code) in caplog.text
    assert os.listdir(root) == [f"{KEY}.weft"]
    assert store.get(KEY) == CacheEntry(KEY, META, BLOBS)


@pytest.mark.parametrize("function", ["open", "listdir", "stat"])
def test_a_failed_read_is_logged_and_is_a_miss(
    store: DiskCache, path: Path, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, function, fail(errno.EACCES))
        assert function == "listdir" or store.get(KEY) is None
        assert function == "open" or store.entries() == []
        store.verify()
        assert store.clear() == 0 or function == "open"
    assert "Permission denied" in caplog.text
    assert function == "open" or path.exists(), "what cannot be read may still be good"


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A directory, with this process running as its unprivileged owner: permissions do not stop root."""
    user, before = os.geteuid() or 65534, os.geteuid()
    directory = Path(tempfile.mkdtemp())
    os.chown(directory, user, -1)
    os.seteuid(user)
    yield directory
    os.seteuid(before)
    shutil.rmtree(directory)


def test_a_read_only_cache_is_read_and_not_written(unprivileged: Path) -> None:
    root = unprivileged / "cache"
    path, store = root / f"{KEY}.weft", DiskCache(root)
    store.put(KEY, META, BLOBS)
    path.chmod(0o400)
    root.chmod(0o500)
    assert store.get(KEY) == CacheEntry(KEY, META, BLOBS)
    store.put(cache_key("new"), {}, {})
    assert store.get(cache_key("new")) is None
    assert store.clear() == 0
    path.chmod(0)
    assert store.get(KEY) is None
    assert store.verify() == [BadEntry(KEY, f"[Errno 13] Permission denied: '{path}'")]
    root.chmod(0)
    assert store.get(KEY) is None
    assert store.entries() == []
    root.chmod(0o700)


def test_a_directory_of_another_user_is_refused_once_aloud(
    store: DiskCache, path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    assert store.get(KEY) is None
    store.put(KEY, {}, {})
    assert (store.entries(), store.clear(), store.verify()) == ([], 0, [])
    assert path.exists()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "owned by user" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_refused(store: DiskCache, path: Path) -> None:
    os.chown(path, 65534, -1)
    assert store.get(KEY) is None
    assert not path.exists()


def test_a_root_that_is_not_a_directory_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        store = DiskCache(root)
        assert store.get(KEY) is None
        store.put(KEY, {}, {})
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert DiskCache().root == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert DiskCache().root == tmp_path / ".cache" / "weft"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert DiskCache().root == tmp_path / "xdg" / "weft"
    monkeypatch.setenv("WEFT_CACHE_DIR", "~/mine")
    assert DiskCache().root == tmp_path / "mine"
    assert DiskCache(tmp_path / "given").root == tmp_path / "given"


def test_without_a_home_there_is_no_cache(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    store = DiskCache()
    store.put(KEY, META, BLOBS)
    assert (store.enabled, store.get(KEY), store.entries()) == (False, None, [])
    assert "WEFT_CACHE_DIR" in caplog.text


def test_switched_off_it_stores_nothing_but_can_be_cleared(
    store: DiskCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", "0")
    off = DiskCache(root)
    off.put(cache_key("new"), {}, {})
    assert (off.enabled, off.get(KEY)) == (False, None)
    assert off.clear() == 1


def test_keys_differ_wherever_their_parts_do() -> None:
    lists: list[tuple[Any, ...]] = [
        (),
        ((),),
        ((), ()),
        (((),),),
        ("",),
        (b"",),
        (None,),
        ("None",),
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        (("a", "bc"),),
        ("a", ("bc",)),
        (("a",), "bc"),
        ("s",),
        ("a", "", "bc"),
        (b"abc",),
        (1,),
        (1.0,),
        (True,),
        ("1",),
        (b"1",),
        (0,),
        (0.0,),
        (-0.0,),
        (False,),
        (-1,),
        (256,),
        (2**64,),
        (2**64 + 1,),
        (10**5000,),
        (float("nan"),),
        (float("inf"),),
        (0.1 + 0.2,),
        (0.3,),
        ("é",),
        ("e\u0301",),
        ("\ud800",),
        ("\0",),
        ("\0\0",),
        ("a", None),
        ("a",),
        (None, "a"),
        (1, 2),
        ((1, 2),),
        (12,),
        ((1,), 2),
        (b"s\0\0\0\0\0\0\0\1a",),
    ]
    keys = [cache_key(*parts) for parts in lists]
    assert len(set(keys)) == len(lists)
    assert keys == [cache_key(*parts) for parts in lists]


def test_a_key_is_the_same_in_every_version() -> None:
    assert cache_key() == hashlib.sha256(b"t" + bytes(8)).hexdigest()
    part = b"s" + struct.pack(">Q", 1) + b"a"
    assert cache_key("a") == hashlib.sha256(b"t" + struct.pack(">Q", len(part)) + part).hexdigest()


def test_a_key_of_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        cache_key([1])  # type: ignore[arg-type]


def test_threads_share_a_cache(root: Path) -> None:
    store, wrong = DiskCache(root, limit_bytes=200_000), list[int]()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            number = rng.randrange(8)
            store.put(cache_key(number), {"number": number}, {"code": bytes([number]) * 10_000})
            entry = store.get(cache_key(other := rng.randrange(8)))
            if entry is not None and entry.blobs["code"] != bytes([other]) * 10_000:
                wrong.append(other)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.verify() == []


def test_eight_processes_share_a_cache(root: Path) -> None:
    workers = [run_worker(SHARE, root, seed) for seed in range(8)]
    outcomes = [worker.communicate(timeout=600) for worker in workers]
    assert [output for output, _ in outcomes] == ["ok\n"] * 8, outcomes
    assert [errors for _, errors in outcomes] == [""] * 8, "no warning: nobody saw half an entry"
    assert DiskCache(root).verify() == []


def test_two_hundred_writers_killed_at_random_moments(root: Path) -> None:
    worker = run_worker(KILL, root, seed=7)
    output, errors = worker.communicate(timeout=600)
    assert worker.returncode == 0, errors
    assert int(output) > 200, "most entries were written whole"
    assert errors == "", "no warning: a killed writer leaves no bad entry"
    temps = [name for name in os.listdir(root) if name.endswith(".tmp")]
    assert len(temps) > 20, "the kills did strike during writes"
    store = DiskCache(root)
    assert store.verify() == []
    for name in temps:
        os.utime(root / name, (0, 0))
    store.put(KEY, META, BLOBS)
    assert not [name for name in os.listdir(root) if name.endswith(".tmp")]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o377])
def test_the_directory_is_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    cache = DiskCache(tmp_path / "cache")
    before = os.umask(umask)
    try:
        cache.put(KEY, {}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert cache.get(KEY) is not None


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_can_write_to_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "cache"
    cache = DiskCache(root)
    cache.put(KEY, {}, {})
    root.chmod(mode)
    with caplog.at_level(logging.WARNING, logger="weft.cache"):
        for _ in range(3):
            assert cache.get(KEY) is None
            cache.put(KEY, {}, {})
    assert len(caplog.records) == 1 and "chmod go-w" in caplog.text
    assert "can write" in (cache.unusable() or "")
    root.chmod(0o755)
    assert cache.get(KEY) is not None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = DiskCache(tmp_path / "cache")
    cache.put(KEY, {}, {})
    path = tmp_path / "cache" / f"{KEY}.weft"
    path.chmod(mode)
    assert [bad.reason for bad in cache.verify()] and not cache.entries()[0].created_by.startswith("0")
    assert cache.get(KEY) is None and not path.exists()
