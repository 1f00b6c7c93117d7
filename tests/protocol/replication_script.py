"""The commands of `tests/testdata/replication`: a leader and its followers, told step by step.

    stream a b c [min_isr=2] [durability=accepted] [push=false] [KEY=SECONDS]   replicas, the leader first
           [max_producers=2] [producer_expiration=SECONDS]
           [partitions=3 number=2]    of the stream, and the one that is told
           [budget=BYTES]    a second, for replicas outside the ISR
           [segment_bytes=512]    `retain` removes whole segments; 1: a segment for each batch, 512: for four
    log a 1:ab 3:c [start=10] [hw=2]       before `begin`: what lies on a's disk
    epoch 5 [unclean=4]                    before `begin`: LeaderEpoch of the first view, and the one of an operator's
                                           unclean election before
    begin                                  the view goes to everybody
    publish a xyz [acks=all|leader|none] [durability=LEVEL] [as=TOKEN] [timeout=S] [lease=no]
              [producer=ID/EPOCH/SEQUENCE] [proof=none|ID]                  an append request; by whose key it is proven
              [expects=OFFSET] [ids=I/-/K]
              [version=V]         the partitioning version that it names
    publish a xyz bare [as=TOKEN] [lease=no]    a plain NATS message for each character
              [on=s.2]            to the subject of another partition
              [ids=I/-/K] [last=SEQUENCE] [last-id=I]     message ids; what they expect
    publish a xyz acks=all transaction=ID/EPOCH/SEQUENCE [ticket=none|expired|other-epoch|other-life]
                                           a batch of transactional producer ID
    mark a ID/EPOCH commit|abort [as=TOKEN] [life=other]    a coordinator ends the transaction of a producer
    allotted ID                            no producer without transactions has this id or a higher one
    counted-on a                           a controller has counted on its leaderships by now
    clock a SECONDS                        its wall clock is so far ahead of those of most brokers
    deliver                                everything on its way, and what comes of it, until all is quiet
    deliver a>b …                          what is on these links now
    step                                   everything that is on its way now, not what comes of it
    hold a>b … | release a>b …             what is on these links waits, also for `deliver`
    drop a>b … | duplicate a>b …           what is on these links now; a second copy is put behind everything
    last-first a>b                         turn what is on this link now around
    damage a>b                             what is on this link now does not decode when it arrives
    too-large a>b                          NATS does not carry what is on this link now: an error goes in its place
    flight                                 what is on its way
    wait S                                 time passes: timers fire when they are due, messages arrive
    sleep S                                time passes; nobody's timer fires before its end
    tick a …                               these look at the time
    die b … | elect [to=c] [planned] | unclean c       decisions of the controller
    drain a to=b [timeout=S]               a planned move: a sequences nothing more until b has everything
    alter KEY=VALUE …                      settings of the living stream
    readonly on|off                        the partition takes no records | takes them again
    pause | resume                         an operator pauses the partition | resumes it
    prepare N | cutover | finish           steps of a repartition to N partitions
    told P OFFSET                          another partition tells its cutover
    purge OFFSET [e=N]                     an operator deletes the records below it
    isr a,b                                the ISR is changed behind the leader's back
    kill b [power] | restart b             restart: a new life, registered
    disconnect b | reconnect b             its NATS connection
    full b | room b                        its disk has no room for records | has some again
    hangs b | answers b                    it knows that its disk hangs (see `hold`) | answers again
    retain a OFFSET [pieces=BYTES]         a's records below it go; pieces of derived state are no
                                           larger from now on
    lose-snapshots b                       of a broker that does not run: the files of its derived state
    compact a END [tombstones]             a pass up to there: of each letter the last record stays, a capital is the
                                           tombstone of its letter; with `tombstones`, those of the pass before go
    consume a offset=N [wait=S] [last=EPOCH] [as=TOKEN] [uncommitted] [records]   at any replica; with `records`
                                           they are told when they come
    latest a [uncommitted]
    starts a                               where its consumers begin; of a leader, also what is settled
    parked b [e=N] [seq=N] [life=N]        b's broker asks the leader whether b's fetch waits there, with the right
                                           numbers or with these
    replicate a from=b e=1 seq=5 offset=0  a request made by hand
    state                                  all replicas, and the view of the metadata

Each line printed is a message that arrives, or (indented) what a replica then does. Disks are slow only when held: `b`
alone as a link is its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace
from types import TracebackType
from typing import Self

from dataplane.replica.derived.producer_table import DEFAULT_LIMITS
from dataplane.replica.replica_settings import ReplicaSettings
from tests.datadriven import Command, ScriptError
from tests.protocol.notation import broker_shown, effect_shown, message_shown, view_shown
from tests.protocol.replica_set import ReplicaSet
from tests.protocol.running_broker import META, Broker, Message, Told
from tests.simulation.world import TIMER_LATENESS
from tests.tickets import tickets
from wire.messaging.transport import Message as NatsMessage
from wire.messaging.transport import answer_too_large, too_large
from wire.partition_messages.replication import HEADER_SIZE
from wire.protobuf.tidelog_pb2 import EndTransactionRequest, FetchRequest, ReplicationRequest
from wire.security.tickets import LIFETIME_S, partition_target
from wire.types import FIRST_TRANSACTIONAL_ID, Incarnation, PartitionEpoch

MOST_DELIVERIES = 500
"""In one command; a transcript that needs more goes round in circles."""


_STREAM_SETTINGS = (
    "min_isr",
    "durability",
    "auto_pause_time_ms",
    "auto_pause_disable_if_subscribers",
    "producer_byte_rate",
    "producer_record_rate",
    "dedup_window_ms",
    "compact",
)


_EXPECTATIONS = {"Last-Sequence": "last", "Last-Msg-Id": "last-id"}


def _ids(text: str | None, values: str) -> list[str | None]:
    """A message id for each record."""
    if text is None:
        return [None] * len(values)
    ids = [None if each == "-" else each for each in text.split("/")]
    if len(ids) != len(values):
        raise ScriptError(f"ids={text} for {len(values)} records")
    return ids


def _three_numbers(text: str) -> tuple[int, int, int]:
    first, second, third = map(int, text.split("/"))
    return first, second, third


class ReplicationScript:
    """One method for each command."""

    def __init__(self) -> None:
        self._world: ReplicaSet | None = None
        self._lines: list[str] = []
        self._commands: dict[str, Callable[[Command], None]] = {
            "stream": self._stream,
            "log": self._log,
            "epoch": self._epoch,
            "begin": self._begin,
            "publish": self._publish,
            "mark": self._mark,
            "counted-on": self._counted_on,
            "clock": self._clock,
            "allotted": self._allotted,
            "deliver": self._deliver,
            "step": self._step,
            "hold": self._hold,
            "release": self._release,
            "drop": self._drop,
            "duplicate": self._duplicate,
            "last-first": self._last_first,
            "damage": self._damage,
            "too-large": self._too_large,
            "flight": self._flight,
            "wait": self._wait,
            "sleep": self._sleep,
            "tick": self._tick,
            "die": self._die,
            "elect": self._elect,
            "drain": self._drain,
            "alter": self._alter,
            "readonly": self._readonly,
            "pause": self._pause,
            "resume": self._pause,
            "prepare": self._prepare,
            "cutover": self._cutover,
            "finish": self._finish,
            "told": self._cutover_told,
            "purge": self._purge,
            "unclean": self._unclean,
            "isr": self._isr,
            "kill": lambda command: self.world.kill(command.words[0], power="power" in command.words),
            "restart": self._restart,
            "disconnect": lambda command: self.world.connect(command.words[0], connected=False),
            "reconnect": lambda command: self.world.connect(command.words[0], connected=True),
            "full": lambda command: self.world.set_full(command.words[0], True),
            "hangs": lambda command: self.world.set_hanging(command.words[0], True),
            "answers": lambda command: self.world.set_hanging(command.words[0], False),
            "room": lambda command: self.world.set_full(command.words[0], False),
            "retain": self._retain,
            "lose-snapshots": lambda command: self.world.lose_snapshots(command.words[0]),
            "compact": self._compact,
            "consume": self._consume,
            "latest": self._latest,
            "starts": self._starts,
            "parked": self._parked,
            "replicate": self._replicate,
            "state": self._state,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        if self._world is not None:
            self._world.close()

    def __call__(self, command: Command) -> Sequence[str]:
        self._lines = []
        carry_out = self._commands.get(command.name)
        if carry_out is None:
            raise ScriptError(f"unknown command; known: {', '.join(self._commands)}")
        carry_out(command)
        if self.world.world.failure is not None:
            raise self.world.world.failure
        for broker in self.world.brokers.values():
            if broker.role is not None:
                broker.role.log.producers.validate()
                broker.role.core.validate()
        return self._lines

    @property
    def world(self) -> ReplicaSet:
        if self._world is None:
            raise ScriptError("the first command is `stream`")
        return self._world

    def _say(self, broker: str, told: Told) -> None:
        self._lines.append(f"  {broker}: {effect_shown(told, self.world.asked_on)}")

    def _arrived(self, message: Message, outcome: str) -> None:
        self._lines.append(message_shown(message, outcome))

    def _check_leads(self, name: str) -> None:
        if self.world.brokers[name].leading is None:
            raise ScriptError(f"{name} does not lead")

    # ---- setting the stage -----------------------------------------------------------------------------------------

    def _stream(self, command: Command) -> None:
        times = {field.name for field in fields(ReplicaSettings)}
        config = {key: value for key, value in command.options.items() if key in _STREAM_SETTINGS}
        producers, segment_bytes = DEFAULT_LIMITS, 1 << 20
        settings: dict[str, float | bool] = {"empty_answer_delay": 0.0}  # each answer in its place, but where asked
        for key, value in command.options.items():
            if key in times:
                settings[key] = int(value) if key.endswith("_bytes") else float(value)
            elif key == "push":
                settings["push_to_waiters"] = value != "false"
            elif key == "max_producers":
                producers = replace(producers, max_producers=int(value))
            elif key == "producer_expiration":
                producers = replace(producers, expiration_ms=round(float(value) * 1000))
            elif key == "segment_bytes":
                segment_bytes = int(value)
            elif key in ("partitions", "number", "budget"):
                continue
            elif key not in config:
                raise ScriptError(f"unknown setting {key}")
        replicas = " ".join(command.words)
        self.__exit__(None, None, None)
        self._world = ReplicaSet(
            " ".join(sorted(command.words)),
            replicas=replicas,
            partitions=int(command.options.get("partitions", "1")),
            number=int(command.options.get("number", "0")),
            config=config,
            settings=ReplicaSettings(**settings),  # type: ignore[arg-type]
            producers=producers,
            segment_bytes=segment_bytes,
            replication_budget=int(command.options.get("budget", "0")),
            told=self._say,
            arrived=self._arrived,
        )

    def _log(self, command: Command) -> None:
        command.check_options("start", "hw")
        name, *words = command.words
        runs = [(int(epoch), values) for epoch, values in (word.split(":") for word in words)]
        start = int(command.options.get("start", "0"))
        self.world.write_log(name, runs, start, int(command.options.get("hw", start)))

    def _epoch(self, command: Command) -> None:
        command.check_options("unclean")
        self.world.set_leader_epoch(int(command.words[0]), int(command.options.get("unclean", "0")))

    def _begin(self, command: Command) -> None:
        """A leader that has begun says so; here a follower hears that before it has a role."""
        world = self.world
        world.begin()
        while self._next(lambda m: m.source == META and m.link not in world.held):
            while self._next(lambda m: m.is_notification and m.link not in world.held):
                pass

    # ---- messages --------------------------------------------------------------------------------------------------

    def _next(self, which: Callable[[Message], bool]) -> bool:
        for message in self.world.network:
            if which(message):
                self.world.receive(message)
                return True
        return False

    def _on(self, command: Command) -> list[Message]:
        found = [message for message in self.world.network if message.link in command.words]
        if not found:
            raise ScriptError(f"nothing is on its way on {' '.join(command.words)}")
        return found

    def _settle(self) -> None:
        for _ in range(MOST_DELIVERIES):
            if not self._next(lambda message: message.link not in self.world.held):
                return
        raise ScriptError(f"not quiet after {MOST_DELIVERIES} messages")

    def _deliver(self, command: Command) -> None:
        if not command.words:
            self._settle()
            return
        for message in self._on(command):
            self.world.receive(message)

    def _step(self, command: Command) -> None:
        for message in [*self.world.network]:
            if message.link not in self.world.held and message in self.world.network:
                self.world.receive(message)

    def _hold(self, command: Command) -> None:
        self.world.held.update(command.words)

    def _release(self, command: Command) -> None:
        self.world.held.difference_update(command.words)

    def _drop(self, command: Command) -> None:
        for message in self._on(command):
            self.world.network.remove(message)
            self._lines.append(f"lost: {message_shown(message)}")

    def _duplicate(self, command: Command) -> None:
        for message in self._on(command):
            self.world.network.append(copy(message))
            self._lines.append(f"twice: {message_shown(message)}")

    def _last_first(self, command: Command) -> None:
        found = self._on(command)
        for message in found:
            self.world.network.remove(message)
        self.world.network.extend(reversed(found))

    def _damage(self, command: Command) -> None:
        for message in self._on(command):
            assert isinstance(message.body, NatsMessage)
            data = bytearray(message.body.data)
            data[-1] ^= 1
            message.body = message.body._replace(data=bytes(data))

    def _too_large(self, command: Command) -> None:
        for message in self._on(command):
            assert isinstance(message.body, NatsMessage)
            error = answer_too_large(too_large(message.body.subject, 2 << 20, 1 << 20), "a batch")
            body = message.body.data[:HEADER_SIZE]
            message.body = message.body._replace(data=body, headers=error.to_headers())

    def _flight(self, command: Command) -> None:
        self._lines += [message_shown(message) for message in self.world.network] or ["nothing"]

    # ---- time ------------------------------------------------------------------------------------------------------

    def _wait(self, command: Command) -> None:
        world = self.world
        began = world.now
        end = began + float(command.words[0])
        last_stamp = ""
        while True:
            self._settle()
            due = world.next_timer() + TIMER_LATENESS
            if due > end + 0.0001:
                break
            world.pass_to(due)
            stamp = f"after {world.now - began:.3f}".rstrip("0").rstrip(".") + " s"
            before = len(self._lines)
            for name in world.brokers:
                world.tick(name)
            if len(self._lines) > before and stamp != last_stamp:
                self._lines.insert(before, stamp)
                last_stamp = stamp
            if len(self._lines) > MOST_DELIVERIES:
                raise ScriptError("too long a history")
        world.pass_to(end)

    def _sleep(self, command: Command) -> None:
        self.world.pass_to(self.world.now + float(command.words[0]))

    def _tick(self, command: Command) -> None:
        for name in command.words:
            self.world.tick(name)

    # ---- publishing and consuming ----------------------------------------------------------------------------------

    def _publish(self, command: Command) -> None:
        command.check_options(
            "acks",
            "durability",
            "as",
            "timeout",
            "lease",
            "producer",
            "proof",
            "expects",
            "ids",
            "transaction",
            "ticket",
            "version",
            "on",
            *_EXPECTATIONS.values(),
        )
        name, values, *how = command.words
        self._check_leads(name)
        options, world = command.options, self.world
        token = options.get("as", values)
        broker = world.brokers[name]
        broker.has_lease = options.get("lease") != "no"
        before = len(self._lines)
        if "bare" in how:
            ids = _ids(options.get("ids"), values)
            headers = {f"Nats-Expected-{title}": options.get(key) for title, key in _EXPECTATIONS.items()}
            world.publish_bare(
                name, values, token, ids, {name: text for name, text in headers.items() if text}, options.get("on", "")
            )
        else:
            producer = _three_numbers(options["producer"]) if "producer" in options else None
            ticket, proof = None, options.get("proof")
            if "transaction" in options:
                identity, epoch, sequence = _three_numbers(options["transaction"])
                producer = FIRST_TRANSACTIONAL_ID + identity, epoch, sequence
                ticket = self._ticket(broker, *producer[:2], options.get("ticket", ""))
            world.publish(
                name,
                values,
                acks=options.get("acks", "none"),
                token=token,
                timeout=float(options["timeout"]) if "timeout" in options else None,
                durability=options.get("durability", ""),
                producer=producer,
                ticket=ticket,
                expects=int(options["expects"]) if "expects" in options else None,
                ids=_ids(options.get("ids"), values) if "ids" in options else None,
                version=int(options.get("version", "0")),
                prover=None if producer is None or proof == "none" else int(proof or producer[0]),
            )
        if len(self._lines) == before and not broker.has_lease:
            self._lines.append(f"  {name}: silent to {token}")
        broker.has_lease = True

    def _ticket(self, broker: Broker, producer_id: int, epoch: int, kind: str) -> bytes:
        key = self.world.key
        given, life = broker.life.process.time_ns() / 1_000_000_000, key.partition_incarnation
        match kind:
            case "none":
                return b""
            case "expired":
                given -= LIFETIME_S
            case "other-epoch":
                epoch += 1
            case "other-life":
                life = Incarnation(life + 1)
            case _:
                pass
        target = partition_target(key.stream, key.stream_incarnation, key.partition, life)
        return tickets(lambda: given).make(producer_id, epoch, target)

    def _mark(self, command: Command) -> None:
        command.check_options("as", "life")
        name, producer, how = command.words
        self._check_leads(name)
        identity, epoch = map(int, producer.split("/"))
        key = self.world.key
        request = EndTransactionRequest(
            producer_id=FIRST_TRANSACTIONAL_ID + identity,
            producer_epoch=epoch,
            commits=how == "commit",
            stream_incarnation=key.stream_incarnation,
            partition_incarnation=key.partition_incarnation - ("life" in command.options),
        )
        before = len(self._lines)
        self.world.mark(name, request, command.options.get("as", f"{how}-{producer}"))
        if len(self._lines) == before:
            self._lines.append(f"  {name}: silent")

    def _allotted(self, command: Command) -> None:
        command.check_options()
        (number,) = command.words
        self.world.next_producer_id = int(number)

    def _counted_on(self, command: Command) -> None:
        broker = self.world.brokers[command.words[0]]
        broker.counted_on_at = broker.life.process.time()

    def _clock(self, command: Command) -> None:
        broker = self.world.brokers[command.words[0]]
        broker.clock_ahead_ns = broker.life.process.wall_skew_ns = int(command.words[1]) * 1_000_000_000

    def _consume(self, command: Command) -> None:
        command.check_options("offset", "wait", "last", "as")
        name, *how = command.words
        options = command.options
        request = FetchRequest(
            offset=int(options["offset"]),
            max_bytes=1 << 20,
            max_wait_ms=round(float(options.get("wait", "0")) * 1000),
            last_record_epoch=int(options.get("last", "0")),
            read_uncommitted="uncommitted" in how,
        )
        self.world.fetch(name, request, options.get("as", "consumer"), tells_records="records" in how)

    def _latest(self, command: Command) -> None:
        self._check_leads(command.words[0])
        request = FetchRequest(latest=True, read_uncommitted="uncommitted" in command.words)
        self.world.fetch(command.words[0], request, "latest")

    def _starts(self, command: Command) -> None:
        (name,) = command.words
        broker = self.world.brokers[name]
        role = broker.role
        if role is None:
            raise ScriptError(f"{name} has no role")
        found: list[int] = []
        broker.runs(lambda: found.append(role.settled_start()))
        settled = f", and {found[0]} is settled" if broker.leading is not None else ""
        self._lines.append(f"{name} serves from {role.first_record}{settled}")

    def _parked(self, command: Command) -> None:
        command.check_options("e", "seq", "life")
        name, options, world = command.words[0], command.options, self.world
        place = world.parked(name, **{option: int(text) for option, text in options.items()})
        if place is None:
            self._lines.append(f"  {name}: none of its fetches waits")
            return
        leader, sequence, epoch, is_held = place
        self._lines.append(f"{name}>{leader} parked #{sequence} e{epoch}: {'held' if is_held else 'not held'}")
        world.on_parked_answer(name, sequence, is_held)

    def _replicate(self, command: Command) -> None:
        command.check_options("from", "e", "seq", "offset")
        name, options, world = command.words[0], command.options, self.world
        self._check_leads(name)
        replica = options["from"]
        request = ReplicationRequest(
            replicaID=replica,
            broker_incarnation=world.cluster.incarnation(replica) if replica in world.brokers else 1,
            leaderEpoch=int(options["e"]),
            sequence=int(options["seq"]),
            offset=int(options["offset"]),
        )
        before = len(self._lines)
        world.replicate(name, request)
        if len(self._lines) == before:
            self._lines.append(f"  {name}: silent")

    # ---- metadata and brokers --------------------------------------------------------------------------------------

    def _decided(self, code: object) -> None:
        self._lines.append(f"meta {view_shown(self.world.view())}" + (f" ({code})" if code else ""))
        self.world.spread()

    def _alter(self, command: Command) -> None:
        outcome = self.world.cluster.alter_stream(config=command.options)
        self._decided(outcome.code.name if outcome.code else "")

    def _readonly(self, command: Command) -> None:
        self.world.cluster.set_readonly(readonly=command.words[0] == "on")
        self._decided(None)

    def _pause(self, command: Command) -> None:
        self.world.cluster.set_paused(paused=command.name == "pause")
        self._decided(None)

    def _prepare(self, command: Command) -> None:
        cluster, count = self.world.cluster, int(command.words[0])
        replicas = " ".join(self.world.view().replicas)
        known = cluster.state.streams[self.world.key.stream].partitions
        cluster.prepare(count, [replicas for number in range(count) if number not in known]).raise_for_refusal()
        self._decided(None)

    def _cutover(self, command: Command) -> None:
        self.world.cluster.cut_over().raise_for_refusal()
        self._decided(None)

    def _finish(self, command: Command) -> None:
        self.world.cluster.finish().raise_for_refusal()
        self._decided(None)

    def _cutover_told(self, command: Command) -> None:
        number, end = map(int, command.words)
        outcome = self.world.cluster.report_cutover(self.world.cluster.cutover_at(number, end))
        self._decided(outcome.items[0].name if outcome.items[0] else None)

    def _purge(self, command: Command) -> None:
        command.check_options("e")
        epoch = int(command.options["e"]) if "e" in command.options else None
        outcome = self.world.cluster.delete_records({0: int(command.words[0])}, leader_epoch=epoch)
        self._decided(outcome.code.name if outcome.code else "")

    def _unclean(self, command: Command) -> None:
        outcome = self.world.cluster.unclean(command.words[0])
        self._decided(outcome.code.name if outcome.code else "")

    def _die(self, command: Command) -> None:
        self.world.cluster.die(*command.words)
        self._decided(None)

    def _elect(self, command: Command) -> None:
        outcome = self.world.cluster.elect(
            self.world.key.partition, target=command.options.get("to", ""), planned="planned" in command.words
        )
        self._decided(outcome.items[0].name if outcome.items[0] else None)

    def _drain(self, command: Command) -> None:
        command.check_options("to", "timeout")
        name, options = command.words[0], command.options
        self._check_leads(name)
        self.world.drain(name, options["to"], float(options.get("timeout", "5")))

    def _isr(self, command: Command) -> None:
        outcome = self.world.cluster.alter(self.world.cluster.alteration(command.words[0].replace(",", " ")))
        self._decided(outcome.items[0].name if outcome.items[0] else None)

    def _restart(self, command: Command) -> None:
        name = command.words[0]
        before = self.world.view().epoch
        self.world.register(name)
        changed = PartitionEpoch(before) != self.world.view().epoch
        self._lines.append(
            f"meta {name} is in its life {self.world.cluster.incarnation(name)}"
            + (f", {view_shown(self.world.view())}" if changed else ", nothing changed")
        )

    def _retain(self, command: Command) -> None:
        command.check_options("pieces")
        name, offset = command.words
        self.world.retain(name, int(offset))
        if "pieces" in command.options:
            self.world.limit_pieces(int(command.options["pieces"]))

    def _compact(self, command: Command) -> None:
        command.check_options()
        name, end, *rest = command.words
        self.world.compact(name, int(end), tombstones="tombstones" in rest)

    def _state(self, command: Command) -> None:
        self._lines += [broker_shown(broker) for broker in self.world.brokers.values()]
        self._lines.append(f"meta {view_shown(self.world.view())}")
