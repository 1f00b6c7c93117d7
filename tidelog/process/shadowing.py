"""Files of a user that hide packages of ours.

Beside `tidelog` there are packages with plain names (`wire`, `metadata`, `dataplane`). Python looks into a script's own
folder first, so a user's `wire.py` would be imported in their place, and fail somewhere deep inside.
"""

from __future__ import annotations

import warnings
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

_OURS = Path(__file__).parents[2]


def hidden_by(package: str) -> str | None:
    """Returns the file that is imported in place of our package of that name; None: there is none."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec was put into sys.modules by hand
        return f"a module {package!r} without a file"
    if spec is None or _is_ours(spec, package):
        return None
    return spec.origin or ", ".join(spec.submodule_search_locations or ()) or "a module without a file"


def hidden_text(package: str, by: str) -> str:
    return (
        f"{by} hides the package {package!r} of Tidelog, because it comes first on sys.path; rename it, or start Python"
        " in another folder"
    )


def check_not_hidden(*packages: str) -> None:
    """Raises ImportError that names the file."""
    for package in packages:
        by = hidden_by(package)
        if by is not None:
            raise ImportError(hidden_text(package, by))


def warn_if_hidden(*packages: str) -> None:
    """Warns; for packages that may not be needed: a client needs neither plane of a broker."""
    for package in packages:
        by = hidden_by(package)
        if by is not None:
            warnings.warn(f"no broker can run in this process: {hidden_text(package, by)}", stacklevel=3)


def _is_ours(spec: ModuleSpec, package: str) -> bool:
    expected = _OURS / package
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    return expected in places or expected.resolve() in [place.resolve() for place in places]
