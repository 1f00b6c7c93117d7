"""The limit of open files goes up to the system's limit."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from tidelog.server.broker_process import raise_limit


def test_the_soft_limit_goes_up_to_the_hard_one() -> None:
    code = (
        "import resource; from tidelog.server.broker_process import raise_limit\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 4000 if hard == -1 else min(hard, 4000)))\n"
        "print(raise_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    allowed, soft, hard = map(
        int, subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.split()
    )
    assert allowed == soft == hard > 200


def test_a_kernel_that_refuses_leaves_it_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_limit() == 256
    assert "256 files only" in caplog.text
