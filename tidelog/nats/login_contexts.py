"""Contexts: servers, login and namespace under a name.

    ~/.config/tidelog/contexts/NAME.toml   Tidelog's own: `nats`, `namespace`, `description`, and the table [login]
    ~/.config/tidelog/context              the name of the one that commands use where no other source names one
    ~/.config/nats/context/NAME.json       those of the `nats` CLI

$XDG_CONFIG_HOME stands for ~/.config. Where both have a name, Tidelog's own counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from wire.errors import Code, TidelogError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def own_folder(environment: Mapping[str, str]) -> Path:
    return _configuration(environment) / "tidelog" / "contexts"


def own_file(name: str, environment: Mapping[str, str]) -> Path:
    """The file's path, whether it exists or not. Raises TidelogError(BAD_CONFIG) for an impossible name."""
    if not _NAME.fullmatch(name):
        raise TidelogError(
            Code.BAD_CONFIG,
            f"{name!r} is no name of a context: letters, digits, '.', '_' and '-', at most 100, not beginning with '.'"
            " or '-'",
        )
    return own_folder(environment) / f"{name}.toml"


def nats_file(name: str, environment: Mapping[str, str]) -> Path:
    """The file of the `nats` CLI; `name` may be the path of the file."""
    if name.endswith(".json"):
        return Path(name)
    return _configuration(environment) / "nats" / "context" / f"{name}.json"


def file_of(name: str, environment: Mapping[str, str]) -> Path:
    """The file of a context; that of the `nats` CLI where Tidelog has none of that name."""
    if _NAME.fullmatch(name) and (own := own_file(name, environment)).exists():
        return own
    return nats_file(name, environment)


def names(environment: Mapping[str, str]) -> dict[str, Path]:
    """Returns all contexts by name, with their files."""
    found: dict[str, Path] = {}
    for folder, ending in ((nats_file("x", environment).parent, ".json"), (own_folder(environment), ".toml")):
        for file in sorted(folder.glob(f"*{ending}")):
            if _NAME.fullmatch(file.stem):
                found[file.stem] = file
    return dict(sorted(found.items()))


def in_use_file(environment: Mapping[str, str]) -> Path:
    return own_folder(environment).with_name("context")


def in_use(environment: Mapping[str, str]) -> str | None:
    """The name that `tidelog context use` has written."""
    try:
        return in_use_file(environment).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _configuration(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME") or "~").expanduser() / ".config")
