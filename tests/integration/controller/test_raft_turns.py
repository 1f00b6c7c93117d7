"""Commands that look at all of 20,000 partitions, applied by a real group of three on one event loop."""

# Rules: R28.

from __future__ import annotations

import asyncio
from pathlib import Path

from metadata.cluster.command_rules import RULES
from metadata.cluster.model import Outcome
from metadata.commands.cluster_state import ClusterState
from metadata.commands.ledger import PARTITION
from metadata.raft import RaftConfig, RaftNode, RaftRole
from metadata.runtime.applied_state import AppliedState, observe_nothing
from tests.integration.rig.waiting import LIMIT, until
from tidelog.process.loopback import free_addresses
from wire.protobuf import metadata_pb2 as pb
from wire.security.cluster_secrets import public_secrets
from wire.turns import LOOKS
from wire.types import BrokerId

BROKERS = ("a", "b", "c")
OF_STREAM = 10_000


class Voter:
    def __init__(self, address: str, others: tuple[str, ...], directory: Path) -> None:
        self.state = ClusterState()
        config = RaftConfig(
            address=address,
            peers=others,
            directory=directory,
            secrets=public_secrets(),
            election_min_s=5.0,  # three nodes share a loop, whose turns may be long on a busy machine
            election_max_s=8.0,
            connection_timeout_s=60.0,
        )
        self.node = RaftNode(
            config,
            AppliedState(self.state, lambda _: None, observe_nothing),
            on_status=lambda _: None,
            on_peer_lost=lambda _: None,
        )

    @property
    def leads(self) -> bool:
        return self.node.status().role is RaftRole.LEADER


async def test_a_death_is_applied_alike_and_the_loop_goes_on_meanwhile(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    voters = [
        Voter(address, tuple(other for other in addresses if other != address), tmp_path / f"{number}")
        for number, address in enumerate(addresses)
    ]
    loop_turns = 0

    async def count() -> None:
        nonlocal loop_turns
        while True:
            loop_turns += 1
            await asyncio.sleep(0)

    async def propose(command: pb.Command) -> Outcome:
        await until(lambda: any(voter.leads for voter in voters), "a leader")
        leader = next(voter for voter in voters if voter.leads)
        outcome = await leader.node.propose(command.SerializeToString(), timeout=LIMIT)
        assert isinstance(outcome, Outcome)
        assert outcome.code is None, outcome.message
        return outcome

    for voter in voters:
        await voter.node.start()
    counting = asyncio.create_task(count())
    try:
        begin = pb.BeginControllerEpoch(controller="a", life_id="a-1", cluster_id="c", rules=RULES)
        await propose(pb.Command(begin_controller_epoch=begin))
        for broker in BROKERS:
            register = pb.RegisterBroker(broker=broker, life_id=f"{broker}-1", cluster_id="c")
            await propose(pb.Command(register_broker=register))
        assignments = [
            pb.Assignment(replicas=[(number + place) % 3 for place in range(3)], leader=number % 3)
            for number in range(OF_STREAM)
        ]
        for name in ("s", "t"):
            create = pb.CreateStream(
                controller_epoch=1, name=name, subject=name, replication_factor=3, brokers=BROKERS,
                assignments=assignments,
            )  # fmt: skip
            await propose(pb.Command(create_stream=create))
        state = voters[0].state
        life = pb.BrokerLife(broker="b", incarnation=state.brokers[BrokerId("b")].incarnation)
        before = loop_turns
        outcome = await propose(pb.Command(brokers_dead=pb.BrokersDead(controller_epoch=1, brokers=[life])))
        assert len(outcome.changes.partitions) == 2 * OF_STREAM
        # A message and the timer may bring a turn each while the loop goes round once.
        assert loop_turns - before >= OF_STREAM * PARTITION / LOOKS
        await until(lambda: len({voter.state.generation for voter in voters}) == 1)
        assert len({voter.state.snapshot() for voter in voters}) == 1
        assert all(voter.state.led_by(BrokerId("b")) == 0 for voter in voters)
    finally:
        counting.cancel()
        for voter in voters:
            await voter.node.close()
