"""The facts about the installed PySyncObj on which the package relies, name by name."""

from __future__ import annotations

import pysyncobj
import pysyncobj.pickle
import pytest

from metadata.raft import assumptions
from metadata.raft.engine import RaftEngine
from metadata.raft.types import RaftConfigurationError


def test_the_installed_pysyncobj_is_the_one_that_was_hardened() -> None:
    assumptions.verify()


@pytest.mark.parametrize("name", assumptions.OVERRIDDEN_METHODS)
def test_every_override_hides_a_method_that_is_there(name: str) -> None:
    assert name in vars(pysyncobj.SyncObj), f"pysyncobj.SyncObj has no {name} any more: its override is never called."
    assert name in vars(RaftEngine), f"metadata.raft.engine.RaftEngine no longer overrides {name}."


def test_another_version_is_refused_with_the_remedy() -> None:
    with pytest.raises(RaftConfigurationError, match=r"pysyncobj 0\.4\.0 is installed.*install pysyncobj==0\.3\.17"):
        assumptions._check_version("0.4.0")


def test_another_text_of_the_same_version_is_refused() -> None:
    digest = assumptions.SOURCE_DIGESTS["syncobj.py"]
    with pytest.raises(RaftConfigurationError, match=r"pysyncobj/syncobj\.py is not the file"):
        assumptions._check_source("syncobj.py", b"patched", digest)


def test_a_missing_attribute_is_named() -> None:
    with pytest.raises(RaftConfigurationError, match="sets no attribute _SyncObj__"):
        assumptions.verify_instance(object())


def test_unpickling_is_denied() -> None:
    assumptions.verify()
    with pytest.raises(ValueError, match="unpickle"):
        pysyncobj.pickle.loads(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match="unpickle"):
        pysyncobj.pickle.load(None)
