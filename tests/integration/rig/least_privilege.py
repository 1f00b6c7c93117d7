"""Clusters on a nats-server whose users have no permissions but those that `tidelog security nats-config` prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tidelog
from tests.integration.rig.command_line import tidelog_command
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster

PASSWORD = "let-me-in"


def printed(*arguments: str) -> str:
    done = tidelog_command("security", "nats-config", *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def with_password(config: str) -> str:
    """In the place of the variables of nats-server's environment."""
    return re.sub(r"[$][A-Z0-9_]+_PASSWORD$", PASSWORD, config, flags=re.MULTILINE)


def least_privilege(folder: Path, config: str, **options: Any) -> DevCluster:
    """Each broker logs in as its own user. `options`: those of DevCluster."""
    logins = {f"b{number}": {"login": {"user": f"broker-b{number}", "password": PASSWORD}} for number in (1, 2, 3)}
    return DevCluster(folder, port=0, nats_config=config, settings_of=logins, **options)


async def client_of(cluster: DevCluster, user: str, **options: Any) -> Client:
    options = {"inbox_prefix": f"_INBOX.{user}", **options}
    return await tidelog.connect(cluster.nats_url, user=user, password=PASSWORD, **options)
