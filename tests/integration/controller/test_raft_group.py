"""RaftNodes on one event loop and real loopback sockets: groups, observers, refusals."""

# Rules: R70.

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from metadata.raft import (
    MAX_COMMAND_BYTES,
    CommandTooLarge,
    RaftAddressError,
    RaftApplyFailed,
    RaftConfig,
    RaftConfigurationError,
    RaftNode,
    RaftOutcomeUnknown,
    RaftRole,
    RaftStatus,
    RaftStorageError,
    RaftUnavailable,
)
from tests.integration.rig.waiting import LIMIT, until
from tests.unit.metadata.raft.recorder import Recorder, end
from tidelog.process.loopback import free_addresses
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets, public_secrets

SLOW_MACHINE: dict[str, Any] = {"election_min_s": 1.5, "election_max_s": 2.5, "connection_timeout_s": 5.0}
"""Three nodes share a loop, whose turns may be long on a busy machine."""


class Member:
    """A node with the events that it received."""

    def __init__(self, config: RaftConfig) -> None:
        self.config = config
        self.machine = Recorder()
        self.statuses: list[RaftStatus] = []
        self.lost: list[str] = []
        self.ended: list[str] = []
        self.node = RaftNode(
            config,
            self.machine,
            on_status=self.statuses.append,
            on_peer_lost=self.lost.append,
            exit_process=self._end,
        )

    def _end(self, reason: str) -> NoReturn:
        self.ended.append(reason)
        end(reason)

    @property
    def leads(self) -> bool:
        return self.node.status().role is RaftRole.LEADER


@contextlib.asynccontextmanager
async def running(*members: Member) -> AsyncIterator[None]:
    try:
        for member in members:
            await member.node.start()
        yield
    finally:
        for member in members:
            await member.node.close()


def standalone(tmp_path: Path, address: str | None = None) -> RaftConfig:
    return RaftConfig(
        address=address or free_addresses(1)[0], peers=(), directory=tmp_path / "raft", secrets=public_secrets()
    )


def group(tmp_path: Path, *, secret: bytes | None = None, **settings: Any) -> list[Member]:
    addresses = sorted(free_addresses(3))
    return [
        Member(
            RaftConfig(
                address=address,
                peers=tuple(other for other in addresses if other != address),
                directory=tmp_path / f"voter{number}",
                secrets=public_secrets() if secret is None else ClusterSecrets([ClusterSecret(secret)]),
                **SLOW_MACHINE | settings,
            )
        )
        for number, address in enumerate(addresses)
    ]


async def leader_of(members: list[Member]) -> Member:
    await until(lambda: sum(member.leads for member in members) == 1)
    return next(member for member in members if member.leads)


async def led(*members: Member) -> Member:
    """The leader of these, once all of them know of it: what is proposed during an election may end as unknown."""
    leader = await leader_of([member for member in members if member.config.address is not None])
    await until(lambda: all(member.node.status().leader == leader.config.address for member in members))
    return leader


# ---------------------------------------------------------------------------- standalone


async def test_a_standalone_voter_commits_and_remembers(tmp_path: Path) -> None:
    config = standalone(tmp_path)
    first = Member(config)
    async with running(first):
        assert [await first.node.propose(command, timeout=LIMIT) for command in (b"a", b"b")] == [1, 2]
        await first.node.barrier(timeout=LIMIT)
        assert first.statuses[-1].leader == config.address
        assert first.statuses[-1].has_quorum
    again = Member(config)
    async with running(again):
        await again.node.barrier(timeout=LIMIT)
        assert again.machine.commands == [b"a", b"b"]


async def test_compaction_and_restart_keep_everything(tmp_path: Path) -> None:
    config = replace(standalone(tmp_path), compaction_min_entries=20)
    expected = [b"%d" % number for number in range(100)]
    first = Member(config)
    async with running(first):
        for command in expected:
            await first.node.propose(command, timeout=LIMIT)
        await until((config.directory / "snapshot").exists)
    again = Member(config)
    async with running(again):
        await again.node.barrier(timeout=LIMIT)
        assert again.machine.commands == expected


