"""The facts about the installed PySyncObj on which the package relies, name by name."""

from __future__ import annotations

import re
from pathlib import Path

import pysyncobj
import pysyncobj.pickle
import pytest

from metadata.raft import assumptions, pysyncobj_internals
from metadata.raft.engine import RaftEngine
from metadata.raft.pysyncobj_internals import ATTRIBUTES, CALLED_METHODS, OVERRIDDEN_METHODS, SyncObjInternals
from metadata.raft.types import RaftConfigurationError


def test_the_installed_pysyncobj_is_the_one_that_was_hardened() -> None:
    assumptions.verify(OVERRIDDEN_METHODS, CALLED_METHODS)


@pytest.mark.parametrize("name", OVERRIDDEN_METHODS)
def test_every_override_hides_a_method_that_is_there(name: str) -> None:
    assert name in vars(pysyncobj.SyncObj), f"pysyncobj.SyncObj has no {name} any more: its override is never called."
    assert name in {**vars(SyncObjInternals), **vars(RaftEngine)}, f"metadata.raft no longer overrides {name}."


_MANGLED = re.compile(r"_SyncObj__\w+")
ROOT = Path(__file__).parents[4]


def test_mangled_names_are_in_one_module() -> None:
    sources = [path for folder in ("metadata", "tests", "scripts", "tidelog") for path in (ROOT / folder).rglob("*.py")]
    allowed = {Path(pysyncobj_internals.__file__), Path(__file__)}
    assert len(sources) > 100
    assert [str(path) for path in sources if path not in allowed and "_SyncObj" + "__" in path.read_text()] == []


def test_every_mangled_name_that_is_used_is_checked_at_the_start() -> None:
    used = set(_MANGLED.findall(Path(pysyncobj_internals.__file__).read_text()))
    checked = {*OVERRIDDEN_METHODS, *CALLED_METHODS, *ATTRIBUTES}
    assert used == {name for name in checked if _MANGLED.match(name)}


def test_every_checked_name_is_used_beside_its_list() -> None:
    source = Path(pysyncobj_internals.__file__).read_text()
    assert [name for name in (*CALLED_METHODS, *ATTRIBUTES) if source.count(name) < 2] == []


def test_another_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(RaftConfigurationError, match=r"pysyncobj 0\.4\.0 is installed.*install pysyncobj==0\.3\.17"):
        assumptions._check_version("0.4.0")


def test_another_text_of_the_same_version_is_refused() -> None:
    digest = assumptions.SOURCE_DIGESTS["syncobj.py"]
    with pytest.raises(RaftConfigurationError, match=r"pysyncobj/syncobj\.py is not the file"):
        assumptions._check_source("syncobj.py", b"patched", digest)


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(RaftConfigurationError, match="sets no attribute _SyncObj__"):
        assumptions.verify_instance(object(), ATTRIBUTES)


def test_unpickling_is_denied() -> None:
    assumptions.verify((), ())
    with pytest.raises(ValueError, match="unpickle"):
        pysyncobj.pickle.loads(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match="unpickle"):
        pysyncobj.pickle.load(None)
