from __future__ import annotations

from typing import Any

import pytest

from metadata.controller.metadata_settings import MetadataSettings
from wire.errors import TidelogError


def test_the_defaults_fit_together() -> None:
    settings = MetadataSettings()
    assert (settings.heartbeat_interval_s, settings.broker_silence_timeout_s, settings.leader_lease_s) == (0.1, 2, 5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_interval_s": 0.0},
        {"leader_lease_s": 1.9, "broker_silence_timeout_s": 1.0},
        {"broker_silence_timeout_s": 0.2},
        {"broker_silence_timeout_s": 6.0},
        {"probe_confirm_delay_s": 0.5},
    ],
)
def test_times_that_contradict_each_other_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(TidelogError) as refused:
        MetadataSettings(**wrong)
    assert any(name in refused.value.message for name in wrong)