async def test_many_proposals_share_syncs_and_are_bounded(tmp_path: Path) -> None:
    member = Member(standalone(tmp_path))
    async with running(member):
        await member.node.barrier(timeout=LIMIT)
        proposals = [member.node.propose(b"%d" % number, timeout=LIMIT) for number in range(1100)]
        results = await asyncio.gather(*proposals, return_exceptions=True)
        refused = [result for result in results if isinstance(result, RaftUnavailable)]
        assert len(refused) == 1100 - 1024
        assert len(member.machine.commands) == 1024


async def test_a_command_that_the_state_machine_refuses_to_apply(tmp_path: Path) -> None:
    member = Member(standalone(tmp_path))
    async with running(member):
        with pytest.raises(RaftApplyFailed, match="boom"):
            await member.node.propose(b"boom", timeout=LIMIT)
        assert await member.node.propose(b"fine", timeout=LIMIT) == 1


async def test_a_failed_sync_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = Member(standalone(tmp_path))
    async with running(member):
        await member.node.barrier(timeout=LIMIT)

        def fail(_descriptor: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as broken:
            broken.setattr("os.fdatasync", fail)
            proposal = asyncio.create_task(member.node.propose(b"a", timeout=LIMIT))
            await until(lambda: member.ended)
            proposal.cancel()
    assert "this process ends" in member.ended[0]


# ---------------------------------------------------------------------------- groups


async def test_three_voters_agree_whichever_is_asked(tmp_path: Path) -> None:
    members = group(tmp_path, secret=b"a secret of some bytes")
    async with running(*members):
        leader = await leader_of(members)
        results = [
            await member.node.propose(member.config.directory.name.encode(), timeout=LIMIT) for member in members
        ]
        assert results == [1, 2, 3]
        for member in members:
            await member.node.barrier(timeout=LIMIT)
            assert member.machine.commands == [b"voter0", b"voter1", b"voter2"]
            assert member.node.status().leader == leader.config.address


async def test_the_loss_of_the_leader_is_told_and_another_takes_over(tmp_path: Path) -> None:
    members = group(tmp_path, connection_timeout_s=25.0)
    async with running(*members):
        old = await leader_of(members)
        await old.node.propose(b"before", timeout=LIMIT)
        rest = [member for member in members if member is not old]
        await old.node.close()
        # By the end of the connection, long before its silence would be noticed.
        await until(lambda: all(old.config.address in member.lost for member in rest), timeout=20)
        new = await led(*rest)
        await rest[0].node.propose(b"after", timeout=LIMIT)
        assert new.machine.commands == [b"before", b"after"]


async def test_the_first_leader_of_a_group_votes_after_a_restart(tmp_path: Path) -> None:
    members = group(tmp_path)
    async with running(*members):
        first = await leader_of(members)
        await first.node.propose(b"before", timeout=LIMIT)
        rest = [member for member in members if member is not first]
        await first.node.close()
        second = await leader_of(rest)
        (third,) = (member for member in rest if member is not second)
        await second.node.propose(b"between", timeout=LIMIT)
        await second.node.close()
        again = Member(first.config)
        async with running(again):
            await led(third, again)
            await third.node.propose(b"after", timeout=LIMIT)
            await again.node.propose(b"and again", timeout=LIMIT)
            await until(lambda: again.machine.commands == [b"before", b"between", b"after", b"and again"])


async def test_a_leader_that_hands_over_is_followed_by_another(tmp_path: Path) -> None:
    members = group(tmp_path)
    async with running(*members):
        old = await leader_of(members)
        await old.node.propose(b"before", timeout=LIMIT)
        rest = [member for member in members if member is not old]
        assert old.node.hand_over()
        new = await leader_of(rest)
        await until(lambda: old.node.status().leader == new.config.address)
        await old.node.propose(b"after", timeout=LIMIT)
        assert old.machine.commands == [b"before", b"after"]
        assert not old.leads
        assert new.leads
        assert not old.node.hand_over(), "it leads no more"


async def test_a_standalone_voter_cannot_hand_over(tmp_path: Path) -> None:
    member = Member(standalone(tmp_path))
    async with running(member):
        await until(lambda: member.leads)
        assert not member.node.hand_over()


async def test_an_observer_follows_proposes_and_survives_failover(tmp_path: Path) -> None:
    members = group(tmp_path)
    voters = tuple(member.config.address or "" for member in members)
    observer = Member(RaftConfig(address=None, peers=voters, directory=tmp_path / "observer", secrets=public_secrets()))
    async with running(*members, observer):
        old = await leader_of(members)
        assert await observer.node.propose(b"one", timeout=LIMIT) == 1
        assert observer.node.status().role is RaftRole.OBSERVER
        await old.node.close()
        await until(lambda: old.config.address in observer.lost)
        await led(*(member for member in members if member is not old), observer)
        assert await observer.node.propose(b"two", timeout=LIMIT) == 2
        assert observer.machine.commands == [b"one", b"two"]


async def test_a_voter_whose_disk_was_emptied_gets_a_snapshot(tmp_path: Path) -> None:
    members = group(tmp_path, compaction_min_entries=20)
    async with running(*members):
        leader = await leader_of(members)
        victim = next(member for member in members if member is not leader)
        await victim.node.close()
        for number in range(100):
            await leader.node.propose(b"%d" % number, timeout=LIMIT)
        shutil.rmtree(victim.config.directory)
        again = Member(victim.config)
        async with running(again):
            await again.node.barrier(timeout=LIMIT)
            assert again.machine.commands == leader.machine.commands


async def test_a_majority_with_empty_disks_makes_no_group(tmp_path: Path) -> None:
    """It would make the third voter, which comes later, forget what was committed."""
    members = group(tmp_path)
    async with running(*members[:2]):
        await until(lambda: all(member.node.status().connected for member in members[:2]))
        with pytest.raises(RaftUnavailable, match="founded by all of its voters"):
            await members[0].node.propose(b"x", timeout=2)
        async with running(members[2]):
            assert await members[0].node.propose(b"one", timeout=LIMIT) == 1
            await until(lambda: all(member.machine.commands == [b"one"] for member in members))
    for member in members[:2]:
        shutil.rmtree(member.config.directory)
    members = [Member(member.config) for member in members]
    async with running(*members):
        await until(lambda: len(members[2].node.status().new_peers) == 2)
        with pytest.raises(RaftUnavailable, match="started with empty data folders, and may not vote"):
            await members[2].node.propose(b"two", timeout=2)
        await until(lambda: members[0].node.status().old_peers)
        with pytest.raises(RaftUnavailable, match=r"data folder is empty, and .* has one of a cluster"):
            await members[0].node.propose(b"three", timeout=2)
        assert [member.node.status().term for member in members] == [0, 0, members[2].node.status().term]


async def test_without_a_majority_nothing_is_queued(tmp_path: Path) -> None:
    members = group(tmp_path)
    async with running(members[0]):
        with pytest.raises(RaftUnavailable, match=r"No Raft leader was known within 0\.3 s"):
            await members[0].node.propose(b"x", timeout=0.3)
        assert not members[0].node.status().has_quorum
        assert members[0].node.status().term == 0, "pre-votes raise no term"


async def test_a_leader_alone_gives_up_and_the_outcome_is_unknown(tmp_path: Path) -> None:
    members = group(tmp_path)
    async with running(*members):
        leader = await leader_of(members)
        await leader.node.barrier(timeout=LIMIT)
        for member in members:
            if member is not leader:
                await member.node.close()
        with pytest.raises(RaftOutcomeUnknown, match="not seen applied"):
            await leader.node.propose(b"x", timeout=1.0)
        await until(lambda: not leader.leads)


async def test_a_voter_with_another_secret_stays_outside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = group(tmp_path, secret=b"the secret of the group")
    async with running(*members):
        await leader_of(members)  # all of them found the group
        await until(lambda: all(member.node.status().leader for member in members))
    members = [Member(member.config) for member in members]
    members[2] = Member(
        replace(members[2].config, secrets=ClusterSecrets([ClusterSecret(b"the secret of a stranger")]))
    )
    async with running(*members):
        leader = await leader_of(members[:2])
        await leader.node.propose(b"x", timeout=LIMIT)
        await until(lambda: members[2].node.status().unverified)
        with pytest.raises(RaftUnavailable, match=r"and this node refuse each other's Raft frames: one of them has"):
            await members[2].node.propose(b"y", timeout=2)
        for member in members[:2]:
            await until(lambda: member.node.status().unverified)  # noqa: B023 - called at once
            assert member.node.status().unverified_words() == "", "it has a majority"
        lines = [record.getMessage() for record in caplog.records if "not verify" in record.getMessage()]
        assert 2 <= len(lines) <= 6, "one of each connection's owner, though it is tried again ten times a second"
        assert members[2].machine.commands == []


async def test_host_names_are_resolved_in_the_background(tmp_path: Path) -> None:
    addresses = [address.replace("127.0.0.1", "localhost") for address in sorted(free_addresses(2))]
    members = [
        Member(RaftConfig(address=mine, peers=(other,), directory=tmp_path / mine, secrets=public_secrets()))
        for mine, other in (addresses, addresses[::-1])
    ]
    async with running(*members):
        leader = await leader_of(members)
        assert await leader.node.propose(b"x", timeout=LIMIT) == 1


async def test_idle_connections_stay(tmp_path: Path) -> None:
    members = group(tmp_path)
    async with running(*members):
        await leader_of(members)
        await until(lambda: all(member.node.status().has_quorum for member in members))
        # Two connection timeouts: the two followers have nothing to say to each other but pings.
        await asyncio.sleep(2 * members[0].config.connection_timeout_s)
        assert [member.lost for member in members] == [[], [], []]


# ---------------------------------------------------------------------------- refusals


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        member = Member(standalone(tmp_path, address))
        with pytest.raises(RaftAddressError, match=f"{address} cannot be bound .*stop the process"):
            await member.node.start()
    async with running(member):
        await member.node.barrier(timeout=LIMIT)


async def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    first = Member(standalone(tmp_path))
    async with running(first):
        with pytest.raises(RaftStorageError, match="in use by another process"):
            await Member(standalone(tmp_path)).node.start()


@pytest.mark.parametrize("file", ["journal", "snapshot"])
async def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, file: str) -> None:
    config = standalone(tmp_path)
    config.directory.mkdir()
    (config.directory / file).write_bytes(b"something else, long enough to be read as a header")
    with pytest.raises(RaftStorageError, match=str(config.directory / file)):
        await Member(config).node.start()


