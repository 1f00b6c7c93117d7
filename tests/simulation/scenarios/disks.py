"""Scenarios in which disks fail, hang, run full, lose power or return wrong bytes."""

from __future__ import annotations

from tests.simulation.machines.disk import AMPLE, damageable_files, is_nothing_torn, vouched_places
from tests.simulation.machines.lost_files import lose_files
from tests.simulation.scenarios.running import CONTROL, LONG, ScenarioRun, Steps, Until


def power_at_takeover(run: ScenarioRun) -> Steps:
    """Power goes at a new leader just as its LeaderEpoch has begun, its tail written and not synced."""
    rng = run.rng
    old = yield from run.in_sync()
    others = run.others(old)
    for name in others:
        process = run.broker(name).process
        if process is not None:
            process.disk_delay = 0.05
    run.flood(1.0)
    yield 0.1 + rng.random() * 0.2
    run.kill(old)
    yield Until(lambda: any(run.leads(name) for name in others))
    yield rng.random() * 0.05
    new = next((name for name in others if run.leads(name)), None)
    if new is None or not run.power_off(new):
        return
    yield rng.random() * 0.3
    run.start(new)
    run.start(old)


def sync_fails_then_power(run: ScenarioRun) -> Steps:
    """An fsync fails, which drops the bytes that it should have written; then power goes."""
    rng = run.rng
    yield from run.in_sync()
    replicas = run.replicas
    name = rng.choice(replicas)
    other = rng.choice(run.others(name, run.leader))
    broker = run.broker(name)
    if not run.cluster.may_lose_disk(broker):
        return
    broker.disk.failing_syncs = 1
    run.flood(1.0)
    yield Until(lambda: not broker.disk.failing_syncs, 2.0)
    if rng.random() < 0.6:
        # It is back before the unsynced records are committed, which waits for another follower.
        mend = run.cut(other, which=CONTROL)
        broker.kill()
        broker.start()
        yield Until(lambda: run.lives(name))
        yield Until(lambda: name in run.isr, 6.0)
        mend()
        run.flood(0.3)
    yield rng.random() * 0.3
    broker.lose_power("nothing")
    run.cluster.start_later(broker, 0.1)
    for other in replicas:
        if other != name and rng.random() < 0.3:
            run.kill(other)
            yield 0.3
            run.start(other)


def damage(run: ScenarioRun) -> Steps:
    """A disk returns other bytes than were written."""
    rng = run.rng
    yield from run.in_sync()
    replicas, key = run.replicas, run.key
    victim = rng.choice(replicas)
    broker = run.broker(victim)
    run.flood(1.0)
    yield 1.2 + rng.random()
    broker.kill()
    run.cluster.start_later(broker, LONG)
    places = [place for place in vouched_places(broker.disk, run.cluster.data) if key and key.stream in str(place[0])]
    if places and run.cluster.may_lose_disk(broker):
        path, start, end = rng.choice(places)
        broker.disk.flip_bit(path, rng.randrange(start, end), rng.randrange(8))
    yield rng.random() * 0.2
    others = [name for name in replicas if name != victim]
    if rng.random() < 0.5:
        run.kill(others[0])
    run.start(victim)
    yield 0.5 + rng.random()
    for name in others:
        run.start(name)


def full_disks(run: ScenarioRun) -> Steps:
    """One disk after the other runs full in the middle of a flood, then all at once; each is killed, or loses power,
    full or just freed, and then its disk must hold all that it wrote."""
    rng = run.rng
    yield from run.in_sync()
    replicas = run.replicas

    def fill(*names: str) -> None:
        for name in names:
            disk = run.broker(name).disk
            disk.capacity = disk.used + rng.choice((0, 300, 1200, 2500))
            run.cluster.lift(LONG, lambda disk=disk: setattr(disk, "capacity", AMPLE))  # type: ignore[misc]

    def make_room(*names: str) -> None:
        for name in names:
            run.broker(name).disk.capacity = AMPLE

    for _ in range(5):
        victim = run.leader if rng.random() < 0.4 and run.leader else rng.choice(replicas)
        run.flood(1.0)
        yield rng.random() * 0.3
        fill(victim)
        yield 0.1 + rng.random() * 0.4
        run.flood(0.3)
        freed_first = rng.random() < 0.6
        if freed_first:
            make_room(victim)
            yield rng.random() * 0.3
        if rng.random() < 0.6 or not run.power_off(victim):
            run.kill(victim)
        run.start(victim)
        yield rng.random() * 0.2
        make_room(victim)
        yield Until(lambda: len(run.isr) == 3, 8.0)
    run.flood(1.0)
    fill(*replicas)
    yield 0.3 + rng.random()
    make_room(*replicas)
    yield Until(lambda: len(run.isr) == 3, 8.0)


