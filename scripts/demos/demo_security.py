"""What `scripts/demo --secure` adds: TLS on every connection, a login for each role, encryption at rest; and attempts
that must be refused.

    certificates/   an authority of its own; a certificate and key for nats-server, each broker and each client: brokers
                    show theirs to NATS and to each other's Raft nodes
    nkeys/          the seed of each user's NKey; nats-server knows the public keys
    master-keys     the key that encrypts streams on the brokers' disks
    b1.toml, …      each broker's login, and the certificates of its Raft node
    nats/           nats-server's configuration: `tls` with `verify`, and a user for each broker and client, as
                    `tidelog security nats-config` prints it

The secret that brokers prove to each other is made by the development cluster in any case.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import mmap
import re
import secrets
import ssl
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import nats
import nkeys

import tidelog
from metadata.raft.framing import NONCE_BYTES, FrameSession
from scripts.demos.certificates import Authority
from tidelog.cli.administration.security import nats_config
from tidelog.server.devcluster import DevCluster
from wire.security.cluster_secrets import ClusterSecrets, parse_secrets

CLEAR_STREAM = "clear"
"""A stream without encryption: its record is found on the disks, so the search would find others, too."""
CLEAR_RECORD = b"a record in the clear"
PATIENCE = 10.0
"""Seconds in which each attempt must be refused."""


class NotRefused(Exception):
    """An attempt that must fail did not, or not as it must; the text names it."""


class Refusal(NamedTuple):
    attempt: str
    answer: str


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is made, and how each part of the demo logs in. Nothing by default: plain NATS."""

    cluster: Mapping[str, Any] = field(default_factory=dict)
    """Options of DevCluster."""
    clients: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By role, arguments of `tidelog.connect`."""

    @property
    def is_secure(self) -> bool:
        return bool(self.clients)

    async def connect(self, url: str, role: str, *, without: Collection[str] = ()) -> tidelog.Client:
        """`without`: what is left out of the login. Raises as `tidelog.connect` does."""
        login: dict[str, Any] = {name: text for name, text in self.clients.get(role, {}).items() if name not in without}
        return await tidelog.connect(url, **login)

    def of_bare_nats(self, role: str) -> dict[str, Any]:
        """The same login as arguments of `nats.connect`."""
        login = self.clients.get(role)
        if login is None:
            return {}
        context = ssl.create_default_context(cafile=login["ca"])
        context.load_cert_chain(login["cert"], login["key"])
        return {"nkeys_seed": login["nkey"], "tls": context, "inbox_prefix": login["inbox_prefix"].encode()}

    def of_spark(self, role: str) -> dict[str, str]:
        """The same login as options of the Spark source: names of files, and no secret."""
        return {
            ("inboxPrefix" if name == "inbox_prefix" else f"nats.{name}"): text
            for name, text in self.clients.get(role, {}).items()
        }


def make_nkey(kind: int = nkeys.PREFIX_BYTE_USER) -> nkeys.KeyPair:
    """`kind`: one of the prefixes of nkeys."""
    return nkeys.from_seed(bytearray(nkeys.encode_seed(secrets.token_bytes(32), kind)))


def secure(folder: Path, stream: str, brokers: list[str], *, partitions: int) -> Access:
    """Makes keys and certificates in `folder`, which must be its owner's alone; `stream` is the demo's, with so many
    partitions."""
    captured = ["--subject", stream, "--subject", CLEAR_STREAM]
    roles = {
        "admin": ["--role", "admin"],
        "producer": [
            "--role",
            "producer",
            "--stream",
            stream,
            "--stream",
            CLEAR_STREAM,
            *captured,
            "--partitions",
            str(partitions),
        ],
        "consumer": ["--role", "consumer", "--stream", stream],
        "spark": ["--role", "spark", "--stream", stream],
    }
    for name, arguments in roles.items():
        arguments += ["--inbox-prefix", f"_INBOX.{name}"]
    roles |= {broker: ["--role", "broker", "--broker", broker, *captured] for broker in brokers}
    authority = Authority(folder / "certificates")
    (folder / "nkeys").mkdir(mode=0o700)
    users, logins = [], {}
    for name, arguments in roles.items():
        pair = make_nkey()
        seed = _private(folder / "nkeys" / name, pair.seed.decode())
        certificate, key = authority.issue(name)
        logins[name] = {"nkey": seed, "ca": str(authority.ca), "cert": str(certificate), "key": str(key)}
        users.append(_user([*arguments, "--nkey", pair.public_key.decode()]))
    certificate, key = authority.issue("nats-server")
    tls = {"cert_file": str(certificate), "key_file": str(key), "ca_file": str(authority.ca), "verify": True}
    return Access(
        cluster={
            "nats_config": f"tls {json.dumps(tls)}\nauthorization {{ users: [\n{''.join(users)}] }}",
            "master_key_file": Path(
                _private(folder / "master-keys", f"demo {base64.b64encode(secrets.token_bytes(32)).decode()}")
            ),
            "settings_of": {
                broker: {f"raft_{name}": logins[broker][name] for name in ("ca", "cert", "key")}
                | {"login": logins[broker]}
                for broker in brokers
            },
        },
        clients={
            name: login | {"inbox_prefix": f"_INBOX.{name}"} for name, login in logins.items() if name not in brokers
        },
    )


def _private(file: Path, text: str) -> str:
    """Writes a file for its owner alone. Returns its name."""
    file.touch(mode=0o600)
    file.write_text(f"{text}\n")
    return str(file)


def _user(arguments: list[str]) -> str:
    """What `tidelog security nats-config` prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        nats_config.main(arguments, standalone_mode=False)
    return printed.getvalue()