@pytest.mark.parametrize(
    ("address", "peers"), [("0.0.0.0:7001", ()), ("127.0.0.1:7001", ("192.0.2.1:7001",)), (None, ("192.0.2.1:7001",))]
)
async def test_beyond_loopback_a_secret_is_needed(tmp_path: Path, address: str | None, peers: tuple[str, ...]) -> None:
    config = RaftConfig(address=address, peers=peers, directory=tmp_path / "raft", secrets=public_secrets())
    with pytest.raises(RaftConfigurationError, match="no Raft secret is configured"):
        await Member(config).node.start()


async def test_commands_above_the_limit_are_refused(tmp_path: Path) -> None:
    member = Member(standalone(tmp_path))
    async with running(member):
        with pytest.raises(CommandTooLarge, match=f"above the limit of {MAX_COMMAND_BYTES}"):
            await member.node.propose(bytes(MAX_COMMAND_BYTES + 1), timeout=LIMIT)
        assert await member.node.propose(bytes(MAX_COMMAND_BYTES), timeout=LIMIT) == 1


async def test_open_proposals_end_as_unknown_at_close_and_later_ones_are_refused(tmp_path: Path) -> None:
    members = group(tmp_path)
    async with running(*members):
        leader = await leader_of(members)
        await leader.node.barrier(timeout=LIMIT)
        for member in members:
            if member is not leader:
                await member.node.close()
        proposal = asyncio.create_task(leader.node.propose(b"x", timeout=30))
        await until(lambda: leader.node._waiting)
        await leader.node.close()
        with pytest.raises(RaftOutcomeUnknown, match="closed"):
            await proposal
        with pytest.raises(RaftUnavailable, match="closed"):
            await leader.node.propose(b"x", timeout=30)
