"""The launcher: one in a process, whoever asks for it first."""

from __future__ import annotations

import subprocess
import sys

RACE = """
import os, threading
from concurrent.futures import ThreadPoolExecutor
from weft.runtime import executable

registered = []
os.register_at_fork = lambda **hooks: registered.append(hooks)
executable.uses_own_pool = lambda: True  # threads of its own, which a fork has to make anew
ready = threading.Barrier(4)

def launcher():
    ready.wait()
    return executable.launcher()

with ThreadPoolExecutor(4) as pool:
    found = [each.result() for each in [pool.submit(launcher) for _ in range(4)]]
print(len(set(map(id, found))), len(registered))
"""


def test_threads_that_ask_at_the_same_time_get_one_launcher_and_one_pool() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.split() == ["1", "1"]
