"""Weft's own threads: every program runs once, whoever calls, and a forked child has threads again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft.backends.cpu.launcher import launcher_module
from weft.backends.cpu.thread_pool import has_own_pool

_HEAD = """
import os, sys, threading
import numpy as np
from weft.frontends.text import compile_text
from weft.config import Config
from weft.runtime.openmp import can_use_threads, uses_own_pool

TEXT = '''
"graph.func"() ({
^bb0(%x: tensor<40x9000xf32>):
  %0 = "graph.exp"(%x) : (tensor<40x9000xf32>) -> tensor<40x9000xf32>
  %1 = "graph.sum"(%0) {dims = [1 : i64], keep = false} : (tensor<40x9000xf32>) -> tensor<40xf32>
  "graph.return"(%1) : (tensor<40xf32>) -> ()
}) {sym_name = "f", arg_names = ["x"]} : () -> ()
'''
assert uses_own_pool() and can_use_threads()
x = np.random.default_rng(0).standard_normal((40, 9000)).astype(np.float32)
expected = np.exp(x.astype(np.float64)).sum(1)

def check(threads):
    function = compile_text(TEXT, config=Config(cache=False), threads=threads)
    np.testing.assert_allclose(function(x)[0], expected, rtol=1e-5)
    return function

def tasks():
    return len(os.listdir("/proc/self/task"))
"""


def _run(body: str) -> None:
    # Python warns of any fork beside threads, which is what is tried here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _HEAD + body]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_all_threads_take_their_share_are_kept_and_made_anew_in_a_forked_child() -> None:
    _run(
        """
before = tasks()
function = check(2)
assert tasks() == before + 1, (before, tasks())
for threads in (1, 2, 5, 8, 3):
    check(threads)
assert tasks() == before + 7
child = os.fork()
if not child:
    alone = tasks()
    np.testing.assert_allclose(function(x)[0], expected, rtol=1e-5)
    os._exit(0 if (alone, tasks()) == (1, 2) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
np.testing.assert_allclose(function(x)[0], expected, rtol=1e-5)
"""
    )


def test_callers_at_the_same_time_do_not_wait_for_each_other_and_a_fork_leaves_no_lock_behind() -> None:
    _run(
        """
function, wrong, stop = check(2), [], []
def call():
    while not stop:
        found, = function(x)
        if not np.allclose(found, expected, rtol=1e-5):
            wrong.append(found)
threads = [threading.Thread(target=call) for _ in range(6)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        np.testing.assert_allclose(function(x)[0], expected, rtol=1e-5)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.append(1)
for thread in threads: thread.join()
assert not wrong
"""
    )


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_the_pool_is_made_for_processors_of_linux(triple: str) -> None:
    text = launcher_module(triple, own_pool=True)
    assert has_own_pool(triple) and "weft_parallel" in text and "GOMP" not in text and "{" + "futex" not in text


def test_other_systems_have_none() -> None:
    assert not has_own_pool("arm64-apple-darwin23.0")
