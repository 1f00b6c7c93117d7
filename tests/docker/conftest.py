"""The compose file as a running cluster, for the tests here. Without a Docker engine they skip and say why."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from testcontainers.compose import DockerCompose

from tidelog.process.loopback import free_ports

ROOT = Path(__file__).resolve().parents[2]
BROKERS = ("b1", "b2", "b3")
IMAGES = {"TIDELOG_BASE_IMAGE": "python:3.12-slim", "NATS_IMAGE": "nats:2.12-alpine"}
"""The variables of docker-compose.yml that name images to start from, and their defaults."""
PULL_TIMEOUT_S = 180.0
HEALTHY_WITHIN_S = 60.0


class StandaloneCompose(DockerCompose):
    """The older compose, a program of its own: `docker-compose`, not `docker compose`."""

    @cached_property
    def compose_command_property(self) -> list[str]:
        return ["docker-compose"]


@dataclass(frozen=True)
class ComposeCluster:
    """A NATS server and three brokers in containers."""

    url: str
    """Where a client on this machine finds NATS."""
    healthy_after_s: float
    """From `up`, with the images built, until every container said that it is healthy."""
    project: str

    def container(self, service: str) -> str:
        """The id of a service's container, running or not."""
        return _containers(self.project)[service]

    def kill(self, service: str) -> None:
        """SIGKILL; the container stays dead until it is started."""
        _docker("kill", "--signal", "KILL", self.container(service))

    def start(self, service: str) -> None:
        _docker("start", self.container(service))

    def health(self, service: str) -> str:
        """`starting`, `healthy` or `unhealthy` of a running container, else its state: `exited`, …"""
        state = json.loads(_docker("inspect", "--format", "{{json .State}}", self.container(service)))
        return str(state["Health"]["Status"]) if state["Running"] else str(state["Status"])


def _docker(*arguments: str, timeout_s: float = 60.0) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout.strip()


def _succeeds(*command: str, timeout_s: float) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout_s, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _containers(project: str) -> dict[str, str]:
    """Service -> container id."""
    listed = _docker(
        *("ps", "--all", "--no-trunc", "--filter", f"label=com.docker.compose.project={project}"),
        *("--format", '{{.Label "com.docker.compose.service"}} {{.ID}}'),
    )
    return dict(line.split(" ", 1) for line in listed.splitlines())


def _compose_class() -> type[DockerCompose]:
    if not shutil.which("docker") or not _succeeds("docker", "info", timeout_s=20.0):
        pytest.skip("no Docker engine answers")
    if _succeeds("docker", "compose", "version", timeout_s=20.0):
        return DockerCompose
    if _succeeds("docker-compose", "version", timeout_s=20.0):
        return StandaloneCompose
    pytest.skip("neither `docker compose` nor docker-compose is installed")


def _need_images() -> None:
    for variable, default in IMAGES.items():
        image = os.environ.get(variable, default)
        if _succeeds("docker", "image", "inspect", image, timeout_s=20.0):
            continue
        if not _succeeds("docker", "pull", "--quiet", image, timeout_s=PULL_TIMEOUT_S):
            pytest.skip(f'image {image} is not here and cannot be pulled; run `eval "$(scripts/docker-base)"` first')


@pytest.fixture(scope="package")
def compose_cluster() -> Iterator[ComposeCluster]:
    compose_class = _compose_class()
    _need_images()
    (port,) = free_ports(1)
    project = f"tidelogtest{os.getpid()}"
    with pytest.MonkeyPatch.context() as environment:
        # A project of its own: taking it down, volumes and all, touches no other cluster of this compose file.
        environment.setenv("COMPOSE_PROJECT_NAME", project)
        # The Dockerfile needs no BuildKit, and not every engine has a working one.
        environment.setenv("DOCKER_BUILDKIT", os.environ.get("DOCKER_BUILDKIT", "0"))
        environment.setenv("TIDELOG_IMAGE", "tidelog:test")
        environment.setenv("TIDELOG_NATS_ADDRESS", "127.0.0.1")
        environment.setenv("TIDELOG_NATS_PORT", str(port))
        compose = compose_class(context=ROOT, wait=False)
        built = subprocess.run(
            [*compose.compose_command_property, "build", BROKERS[0]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert built.returncode == 0, (
            f"the broker image does not build:\n{built.stdout[-4000:]}\n{built.stderr[-4000:]}"
        )
        began = time.monotonic()
        with compose:
            waiting = ComposeCluster(f"nats://127.0.0.1:{port}", 0.0, project)
            services = ("nats", *BROKERS)
            while not all(waiting.health(service) == "healthy" for service in services):
                if time.monotonic() - began > HEALTHY_WITHIN_S:
                    states = {service: waiting.health(service) for service in services}
                    logs = "\n".join(compose.get_logs())
                    pytest.fail(f"not healthy within {HEALTHY_WITHIN_S:.0f} s: {states}\n{logs[-8000:]}")
                time.sleep(0.2)
            yield ComposeCluster(waiting.url, time.monotonic() - began, project)