# ---- what must be refused ------------------------------------------------------------------------------------------


async def attempts(cluster: DevCluster, access: Access, stream: str, needle: bytes) -> list[Refusal]:
    """Each of them was refused, and how. `needle`: bytes of the stream's records. Raises NotRefused."""
    log = cluster.nats.log_path.read_text(errors="replace")
    if "Violation" in log:
        raise NotRefused(f"a user of the demo was refused what its role needs; see {cluster.nats.log_path}")
    async with asyncio.timeout(6 * PATIENCE):
        return [
            await _plain_nats(cluster.nats_url),
            await _without_certificate(cluster, access),
            await _without_login(cluster, access),
            *await _permissions(cluster, access, stream),
            await _plain_raft(cluster),
            await _disks(cluster, access, needle),
        ]


async def _plain_nats(url: str) -> Refusal:
    said = await _said_to(url, b'CONNECT {"verbose":true}\r\nPING\r\n')
    if b'"tls_required":true' not in said:
        raise NotRefused(f"nats-server does not ask for TLS: {said!r}")
    return Refusal("NATS without TLS", "the server asks for TLS, and ends the connection")


async def _without_certificate(cluster: DevCluster, access: Access) -> Refusal:
    return await _as_admin(cluster, access, "NATS without a client's certificate", "cert", "key")


async def _without_login(cluster: DevCluster, access: Access) -> Refusal:
    return await _as_admin(cluster, access, "NATS with a certificate, without a login", "nkey")


async def _as_admin(cluster: DevCluster, access: Access, attempt: str, *without: str) -> Refusal:
    try:
        client = await access.connect(cluster.nats_url, "admin", without=without)
    except tidelog.NoServer as error:
        return Refusal(attempt, str(error))
    await client.close()
    raise NotRefused(f"{attempt}: connected")


async def _permissions(cluster: DevCluster, access: Access, stream: str) -> list[Refusal]:
    """What the consumer's login may not do, in the words of nats-server."""
    answers: asyncio.Queue[str] = asyncio.Queue()
    heard: list[bytes] = []

    async def on_error(error: Exception) -> None:
        await answers.put(str(error))

    async def on_message(message: Any) -> None:
        heard.append(message.data)

    consumer = await nats.connect(cluster.nats_url, error_cb=on_error, **access.of_bare_nats("consumer"))
    refused = []
    try:
        for subject in ("_INBOX.spark.>", "tidelog.inbox.>", stream):
            await consumer.subscribe(subject, cb=on_message)
            refused.append(await _violation(answers, f"a consumer reads {subject}", subject))
        for subject in (f"tidelog.{stream}.0.replicate", "tidelog.metadata.controller", stream):
            await consumer.publish(subject, b"forged")
            refused.append(await _violation(answers, f"a consumer publishes to {subject}", subject))
    finally:
        await consumer.close()
    if heard:
        raise NotRefused(f"the consumer's login was sent {heard[0]!r}")
    return refused


