"""Certificates of the demo's authority, as both ends of a TLS connection judge them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from scripts.demos.certificates import Authority


def handshake(acceptor: ssl.SSLContext, initiator: ssl.SSLContext, host: str) -> None:
    """Raises ssl.SSLError from the end that refuses."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        initiator.wrap_bio(back, there, server_hostname=host),
        acceptor.wrap_bio(there, back, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                pass


def contexts(authority: Authority, known: Authority) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server and a client that know one authority; strict as default contexts are from Python 3.13 on."""

    def context_for(purpose: ssl.Purpose) -> ssl.SSLContext:
        context = ssl.create_default_context(purpose, cafile=str(known.ca))
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(*authority.issue(purpose.name.lower()))
        return context

    return context_for(ssl.Purpose.CLIENT_AUTH), context_for(ssl.Purpose.SERVER_AUTH)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_both_ends_accept_certificates_of_their_authority(tmp_path: Path, host: str) -> None:
    authority = Authority(tmp_path)
    handshake(*contexts(authority, authority), host)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(*contexts(Authority(tmp_path / "one"), Authority(tmp_path / "other")), "localhost")


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    _, key = Authority(tmp_path).issue("client")
    assert key.stat().st_mode & 0o777 == 0o600
