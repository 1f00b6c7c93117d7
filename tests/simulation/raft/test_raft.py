"""Tests of the simulated metadata group: the same seed gives the same run, a few seeds, what other seeds have found."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metadata.raft.poller import READ, WRITE
from tests.simulation.faults import Fault
from tests.simulation.machines.sockets import WINDOW, SimNetwork, SimPoller, SimSocket
from tests.simulation.mutants import MUTANTS
from tests.simulation.raft.raft_node import ip_of
from tests.simulation.raft.raft_run import LEADER, run
from tests.simulation.runs import RAFT_ALONE, RAFT_FORGETFUL
from tests.simulation.world import Process, World, inhabited

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

_TRACE = """
import sys
from tests.simulation.raft.raft_run import run
print("\\n".join(run(int(sys.argv[1]), traced=True).trace))
"""


@pytest.mark.parametrize("seed", [1, 5, 8])
def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed(seed: int) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _TRACE, str(seed)],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for hash_seed in ("1", "2")
    ]
    traces = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert traces[0].count(b"\n") > 300
    assert sha256(traces[0]).hexdigest() == sha256(traces[1]).hexdigest()


def replay(seed: int) -> str:
    return f"scripts/simulate --seed {seed} --scenario '{RAFT_ALONE}'"


@pytest.mark.parametrize("seed", range(1, 16))
def test_a_seed_holds(seed: int) -> None:
    assert run(seed).broken is None, replay(seed)


@pytest.mark.parametrize("seed", [52, 73, 360, 387])
def test_a_seed_that_was_broken_holds(seed: int) -> None:
    assert run(seed).broken is None, replay(seed)


@pytest.mark.parametrize("seed", [1, 2, 3, 7, 11])
def test_a_seed_in_which_a_voter_forgets_holds(seed: int) -> None:
    result = run(seed, forgetful=True)
    assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{RAFT_FORGETFUL}'"
    assert result.faults


def test_a_voter_loses_its_files_only_where_the_others_that_have_synchronised_are_a_majority() -> None:
    """Seed 489 damages the first leader's journal before the third voter, which started late, has synchronised."""
    held = run(489)
    assert held.broken is None, replay(489)
    assert "bit flip" not in held.faults


def test_a_voter_that_is_asked_to_stop_while_it_is_paused_starts_again_in_the_calm() -> None:
    assert run(86).broken is None, replay(86)


def test_without_faults_all_is_acknowledged() -> None:
    result = run(2, schedule=[])
    assert result.broken is None
    assert result.acknowledged == result.sent > 20


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_leader_that_gives_way_is_followed_at_once(seed: int) -> None:
    """Not after the time for which the others would wait for a leader that is silent (1.2 s and more)."""
    result = run(seed, traced=True, schedule=[Fault(at=1.0, kind="hand over", broker=LEADER)])
    assert result.broken is None
    gave_way = next(index for index, line in enumerate(result.trace) if "FAULT" in line)
    leads = next(line for line in result.trace[gave_way:] if "leads term 2" in line)
    assert float(leads.split()[0]) - float(result.trace[gave_way].split()[0]) < 0.3


# ---- the network of the simulation


class Ends:
    def __init__(self) -> None:
        self.world = World(1)
        self.network = SimNetwork(self.world)
        self.processes = [Process.begun(self.world, name) for name in "ab"]
        self.pollers = [SimPoller(self.network, process) for process in self.processes]
        self.listener = SimSocket(self.network, ip_of(2))
        self.listener.bind((ip_of(2), 7400))
        self.listener.listen(8)
        self.one = SimSocket(self.network, ip_of(1))
        self.one.connect_ex((ip_of(2), 7400))
        self.world.run_until(1.0)
        self.other = self.listener.accept()[0]

    def later(self, seconds: float = 5.0) -> None:
        self.world.run_until(self.world.now + seconds)

    def read(self) -> bytes:
        found = b""
        while self.other.ready() & READ:
            if not (more := self.other.recv(1 << 20)):
                break
            found += more
        return found

    def send(self, data: bytes) -> None:
        while data:
            data = data[self.one.send(bytearray(data)) :]


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    with inhabited(made.world):
        yield made


def test_bytes_arrive_in_order_and_a_full_window_makes_a_sender_wait(ends: Ends) -> None:
    sent = bytes(range(256)) * (WINDOW // 256)
    ends.send(sent)
    with pytest.raises(BlockingIOError):
        ends.one.send(bytearray(b"more"))
    assert not ends.one.ready() & WRITE
    ends.later()
    assert ends.read() == sent
    ends.later()
    assert ends.one.ready() & WRITE


def test_bytes_for_a_link_that_is_cut_wait_and_one_direction_is_cut_by_itself(ends: Ends) -> None:
    ends.network.cut(ip_of(1), ip_of(2))
    ends.send(b"held")
    ends.other.send(bytearray(b"goes"))
    ends.later()
    assert (ends.read(), ends.one.recv(9)) == (b"", b"goes")
    ends.network.mend(ip_of(1), ip_of(2))
    ends.later()
    assert ends.read() == b"held"


def test_the_system_of_a_killed_process_ends_its_connections_and_a_machine_without_power_says_nothing(
    ends: Ends,
) -> None:
    ends.send(b"last words")
    ends.network.process_died(ip_of(1))
    ends.later()
    assert ends.read() == b"last words"
    assert ends.other.recv(1) == b""
    again = Ends()
    again.network.process_died(ip_of(1), with_machine=True)
    again.later()
    assert not again.other.ready() & READ
    again.network.machine_is_up(ip_of(1))
    again.other.send(bytearray(b"are you there?"))
    again.later()
    with pytest.raises(ConnectionResetError):
        again.other.recv(1)


# ---- mutants


@pytest.mark.parametrize(
    ("name", "invariants"),
    [
        ("an acknowledgement leaves before its entries are on disk", {"PersistBeforeSend", "CommitsAreDurable"}),
        ("(l) elections begin without pre-votes", {"ElectionsAreAsked"}),
        ("a voter has synchronised with the first message of a leader", {"LeaderCompleteness"}),
    ],
)
def test_a_mutant_is_caught(name: str, invariants: set[str]) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == f"Raft: {name}")
    forgetful = mutant.scenario == RAFT_FORGETFUL
    with mutant.applied():
        found = next(broken for seed in count(1) if (broken := run(seed, forgetful=forgetful).broken) is not None)
    assert found.invariant in invariants
