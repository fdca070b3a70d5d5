"""Which flags a processor is found to have, where the system tells of it and where it tells of another one."""

from __future__ import annotations

from weft.artifact.processors import BASELINES, features_of, flags_here, flags_of

X86 = "processor\t: 0\nflags\t\t: fpu sse2 avx2\n\nprocessor\t: 1\nflags\t\t: fpu sse2\nvmx flags\t: ept\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd sve\n\nprocessor\t: 1\nFeatures\t: fp asimd\n"


def test_flags_are_those_that_all_processors_have() -> None:
    assert flags_of(X86, "x86_64") == {"fpu", "sse2"}
    assert flags_of(ARM, "aarch64") == {"fp", "asimd"}


def test_another_architectures_file_says_nothing() -> None:
    """Under an emulator `/proc/cpuinfo` is about the machine below."""
    assert flags_of(X86, "aarch64") == flags_of(ARM, "x86_64") == frozenset()
    assert flags_of(X86, "riscv64") == frozenset()


def test_an_aarch64_program_knows_its_features_from_its_start() -> None:
    assert features_of(0b11) == {"fp", "asimd"}
    assert features_of(1 << 22 | 1 << 8) == {"sve", "atomics"}
    assert features_of(0b11) >= set(BASELINES["aarch64"][2])


def test_this_machine_tells_its_flags() -> None:
    assert flags_here()
