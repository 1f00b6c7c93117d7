"""The port: listens for Liftbridge's clients, from the moment the broker serves until it stops.

    bind ──> serve ──> close: subscriptions end with UNAVAILABLE, other calls have GRACE seconds

The address is bound at the broker's start, so that a taken port or a bad certificate is reported then; calls are taken
only when the broker serves. Certificates are read again for new connections when their files have changed.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
from grpc import aio

from metadata.runtime.metadata_service import MetadataService
from tidelog.client.client import Client
from tidelog.nats.nats_connection import NatsConnection
from tidelog.process.loopback import is_loopback
from tidelog.server.liftbridge.calls import SERVICE, Calls
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.port_settings import LiftbridgeSettings
from wire.errors import Code, TidelogError
from wire.messaging.reply_subjects import ReplySubjects
from wire.subjects import Subjects
from wire.types import BrokerId

_log = logging.getLogger(__name__)

MAX_CALLS = 512
"""Calls at once, subscriptions counted; more are refused by gRPC with RESOURCE_EXHAUSTED."""
MAX_CALLS_OF_CONNECTION = 256
MAX_CONNECTIONS = 512
"""Connections at once; one more is closed by gRPC at once."""
HANDSHAKE_S = 10
IDLE_S = 60
"""Seconds after which a connection without calls is ended, so that idle connections do not keep others out for
longer; clients connect again with their next call."""
MAX_MESSAGE_BYTES = (4 << 20) + (64 << 10)
"""Bytes of a request; more is refused by gRPC with RESOURCE_EXHAUSTED, which ends a PublishAsync for good in clients
such as go-liftbridge. So it is Liftbridge's own bound, above that of a record: a record that is too large is
refused by itself, and the stream of publishes goes on."""
MAX_METADATA_BYTES = 8 << 10
GRACE = 0.5
"""Seconds that calls have to end at close."""

_OPTIONS = (
    ("grpc.so_reuseport", 0),  # two brokers never share a port
    ("grpc.max_concurrent_streams", MAX_CALLS_OF_CONNECTION),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
    ("grpc.max_connection_idle_ms", IDLE_S * 1000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
)


class LiftbridgePort:
    def __init__(self, settings: LiftbridgeSettings, server: aio.Server) -> None:
        self._settings = settings
        self._server = server
        self._gateway: Gateway | None = None
        self._calls: Calls | None = None

    @classmethod
    def bind(cls, settings: LiftbridgeSettings) -> LiftbridgePort:
        """Binds the address. Raises TidelogError(BAD_CONFIG) that names the file, or the address."""
        server = aio.server(options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        credentials = None if settings.cert is None else _credentials(settings, settings.cert)
        try:
            if credentials is None:
                bound = server.add_insecure_port(settings.address)
            else:
                bound = server.add_secure_port(settings.address, credentials)
        except RuntimeError:
            bound = 0
        if not bound:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"liftbridge_port: {settings.address} cannot be listened on; another process may have it, or it is no"
                " address of this machine: give another port or host",
            )
        return cls(settings, server)

    async def serve(
        self,
        broker: BrokerId,
        connection: NatsConnection,
        subjects: Subjects,
        metadata: MetadataService,
        replies: ReplySubjects,
    ) -> None:
        """Begins to take calls. `connection`: the port's own, with the login of its clients."""
        client = Client(connection, subjects, server="NATS", name=f"tidelog {broker} liftbridge")
        settings = self._settings
        self._gateway = gateway = Gateway(
            broker, client, connection, subjects, lambda: metadata.state, settings.advertised, metadata.until_applied
        )
        self._calls = Calls(gateway, replies)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._calls.handlers()),))
        await self._server.start()
        if not is_loopback(settings.host) and settings.ca is None:
            _log.warning(
                "%s: everybody who reaches %s may do there what the port's NATS login may; with liftbridge_ca clients"
                " show a certificate",
                broker,
                settings.address,
            )
        _log.info("%s takes Liftbridge's calls on %s, told as %s", broker, settings.address, settings.advertised)

    async def close(self) -> None:
        async with AsyncExitStack() as stack:  # calls all of them, the last one first
            if self._gateway is not None:
                self._gateway.is_closing = True
                stack.push_async_callback(self._gateway.client.close)
            stack.push_async_callback(self._server.stop, GRACE)
            if self._calls is not None:
                stack.push_async_callback(self._calls.close)


def _credentials(settings: LiftbridgeSettings, cert: Path) -> grpc.ServerCredentials:
    files = _Certificates(settings, cert)
    return grpc.dynamic_ssl_server_credentials(
        files.read(), files.read_if_changed, require_client_authentication=settings.ca is not None
    )


class _Certificates:
    def __init__(self, settings: LiftbridgeSettings, cert: Path) -> None:
        self._files = (settings.ca, cert, settings.key or cert)
        self._seen: tuple[bytes, ...] = ()

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Returns the certificates, read now. Raises TidelogError(BAD_CONFIG)."""
        self._seen = self._contents()
        return self._configuration()

    def read_if_changed(self) -> grpc.ServerCertificateConfiguration:
        """Called by gRPC, in a thread of its own, before each handshake. Files that cannot be used change nothing."""
        try:
            self._seen = self._contents()
        except TidelogError as error:
            _log.warning("the port for Liftbridge's clients goes on with its certificate: %s", error)
        return self._configuration()

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        ca, cert, key = self._seen
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca or None)

    def _contents(self) -> tuple[bytes, ...]:
        """Raises TidelogError(BAD_CONFIG) for files that cannot be read, are no PEM, or do not fit each other."""
        ca, cert, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        what = f"the certificate {cert} of the Liftbridge port with its key {key}"
        try:
            context.load_cert_chain(cert, key, password=lambda: b"")
            if ca is not None:
                what = f"the CA {ca} of the Liftbridge port"
                context.load_verify_locations(ca)
            return tuple(b"" if file is None else file.read_bytes() for file in self._files)
        except OSError as error:  # an SSLError is one, too
            raise TidelogError(
                Code.BAD_CONFIG, f"{what} cannot be used: {error.strerror or error}; give PEM files that fit each other"
            ) from error
