"""What multiprocessors of each architecture hold at once, as NVIDIA's table of compute capabilities has it."""

from __future__ import annotations

import pytest

from weft.backends.nvidia.target import target_named, target_of_capability

LIMITS = {  # threads, blocks, KiB of shared memory
    "sm_80": (2048, 32, 164),
    "sm_86": (1536, 16, 100),
    "sm_89": (1536, 24, 100),
    "sm_90a": (2048, 32, 228),
    "sm_100a": (2048, 32, 228),
    "sm_120a": (1536, 24, 100),
}


@pytest.mark.parametrize("arch", LIMITS)
def test_limits(arch: str) -> None:
    target, (threads, blocks, shared) = target_named(arch), LIMITS[arch]
    assert target.blocks(32, 16, 0) == blocks, "small blocks are as many as there may be"
    assert target.blocks(256, 16, 0) == threads // 256
    assert target.blocks(1024, 32, 0) == threads // 1024
    assert target.blocks(64, 16, 15 * 1024) == shared // 16, "a block has 1 KiB more than its own"
    assert target.blocks(64, 16, target.shared_per_block) == 1
    assert target.blocks(128, 255, 0) == 2


def test_registers_are_given_to_warps_by_each_part_of_a_multiprocessor() -> None:
    hopper = target_named("sm_90a")
    assert hopper.blocks(128, 40, 0) == hopper.blocks(128, 33, 0) == 12
    assert hopper.blocks(160, 40, 0) == 9, "12 warps in each part are 48, although registers of 51 are there"


def test_shared_memory_is_given_out_in_units() -> None:
    hopper = target_named("sm_90a")
    assert hopper.blocks(128, 16, 18432) == 12 and hopper.blocks(128, 16, 18433) == 11


def test_a_gpu_without_code_of_its_own_has_that_of_an_older_one() -> None:
    assert target_of_capability(8, 7, 16).arch == "sm_86"
    assert target_of_capability(8, 9, 16).most_blocks == 24
