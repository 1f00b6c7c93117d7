"""A development cluster that is refused at its start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidelog.nats.nats_server import EmbeddedNatsServer, NatsPortTaken
from tidelog.server.devcluster import DevCluster
from wire.errors import TidelogError


def start_refused(data_dir: Path, monkeypatch: pytest.MonkeyPatch, *, neighbour: Path | None = None) -> None:
    """The port is taken; `neighbour`: a file that another process has written by then."""

    def refuse(server: EmbeddedNatsServer) -> None:
        if neighbour is not None:
            neighbour.parent.mkdir(parents=True, exist_ok=True)
            neighbour.write_text("acknowledged records")
        raise NatsPortTaken("port 4222 is taken")

    monkeypatch.setattr(EmbeddedNatsServer, "start", refuse)
    with pytest.raises(TidelogError, match="taken"):
        DevCluster(data_dir, nodes=1).start()


def test_a_refused_cluster_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_refused(tmp_path / "made" / "mine", monkeypatch)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_cluster_leaves_the_folders_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = tmp_path / "made" / "theirs" / "records"
    start_refused(tmp_path / "made" / "mine", monkeypatch, neighbour=neighbour)
    assert neighbour.read_text() == "acknowledged records"
    assert not (tmp_path / "made" / "mine").exists()


def test_a_refused_cluster_leaves_a_folder_that_others_have_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cluster ran and stopped there after this start had found no folder."""
    data_dir = tmp_path / "mine"
    records = data_dir / "b1" / "records"
    take_lock = DevCluster._take_lock

    def take_it_late(cluster: DevCluster) -> None:
        records.parent.mkdir(parents=True)
        records.write_text("acknowledged records")
        take_lock(cluster)

    monkeypatch.setattr(DevCluster, "_take_lock", take_it_late)
    start_refused(data_dir, monkeypatch)
    assert records.read_text() == "acknowledged records"


def test_a_broker_that_was_added_does_not_vote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevCluster, "nats_url", "nats://127.0.0.1:4222")
    DevCluster(tmp_path, nodes=3)._write_configs()
    grown = DevCluster(tmp_path, nodes=5)
    grown._write_configs()
    addresses = [grown._known_address(broker) for broker in grown.broker_ids]
    assert [address is not None for address in addresses] == [True, True, True, False, False]
