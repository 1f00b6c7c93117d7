"""Adds bytecode to the zip files that PySpark's Python processes import PySpark from: they start in half the time.

Spark puts `python/lib/*.zip` of its home on their path, and Python cannot write bytecode into a zip file, so that each
process would compile what it imports. A file is replaced at once and whole; one with bytecode of this Python is left
as it is. Called by scripts/bootstrap.
"""

from __future__ import annotations

import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from py_compile import PycInvalidationMode, PyCompileError, compile  # noqa: A004 - its name

COMMENT = f"bytecode of {sys.implementation.cache_tag}".encode()


def add_bytecode(path: Path) -> None:
    """Raises OSError. Code that this Python cannot compile stays without bytecode."""
    with zipfile.ZipFile(path) as zipped:
        if zipped.comment == COMMENT:
            return
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            source, bytecode, complete = (Path(folder, name) for name in ("module.py", "module.pyc", "complete.zip"))
            with zipfile.ZipFile(complete, "w", zipfile.ZIP_STORED) as written:
                for name in zipped.namelist():
                    content = zipped.read(name)
                    if name.endswith(".pyc"):  # of another Python
                        continue
                    written.writestr(name, content)
                    if not name.endswith(".py") or "/tests/" in name:
                        continue
                    source.write_bytes(content)
                    try:
                        # Not checked against the times of the source, which differ from machine to machine.
                        compile(
                            str(source), str(bytecode), f"{path}/{name}", doraise=True,
                            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
                        )  # fmt: skip
                    except PyCompileError:
                        continue
                    written.writestr(f"{name}c", bytecode.read_bytes())
                written.comment = COMMENT
            complete.chmod(path.stat().st_mode)
            complete.replace(path)


def main() -> None:
    package = find_spec("pyspark")
    if package is None or not package.submodule_search_locations:
        return
    for path in sorted(Path(package.submodule_search_locations[0], "python", "lib").glob("*.zip")):
        add_bytecode(path)


if __name__ == "__main__":
    main()