def silent_damage(run: ScenarioRun) -> Steps:
    """Bits flip in the logs of a broker that runs, in places that may not be read; then its replicas are relied on."""
    rng = run.rng
    yield from run.in_sync()
    run.flood(2.0)
    yield 1.5 + rng.random()
    victim = rng.choice(run.replicas)
    broker = run.broker(victim)
    if not broker.is_running or not run.cluster.may_lose_disk(broker):
        return
    for _ in range(rng.randrange(1, 4)):
        logs = [(path, size) for path, size in damageable_files(broker.disk, run.cluster.data) if path.suffix == ".log"]
        if logs and is_nothing_torn(broker.disk, run.cluster.data):
            path, size = rng.choice(logs)
            broker.disk.flip_bit(path, rng.randrange(size), rng.randrange(8))
        yield rng.random() * 0.3
    if rng.random() < 0.5:
        run.kill(victim)
        yield rng.random() * 0.5
        run.start(victim)
    yield 0.5 + rng.random()
    leader = run.leader
    if leader is not None and leader != victim:
        run.kill(leader)
        yield 0.5
        run.start(leader)


def lost_files(run: ScenarioRun) -> Steps:
    """All brokers die; of one of them the files of its logs are gone, emptied, or as they were before. It is the first
    to come back, and the others come when it may lead."""
    rng = run.rng
    yield from run.in_sync()
    victim = rng.choice(run.replicas)
    broker = run.broker(victim)
    run.flood(1.0)
    yield 2.0 + rng.random()
    older = broker.disk.copy() if rng.random() < 0.4 else None
    run.flood(1.0)
    yield 3.0 + rng.random()
    if not run.cluster.may_lose_disk(broker):
        return
    others = run.others(victim)
    for name in (victim, *others):
        run.broker(name).kill()
        run.cluster.start_later(run.broker(name), LONG)
    part = rng.choice(("partition", "partition", "stream", "manifest and partition"))
    lose_files(broker.disk, run.cluster.data, part, older, rng, emptied=rng.random() < 0.5)
    yield rng.random() * 0.2
    run.start(victim)
    run.start(others[0])
    yield rng.random()
    run.start(others[1])
    yield Until(lambda: len(run.isr) == 3, 10.0)


def hung_leader(run: ScenarioRun) -> Steps:
    """The disk of a leader hangs, while its loop and its connections work. Another one leads, and commits, before the
    old one would be dropped for its lag, and long before the disk answers."""
    rng = run.rng
    old = yield from run.in_sync()
    world, limit = run.cluster.world, run.broker(old).replica_settings.replica_max_lag_time
    answer = run.hang(old)
    run.flood(0.3)
    yield limit + 2
    new, committed = run.leader, run.committed
    run.flood(0.3)
    yield 2.0
    if run.is_alone and old in (new, run.leader):
        world.broken("Promptness", f"{old} leads, and its disk has been hanging for {limit + 4:.1f} s")
    if run.is_alone and run.committed == committed:
        world.broken("Promptness", f"nothing is committed while the disk of {old} hangs, which does not lead")
    if rng.random() < 0.3 and run.power_off(old):
        run.start(old)
    answer()
    yield Until(lambda: old in run.isr, 6.0)


def first_back_without_its_page_cache(run: ScenarioRun) -> Steps:
    """The three replicas end together, one of them by a power failure: records that it acknowledged, and had not
    synced, are gone. It comes back alone. The others may hold more, and come when nobody waits for them any more."""
    rng = run.rng
    leader = yield from run.in_sync()
    run.flood(1.0)
    committed = run.committed
    yield Until(lambda: run.committed > committed + 5)
    lost, other = rng.sample(run.others(leader), 2)
    if not run.power_off(lost):
        return
    for name in (leader, other):
        run.kill(name)
    run.start(lost)
    yield Until(lambda: run.lives(lost), 8.0)
    yield run.broker(lost).metadata_settings.election_wait_s + 3.0
    for name in (leader, other):
        run.start(name)
        yield rng.random() * 0.3
    yield Until(lambda: len(run.isr) == 3, 10.0)
