"""Which NATS server `tidelog cluster rotate-secret` asks, and what it says of the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.administration import rotate_secret
from tidelog.server.secret_file import SecretFile
from wire.security.cluster_secrets import ClusterSecret

OTHER = ClusterSecret(b"the secret of another cluster").fingerprint.hex()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    servers: list[str | None] = []
    monkeypatch.setattr(rotate_secret, "run", lambda server, *_: servers.append(server))
    return servers


def rotate(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["cluster", "rotate-secret", *map(str, arguments)])
    return result.exit_code, result.stderr


def test_the_folder_of_a_cluster_says_where_it_is(tmp_path: Path, asked: list[str | None]) -> None:
    assert rotate(tmp_path)[0] == 0
    (tmp_path / "cluster.json").write_text('{"nats_url": "nats://127.0.0.1:5555"}')
    assert rotate(tmp_path)[0] == 0
    assert rotate(tmp_path, "--server", "nats://other:1")[0] == 0
    assert asked == [None, "nats://127.0.0.1:5555", "nats://other:1"]


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_folder_whose_cluster_cannot_be_read(tmp_path: Path, asked: list[str | None], content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    status, err = rotate(tmp_path)
    assert status == 1
    assert "name --server" in err
    assert asked == []


class Brokers:
    """A client of a cluster: b1 reads `file` at once, b2 is dead."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.secrets: list[str] | None = None
        """Of b1, where it does not read the file."""

    async def cluster_status(self) -> dict[str, Any]:
        held = SecretFile.read(self.file).fingerprints if self.secrets is None else self.secrets
        return {
            "brokers": [{"id": "b1", "alive": True, "secrets": held}, {"id": "b2", "alive": False, "secrets": None}]
        }


@pytest.fixture
def brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    file = tmp_path / "secret"
    file.write_text("the old secret of the cluster")
    made = Brokers(file)

    def run(_server: str | None, _namespace: str, work: Callable[[Brokers], Awaitable[None]]) -> None:
        asyncio.run(work(made))  # type: ignore[arg-type]

    monkeypatch.setattr(rotate_secret, "run", run)
    return made


def test_beginning_end_and_dead_brokers_are_told(brokers: Brokers) -> None:
    for words in ("a rotation begins", "is in use", "the rotation is done, and a further call would begin another"):
        done = CliRunner().invoke(main, ["cluster", "rotate-secret", str(brokers.file)])
        assert (done.exit_code, done.stderr) == (0, "")
        assert words in done.stdout
        assert "b2 is dead, and was not waited for: give it this file before it starts" in done.stdout
    done = CliRunner().invoke(main, ["cluster", "rotate-secret", "--all", str(brokers.file)])
    assert done.stdout.count("b2 is dead") == 1
    assert (
        '"dead": ["b2"]' in CliRunner().invoke(main, ["cluster", "rotate-secret", str(brokers.file), "--json"]).stdout
    )


def test_a_file_of_another_cluster_is_refused_at_once(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate_secret, "WAIT_S", 1e6)
    brokers.secrets = [OTHER]
    before = brokers.file.read_bytes()
    status, err = rotate(brokers.file)
    assert (status, brokers.file.read_bytes()) == (1, before)
    assert err.startswith("tidelog: nothing was changed: the file is not of this cluster: it holds")


def test_a_wait_is_told_and_ends(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotate_secret, "WAIT_S", 2.0)
    monkeypatch.setattr(rotate_secret, "SILENCE", 0.1)
    brokers.secrets = SecretFile.read(brokers.file).fingerprints
    assert rotate(brokers.file)[0] == 0
    waiting, failed = rotate(brokers.file)[1].splitlines()
    assert waiting.startswith("waiting 2 s at most: b1 holds")
    assert failed.startswith("tidelog: the step 'use' was not done, after 2 s: b1 holds")
