"""Artifacts that were cut off, damaged or forged: none may crash, hang, or run code that nobody vouches for.

    python -m weft.testing.hostile_artifacts --count 10000 --seed 0

changes a small artifact at random, half of the time with its digests made right again, so that what lies behind them is
met, and loads it as a user would who trusts nobody. Each has to load, or to be refused by one of Weft's errors.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from weft.artifact.container import read_members, write_members
from weft.artifact.digests import digest_of
from weft.artifact.manifest import GRAPH, MANIFEST, PREPARED, SIGNATURES, WEIGHTS
from weft.artifact.read import load
from weft.artifact.write import Request, Source, write_artifact
from weft.errors import WeftError

_X = 'tensor<?x8xf32, #graph.sizes<["s0", "8"]>>'
_Y = 'tensor<?x3xf32, #graph.sizes<["s0", "3"]>>'
LAYER = f"""
"graph.func"() ({{
^bb0(%x: {_X}, %w: tensor<8x3xf32>, %b: tensor<3xf32>):
  %0 = "graph.dot"(%x, %w) : ({_X}, tensor<8x3xf32>) -> {_Y}
  %1 = "graph.exp"(%b) : (tensor<3xf32>) -> tensor<3xf32>
  %2 = "graph.add"(%0, %1) : ({_Y}, tensor<3xf32>) -> {_Y}
  %3 = "graph.tanh"(%2) : ({_Y}) -> {_Y}
  "graph.return"(%3) : ({_Y}) -> ()
}}) {{sym_name = "layer", arg_names = ["x", "w", "b"]}} : () -> ()
"""
SECONDS = 2.0
"""What a refusal may take of a processor's time."""

Members = dict[str, bytes]


def layer_source(seed: int = 0) -> Source:
    """A layer with a symbolic size, weights, and a constant that is computed of one."""
    generator = np.random.default_rng(seed)
    weights = {"w": generator.standard_normal((8, 3)), "b": generator.standard_normal(3)}
    return Source(LAYER, {name: array.astype(np.float32) for name, array in weights.items()})


def layer_inputs(rows: int = 5) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((rows, 8)).astype(np.float32)


def members_of(data: bytes) -> Members:
    """The contents of an artifact's members."""
    return {name: data[m.start : m.start + m.size] for name, m in read_members(memoryview(data)).items()}


def archive(members: Mapping[str, bytes]) -> bytes:
    """The file of members, as it is."""
    file = io.BytesIO()
    write_members(file, [(name, [content]) for name, content in members.items()])
    return file.getvalue()


def resealed(members: Mapping[str, bytes]) -> bytes:
    """An artifact whose manifest states the digests of what its members are now; no seal fits it any more."""
    contents = dict(members)
    manifest: Any = json.loads(contents[MANIFEST])
    manifest["members"] = {
        name: {"size": len(content), "sha512": digest_of(content)}
        for name, content in contents.items()
        if name not in (MANIFEST, SIGNATURES)
    }
    return archive({**contents, MANIFEST: json.dumps(manifest).encode()})


def damaged(data: bytes, chance: random.Random) -> bytes:
    """A file with a few bytes changed, cut off, doubled or moved."""
    match chance.randrange(5):
        case 0:
            return data[: chance.randrange(len(data))]
        case 1:
            start = chance.randrange(len(data))
            return data[:start] + data[start + chance.randrange(1, 64) :]
        case 2:
            start, length = chance.randrange(len(data)), chance.randrange(1, 256)
            return data[:start] + data[start : start + length] * 2 + data[start + length :]
        case 3:
            return data + chance.randbytes(chance.randrange(1, 64))
        case _:
            changed = bytearray(data)
            for _ in range(chance.randrange(1, 5)):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            return bytes(changed)


def forged(data: bytes, chance: random.Random) -> bytes:
    """A file that is whole, with digests that fit, and something in it that no compiler wrote."""
    members = members_of(data)
    match chance.randrange(6):
        case 0:
            members[MANIFEST] = json.dumps(_odd(json.loads(members[MANIFEST]), chance)).encode()
            return archive(members)
        case 1:
            members[GRAPH] = _odd_text(members[GRAPH].decode(), chance).encode()
        case 2:
            name = chance.choice((WEIGHTS, PREPARED))
            members[name] = damaged(members[name], chance)
        case 3:
            members[SIGNATURES] = json.dumps(_odd(json.loads(members[SIGNATURES]), chance)).encode()
            return archive(members)
        case 4:
            name = chance.choice([name for name in members if name.startswith("code/")])
            members[name] = damaged(members[name], chance)
        case _:
            name = chance.choice(list(members))
            members[name] = damaged(members[name], chance)
            if name in (MANIFEST, SIGNATURES):
                return archive(members)
    return resealed(members)


_ODD_VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 1 << 40, 1 << 70, True, 1.5),
    *("", "..", "/etc/passwd", "s0*s0*s1", "f32", "x" * 999, [], {}),
)


def _odd(value: Any, chance: random.Random) -> Any:
    """Data with one thing in it that is another."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        entries: dict[str, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
        key = chance.choice(list(entries))
        if chance.random() < 0.1:
            del entries[key]
            return entries
        return {**entries, key: _odd(entries[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        place = chance.randrange(len(items))
        items[place] = _odd(items[place], chance)
        return items * 2 if chance.random() < 0.1 else items
    return chance.choice(_ODD_VALUES)


_ODD_WORDS = ("99999999999", "0", "-1", "?", "i64", "f16", "graph.dot", "graph.full", '"', "({", "})", "%0", "%9", "w")


def _odd_text(text: str, chance: random.Random) -> str:
    words = text.split(" ")
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(words))
        words[place] = chance.choice([*_ODD_WORDS, chance.choice(words), ""])
    return " ".join(words)


def try_file(path: Path) -> str:
    """Load a file as one who trusts nobody, and run what loads; what came of it, by the error's name."""
    start = time.process_time()
    try:
        model = load(path, threads=1)
        outcome = model.how
    except WeftError as error:
        outcome = type(error).__name__
        if (seconds := time.process_time() - start) > SECONDS:
            raise AssertionError(f"a refusal took {seconds:.1f} s: {error}") from error
        return outcome
    if not outcome.startswith("compiled"):
        raise AssertionError(f"code ran that nobody vouches for: {outcome}")
    try:
        model(layer_inputs())
    except WeftError as error:
        return f"{outcome}, then {type(error).__name__}"
    return outcome


def run(count: int, seed: int, folder: Path, told: Callable[[str], None] = print) -> Counter[str]:
    """Make so many files and load them; raises where one does what none may do."""
    original = folder / "layer.weft"
    write_artifact(original, layer_source(), Request(("host", "x86-64-v2")))
    data = original.read_bytes()
    # The seal is not this user's: what is left as it was is not to be trusted either.
    members = members_of(data)
    members[SIGNATURES] = json.dumps({"machine": "0" * 64, "key": "", "signature": ""}).encode()
    data = archive(members)
    outcomes: Counter[str] = Counter()
    path = folder / "hostile.weft"
    for number in range(count):
        chance = random.Random(f"{seed}-{number}")
        path.write_bytes(damaged(data, chance) if number % 2 else forged(data, chance))
        try:
            outcomes[try_file(path)] += 1
        except Exception as error:
            raise AssertionError(f"file {number} of seed {seed}: {error!r}") from error
        if number % 1000 == 999:
            told(f"{number + 1}: {dict(outcomes)}")
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description="Load artifacts that were changed at random.")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        print(dict(run(given.count, given.seed, Path(folder))))
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MiB at most")


if __name__ == "__main__":
    main()
