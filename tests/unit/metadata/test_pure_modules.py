"""Every module of `metadata` is named by the import rule "pure", but for the packages that drive it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import metadata

DRIVERS = {"metadata.raft", "metadata.runtime"}


def test_every_module_of_metadata_is_pure_or_a_driver() -> None:
    folder = Path(metadata.__file__).parent
    rules = tomllib.loads((folder.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    pure = next(rule for rule in rules if rule["id"] == "pure")
    assert not {"ignore_imports", "unmatched_ignore_imports_alerting"} & {*pure}
    modules = {
        f"metadata.{path.stem}"
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert {name for name in pure["source_modules"] if name.startswith("metadata")} == modules - DRIVERS
