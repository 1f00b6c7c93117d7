"""Certificates and credentials given to the Spark source as text, on real nats-servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.demos.certificates import Authority
from spark_connector.shared.connections import Address, Connection
from spark_connector.shared.inline_files import with_paths
from tests.integration.rig.nats_logins import Operator, user_keys
from tests.integration.rig.waiting import wait_until
from tidelog.nats.nats_server import EmbeddedNatsServer


def config_and_login(folder: Path, kind: str) -> tuple[str, dict[str, str]]:
    """A server's configuration, and the login for it as text."""
    match kind:
        case "certificates":
            authority = Authority(folder / "certificates")
            certificate, key = authority.issue("server")
            config = f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.ca}", verify: true }}'
            own, own_key = authority.issue("client")
            files = {"ca": authority.ca, "cert": own, "key": own_key}
            return config, {name: Path(file).read_text() for name, file in files.items()}
        case "nkey":
            keys = user_keys()
            return f"authorization {{ users: [{{ nkey: {keys.public} }}] }}", {"nkey": keys.seed}
        case _:
            operator = Operator()
            return operator.config, {"creds": operator.creds(folder / "user.creds").read_text()}


@pytest.mark.parametrize("kind", ["certificates", "nkey", "creds"])
def test_text_in_place_of_files_logs_in_and_does_so_again(tmp_path: Path, kind: str) -> None:
    config, login = config_and_login(tmp_path, kind)
    with EmbeddedNatsServer(store_dir=tmp_path / "nats", config=config) as server:
        address = Address((server.url,), "tidelog", None, tuple(with_paths(login).items()))
        connection = Connection(address)
        try:
            assert connection.client.is_connected
            server.kill()
            wait_until(lambda: not connection.client.is_connected, "the loss of the connection")
            server.start()
            wait_until(lambda: connection.client.is_connected, "a connection with the same text")
        finally:
            connection.close()