async def _violation(answers: asyncio.Queue[str], attempt: str, subject: str) -> Refusal:
    try:
        answer = await asyncio.wait_for(answers.get(), PATIENCE)
    except TimeoutError:
        answer = "nothing"
    # nats-py tells all of it in small letters.
    if "permissions violation" not in answer or f'"{subject.lower()}"' not in answer:
        raise NotRefused(f"{attempt}, and nats-server says {answer}")
    return Refusal(attempt, "Permissions Violation")


async def _plain_raft(cluster: DevCluster) -> Refusal:
    """A node that knows the secret and speaks the protocol of Raft, without TLS."""
    told = json.loads((cluster.data_dir / "cluster.json").read_text())["brokers"][0]
    secret = parse_secrets((cluster.data_dir / "raft-secret").read_bytes(), "raft-secret")
    session = FrameSession(
        secrets=ClusterSecrets(secret),
        nonce=secrets.token_bytes(NONCE_BYTES),
        initiator=True,
        acceptor_address=told["raft"],
    )
    log = cluster.log_file(told["id"])
    earlier = log.stat().st_size
    said = await _said_to(f"tcp://{told['raft']}", session.hello())
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while (found := re.search(rb"no TLS with it.*\n", log.read_bytes()[earlier:])) is None:
        if asyncio.get_running_loop().time() > deadline:
            raise NotRefused(f"{log} does not say that a peer has no TLS, which was sent {said!r}")
        await asyncio.sleep(0.05)
    return Refusal(
        "Raft without TLS, with the secret", f"{told['id']} ends the connection: {found[0].decode().strip()}"
    )


async def _disks(cluster: DevCluster, access: Access, needle: bytes) -> Refusal:
    async with await access.connect(cluster.nats_url, "admin") as admin:
        await admin.create_stream(
            CLEAR_STREAM, replication_factor=len(cluster.broker_ids), config={"encryption": "false"}
        )
    async with await access.connect(cluster.nats_url, "producer") as client, client.producer(CLEAR_STREAM) as producer:
        await producer.send(CLEAR_RECORD)
    size, found, clear = await asyncio.to_thread(_search, cluster, needle)
    if found:
        raise NotRefused(f"records lie in the clear in {found[0]}")
    if not clear:
        raise NotRefused(f"the search does not find {CLEAR_RECORD!r}, which is in no encrypted stream")
    return Refusal(
        f"looking for {needle.decode()} on the disks",
        f"in none of {size / 1e6:,.0f} MB; a record of a stream without encryption is in {len(clear)} files",
    )


def _search(cluster: DevCluster, needle: bytes) -> tuple[int, list[Path], list[Path]]:
    """Bytes of the brokers' folders and logs; the files that hold the needle; those that hold CLEAR_RECORD."""
    size, found, clear = 0, [], []
    for file, content in _contents(cluster):
        size += len(content)
        if content.find(needle) >= 0:
            found.append(file)
        if content.find(CLEAR_RECORD) >= 0:
            clear.append(file)
    return size, found, clear


def _contents(cluster: DevCluster) -> Iterator[tuple[Path, mmap.mmap]]:
    for broker in cluster.broker_ids:
        for file in (cluster.log_file(broker), *cluster.broker_dir(broker).rglob("*")):
            if file.is_file() and file.stat().st_size:
                with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    yield file, content


async def _said_to(url: str, words: bytes) -> bytes:
    """All that a server says on a connection that begins with `words` in plain text, until it ends the connection."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    said = b""
    try:
        async with asyncio.timeout(PATIENCE):
            writer.write(words)
            while part := await reader.read(65536):
                said += part
    except ConnectionError:
        pass
    except TimeoutError:
        raise NotRefused(f"{url} does not end a connection without TLS: {said!r}") from None
    finally:
        writer.close()
    return said
