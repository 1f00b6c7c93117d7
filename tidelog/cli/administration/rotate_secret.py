"""`tidelog cluster rotate-secret`: a new secret takes the place of the old one while the brokers run."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.session import Failure, cluster_options, print_json, run

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from tidelog.server.secret_file import Obstacles, SecretFile, Step

SILENCE = 2.0
"""Seconds after which it reports that it waits; brokers read their files every second."""
WAIT_S = 15.0
"""Seconds for the brokers to have read their files."""
_DONE = {
    "add": "a rotation begins: added a new secret, {new}, beside {old}, which stays in use",
    "use": "the new secret, {new}, is in use, and the old one is accepted",
    "remove": "only the new secret, {new}, is accepted: the rotation is done, and a further call would begin another",
}


@click.command("rotate-secret")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE...")
@click.option(
    "--all", "all_steps", is_flag=True, help="Do all steps that are left, and wait for the brokers between them."
)
@cluster_options
def rotate_secret(files: tuple[Path, ...], all_steps: bool, server: str | None, namespace: str, as_json: bool) -> None:
    """Replace the secret that brokers prove to each other, without a stop, in three steps: add, use, remove.

    FILE is the raft_secret_file of brokers on this machine, or the folder of `tidelog up`, whose nats-server is asked
    where --server names no other. Each call does the next step
    on these files when every live broker is ready for it. Where brokers run on several machines, copy the file to the
    others after the first step, and then call this on each of them. Where FILE has one secret, a rotation begins.

    Of NATS it needs what `tidelog cluster status` needs: role monitoring, or admin.
    """
    paths = [path / "raft-secret" if path.is_dir() else path for path in files]

    async def work(client: Client) -> None:
        from tidelog.server.secret_file import Step

        done: list[Step] = []
        while True:
            step, held = await _do_next(client, paths)
            done.append(step)
            if not as_json:
                click.echo(_DONE[step.value].format(new=held.new or held.fingerprints[0], old=held.fingerprints[0]))
            if step is Step.REMOVE or not all_steps:
                break
        waits = [] if step is Step.REMOVE else (await _settled(client, held)).waits
        dead = await _dead_brokers(client)
        if as_json:
            print_json(
                {
                    "steps": [step.value for step in done],
                    "secrets": held.fingerprints,
                    "waits_for": waits,
                    "dead": dead,
                }
            )
            return
        for broker in dead:
            click.echo(f"{broker} is dead, and was not waited for: give it this file before it starts")
        if step is not Step.REMOVE:
            for why in waits:
                click.echo(why)
            click.echo(
                f"next: {held.next_step().value}, by the same command" + (", when that is done" if waits else "")
            )

    run(server or _server_of(files), namespace, work)


def _server_of(files: tuple[Path, ...]) -> str | None:
    """Returns the server of the first running cluster of `tidelog up` among them; None: there is none."""
    for path in files:
        try:
            return str(json.loads((path / "cluster.json").read_text())["nats_url"])
        except OSError:
            continue
        except (ValueError, KeyError, TypeError):
            raise Failure(f"{path / 'cluster.json'} is not as `tidelog up` writes it; name --server") from None
    return None


async def _do_next(client: Client, paths: list[Path]) -> tuple[Step, SecretFile]:
    """Does one step on these files. Raises Failure where a broker is not ready for it, or the file is not theirs."""
    from tidelog.server.secret_file import SecretFile

    held = SecretFile.read(paths[0])
    for path in paths[1:]:
        if SecretFile.read(path) != held:
            raise Failure(f"{paths[0]} and {path} differ; copy the one over the other first")
    step = held.next_step()
    stands = await _settled(client, held)
    if stands.fault:
        raise Failure(f"nothing was changed: {stands.fault}")
    if stands.waits:
        raise Failure(f"the step {step.value!r} was not done, after {WAIT_S:g} s: " + "; ".join(stands.waits))
    after = held.after(step)
    for path in paths:
        after.write(path)
    return step, after


async def _settled(client: Client, held: SecretFile) -> Obstacles:
    """Returns the obstacles of the next step: a fault of the file at once, the rest after WAIT_S at most."""
    import asyncio

    from tidelog.server.secret_file import obstacles

    began = time.monotonic()
    is_told = False
    while True:
        status = await client.cluster_status()
        brokers = {broker["id"]: broker["secrets"] for broker in status["brokers"] if broker["alive"]}
        found = obstacles(held, held.next_step(), brokers)
        waited = time.monotonic() - began
        if not found.waits or found.fault or waited >= WAIT_S:
            return found
        if waited >= SILENCE and not is_told:
            is_told = True
            click.echo(f"waiting {WAIT_S:g} s at most: {'; '.join(found.waits)}", err=True)
        await asyncio.sleep(0.2)


async def _dead_brokers(client: Client) -> list[str]:
    status = await client.cluster_status()
    return sorted(broker["id"] for broker in status["brokers"] if not broker["alive"])
