"""Write what pip would know of this package to a folder: torch finds backends by the entry points of packages.

`make offline` calls it, so that a machine where nothing can be installed has `backend="weft"` by the path alone.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

folder, project = Path(sys.argv[1]), tomllib.loads(Path("pyproject.toml").read_text())["project"]
described = folder / f"{project['name']}-{project['version']}.dist-info"
described.mkdir(exist_ok=True)
name, version = project["name"], project["version"]
(described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
groups = [
    "\n".join([f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())])
    for group, entries in project["entry-points"].items()
]
(described / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
