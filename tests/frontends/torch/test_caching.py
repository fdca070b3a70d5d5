"""What the cache gives is what was compiled: bad entries are as good as none, and conditions on sizes are not lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.frontends.torch.aten import CONVERTERS
from weft.frontends.torch.importer import import_nodes
from weft.runtime import stored_programs
from weft.runtime.cache import DiskCache
from weft.runtime.record import recording


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    monkeypatch.delenv("WEFT_CACHE", raising=False)
    made = DiskCache(tmp_path / "cache")
    monkeypatch.setattr(stored_programs, "disk_cache", lambda: made)
    torch.compiler.reset()
    return made


def run(function: Callable[..., Any], *arguments: Any, dynamic: bool | None = None) -> tuple[Any, list[str]]:
    """What a function gives when it is compiled anew, and where each of its graphs came from."""
    torch.compiler.reset()
    with recording() as records:
        result = torch.compile(function, backend="weft", dynamic=dynamic)(*arguments)
    return result, [record.source for record in records]


def _nested() -> list[Any]:
    nested: list[Any] = []
    for _ in range(900):
        nested = [nested]
    return nested


def _with(*path: Any) -> Callable[[dict[str, Any]], None]:
    *outer, last, value = path

    def change(meta: dict[str, Any]) -> None:
        place: Any = meta
        for part in outer:
            place = place[part]
        place[last] = value

    return change


GRID = ("plan", "steps", 0, "grid")
ATTACKS = {
    "division by zero": _with(*GRID, {"$": "size", "text": "1//0"}),
    "parentheses": _with(*GRID, {"$": "size", "text": "(" * 5000 + "1" + ")" * 5000}),
    "signs": _with(*GRID, {"$": "size", "text": "-" * 3000 + "1"}),
    "a null character": _with(*GRID, {"$": "size", "text": "1\0"}),
    "a word": _with(*GRID, "boom"),
    "a list": _with("plan", [1]),
    "no buffers": _with("plan", "buffers", []),
    "nested lists": _with("plan", "symbols", _nested()),
    "an unknown size": _with("plan", "steps", 0, "symbols", ["s0"]),
    "an unknown result": _with("calling", "outputs", [{"$": "Returned", "result": 5, "is_complex": False}]),
    "an argument too many": _with("calling", "arguments", [0, 1, 2]),
    "nothing": lambda meta: meta.clear(),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_bad_entry_is_as_good_as_none(cache: DiskCache, name: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.randn(7)
    assert run(function, x)[1] == ["compiled"]
    ((key, *_),) = [(entry.key,) for entry in cache.entries()]
    entry = cache.get(key)
    assert entry is not None
    meta = copy.deepcopy(entry.meta)
    ATTACKS[name](meta)
    cache.put(key, meta, entry.blobs)
    result, sources = run(function, x)
    assert sources == ["compiled"]
    torch.testing.assert_close(result, function(x))
    assert run(function, x)[1] == ["cache"]


def test_a_graph_whose_import_adds_conditions_is_not_kept(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    # Taken apart by torch, which may look at sizes as it does so: this one stands for such decompositions.
    def chosen_by_size(x: torch.Tensor) -> torch.Tensor:
        return x.cos() if x.shape[0] > 5 else x.sin()

    monkeypatch.delitem(CONVERTERS, "aten.sinh.default")
    monkeypatch.setattr(import_nodes, "decomposition_of", lambda _: chosen_by_size)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sinh() * 2

    for size in (6, 3, 6, 3):
        result, sources = run(function, x := torch.randn(size), dynamic=True)
        assert sources == ["compiled"]
        torch.testing.assert_close(result, chosen_by_size(x) * 2)
    assert not cache.entries()


def test_what_is_known_of_sizes_is_part_of_the_key(cache: DiskCache) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[n] * 2

    x = torch.randn(9)
    for n, source in ((2, "compiled"), (-2, "compiled"), (3, "cache"), (-3, "cache")):
        result, sources = run(function, x, n, dynamic=True)
        assert sources == [source]
        torch.testing.assert_close(result, function(x, n))


@pytest.mark.parametrize("size", [4, 9])
def test_symbols_that_only_a_call_to_torch_takes(cache: DiskCache, size: int) -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.slice_scatter(x, x.new_zeros(1), 0, n, n + 1)

    torch.compiler.reset()
    compiled = torch.compile(function, backend="weft", dynamic=True)
    for n in (2, 1, 3):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, n), function(x, n))


def _negated() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    return numbers.imag, numbers.conj().imag


def _conjugated() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    return numbers, numbers.conj()


@pytest.mark.parametrize("make", [_negated, _conjugated])
@pytest.mark.parametrize(
    "function", [torch.clone, lambda x: x.contiguous() * 1, lambda x: torch.empty(2).copy_(x.real)]
)
def test_how_memory_is_read_is_part_of_the_key(
    cache: DiskCache, make: Callable[[], tuple[torch.Tensor, torch.Tensor]], function: Callable[..., Any]
) -> None:
    for arguments in (make(), make()[::-1]):
        cache.clear()
        for x in arguments:
            torch.testing.assert_close(run(function, x)[0], function(x))


def test_arguments_in_one_memory_and_apart_have_keys_of_their_own(cache: DiskCache) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return b.view(2, 4), a.view(4, 2), a + b

    memory = torch.randn(20)
    _, sources = run(function, memory[:8], memory[4:12])
    assert sources == ["compiled"]
    a, b = torch.randn(8), torch.randn(8)
    result, sources = run(function, a, b)
    assert sources == ["compiled"]
    torch.testing.assert_close(result, function(a, b))


def test_the_type_of_new_tensors_is_part_of_the_key(cache: DiskCache) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, 0.5, 2.0) / 3

    x = torch.randint(-2, 3, (16,))
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            torch.testing.assert_close(run(function, x)[0], function(x))
    finally:
        torch.set_default_dtype(torch.float32)


def test_lines_are_those_of_the_program_that_runs(cache: DiskCache) -> None:
    def first(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i].sin() + 3

    def second(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x[i].sin() + 3

    x, i = torch.randn(11, 5), torch.tensor([40])
    for function, source in ((first, "compiled"), (second, "cache")):
        assert run(function, x, i % 11)[1] == [source]
        torch.compiler.reset()
        with pytest.raises(IndexError) as raised:
            torch.compile(function, backend="weft")(x, i)
        assert f"test_caching.py:{function.__code__.co_firstlineno + 1}" in str(raised.value)


def test_code_that_states_lines_is_that_of_its_own_lines(cache: DiskCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).exp()

    def same(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).exp()

    x = torch.randn(8)
    assert [run(each, x)[1] for each in (one, same)] == [["compiled"], ["cache"]]
    monkeypatch.setenv("WEFT_DEBUG_LINES", "1")
    assert [run(each, x)[1] for each in (one, same, one)] == [["compiled"], ["compiled"], ["cache"]]
