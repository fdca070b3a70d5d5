"""Bytecode is there before anything is timed, whatever the interpreter was told."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

SCRIPT = "from weft.testing.bench.bytecode import write_bytecode; write_bytecode(['woven', 'not_there'])"


def test_modules_have_bytecode_afterwards(tmp_path: Path):
    module = tmp_path / "woven" / "thread.py"
    module.parent.mkdir()
    (module.parent / "__init__.py").touch()
    module.write_text("length = 3\n")
    environment = {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True)
    assert Path(cache_from_source(str(module))).exists()
