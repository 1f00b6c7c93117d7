"""The commands of `tests/testdata/replication`: a leader and its followers, told step by step.

    stream a b c [min_isr=2] [durability=accepted] [push=false] [KEY=SECONDS]   replicas, the leader first
           [max_producers=2] [producer_expiration=SECONDS]
    log a 1:ab 3:c [start=10] [hw=2]       before `begin`: what lies on a's disk
    epoch 5                                before `begin`: LeaderEpoch of the first view
    begin                                  the view goes to everybody
    publish a xyz [acks=all|leader|none] [durability=LEVEL] [as=TOKEN] [timeout=S] [lease=no]
              [producer=ID/EPOCH/SEQUENCE] [bare]      bare: it names no LeaderEpoch
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
    die b … | elect [to=c] [planned] | withdraw b | unclean b      decisions of the controller
    drain a to=b [timeout=S]               a planned move: a sequences nothing more until b has everything
    alter KEY=VALUE …                      settings of the living stream
    isr a,b                                the ISR is changed behind the leader's back
    kill b [power] | restart b [proof=no]  restart: a new life, registered
    disconnect b | reconnect b             its NATS connection
    full b | room b                        its disk has no room for records | has some again
    hangs b | answers b                    it knows that its disk hangs (see `hold`) | answers again
    checkpoint b                           its HW is written down
    retain a OFFSET [pieces=BYTES]         a's records below it go; so large are the pieces of derived state from now on
    compact a END [tombstones]             a pass up to there: of each letter the last record stays, a capital is the
                                           tombstone of its letter; with `tombstones`, those of the pass before go
    consume a offset=N [wait=S] [last=EPOCH] [as=TOKEN] | latest a
    replicate a from=b e=1 seq=5 offset=0 [durable=0] [life=N] [progress]      a request made by hand
    state                                  all replicas, and the view of the metadata

Each line printed is a message that arrives, or (indented) what a replica then does. Disks are slow only when held: `b`
alone as a link is its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from dataplane.replica.consumers import ConsumerFetch
from dataplane.replica.producers import DEFAULT_LIMITS, Duplicate, Rejected
from dataplane.replica.refusals import told_without_epoch
from dataplane.replica.requests import FollowerFetch
from dataplane.replica.settings import ReplicaSettings
from tests.datadriven import Command, ScriptError
from tests.protocol.memory_log import Batch
from tests.protocol.notation import broker_shown, effect_shown, error_shown, message_shown, view_shown
from tests.protocol.partition import META, Answer, Message, PartitionWorld, Told
from wire.errors import Code, TidelogError
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionEpoch

MOST_DELIVERIES = 500
"""In one command; a transcript that needs more goes round in circles."""


class ReplicationScript:
    def __init__(self) -> None:
        self._world: PartitionWorld | None = None
        self._lines: list[str] = []
        self._held: set[str] = set()
        self._commands: dict[str, Callable[[Command], None]] = {
            "stream": self._stream,
            "log": self._log,
            "epoch": self._epoch,
            "begin": self._begin,
            "announce": self._announce,
            "publish": self._publish,
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
            "withdraw": self._withdraw,
            "drain": self._drain,
            "unclean": self._unclean,
            "alter": self._alter,
            "isr": self._isr,
            "kill": self._kill,
            "restart": self._restart,
            "disconnect": self._disconnect,
            "reconnect": self._reconnect,
            "full": self._full,
            "hangs": self._hangs,
            "answers": self._answers,
            "room": self._room,
            "checkpoint": self._checkpoint,
            "retain": self._retain,
            "compact": self._compact,
            "consume": self._consume,
            "latest": self._latest,
            "replicate": self._replicate,
            "state": self._state,
        }

    def __call__(self, command: Command) -> Sequence[str]:
        self._lines = []
        carry_out = self._commands.get(command.name)
        if carry_out is None:
            raise ScriptError(f"unknown command; known: {', '.join(self._commands)}")
        carry_out(command)
        for broker in self.world.brokers.values():
            broker.producers.validate()
            if broker.role is not None:
                broker.role.validate()
        return self._lines

    @property
    def world(self) -> PartitionWorld:
        if self._world is None:
            raise ScriptError("the first command is `stream`")
        return self._world

    def _say(self, broker: str, told: Told) -> None:
        self._lines.append(f"  {broker}: {effect_shown(told)}")

    # ---- setting the stage -----------------------------------------------------------------------------------------

    def _stream(self, command: Command) -> None:
        times = {field.name for field in fields(ReplicaSettings)}
        config = {key: value for key, value in command.options.items() if key in ("min_isr", "durability")}
        producers = DEFAULT_LIMITS
        settings: dict[str, float | bool] = {"empty_answer_delay": 0.0}  # each answer in its place, but where asked
        for key, value in command.options.items():
            if key in times:
                settings[key] = float(value)
            elif key == "push":
                settings["push_to_waiters"] = value != "false"
            elif key == "max_producers":
                producers = replace(producers, max_producers=int(value))
            elif key == "producer_expiration":
                producers = replace(producers, expiration_ms=round(float(value) * 1000))
            elif key not in config:
                raise ScriptError(f"unknown setting {key}")
        replicas = " ".join(command.words)
        self._world = PartitionWorld(
            " ".join(sorted(command.words)),
            replicas=replicas,
            config=config,
            settings=ReplicaSettings(**settings),  # type: ignore[arg-type]
            producers=producers,
            told=self._say,
        )

    def _log(self, command: Command) -> None:
        command.check_options("start", "hw")
        broker = self.world.brokers[command.words[0]]
        runs = [(int(epoch), values) for epoch, values in (word.split(":") for word in command.words[1:])]
        start = command.options.get("start", "0")
        broker.log.preset(runs, int(start))
        broker.high_watermark = Offset(int(command.options.get("hw", start)))

    def _announce(self, command: Command) -> None:
        name = command.words[0]
        leader = self.world.brokers[name].leading
        if leader is None:
            raise ScriptError(f"{name} does not lead")
        self.world.lead_effects(name, leader.announce())

    def _epoch(self, command: Command) -> None:
        self.world.set_leader_epoch(int(command.words[0]))

    def _begin(self, command: Command) -> None:
        self.world.spread()
        while self._next(lambda message: message.source == META and self._link(message) not in self._held):
            pass

    # ---- messages --------------------------------------------------------------------------------------------------

    @staticmethod
    def _link(message: Message) -> str:
        return message.target if message.source == message.target else message.link

    def _arrive(self, message: Message) -> None:
        self.world.network.remove(message)
        self._lines.append(message_shown(message))
        self.world.receive(message)

    def _next(self, which: Callable[[Message], bool]) -> bool:
        for message in self.world.network:
            if which(message):
                self._arrive(message)
                return True
        return False

    def _on(self, command: Command) -> list[Message]:
        found = [message for message in self.world.network if self._link(message) in command.words]
        if not found:
            raise ScriptError(f"nothing is on its way on {' '.join(command.words)}")
        return found

    def _settle(self) -> None:
        for _ in range(MOST_DELIVERIES):
            if not self._next(lambda message: self._link(message) not in self._held):
                return
        raise ScriptError(f"not quiet after {MOST_DELIVERIES} messages")

    def _deliver(self, command: Command) -> None:
        if not command.words:
            self._settle()
            return
        for message in self._on(command):
            self._arrive(message)

    def _step(self, command: Command) -> None:
        for message in [*self.world.network]:
            if self._link(message) not in self._held and message in self.world.network:
                self._arrive(message)

    def _hold(self, command: Command) -> None:
        self._held.update(command.words)

    def _release(self, command: Command) -> None:
        self._held.difference_update(command.words)

    def _drop(self, command: Command) -> None:
        for message in self._on(command):
            self.world.network.remove(message)
            self._lines.append(f"lost: {message_shown(message)}")

    def _duplicate(self, command: Command) -> None:
        for message in self._on(command):
            self.world.network.append(message)
            self._lines.append(f"twice: {message_shown(message)}")

    def _last_first(self, command: Command) -> None:
        found = self._on(command)
        for message in found:
            self.world.network.remove(message)
        self.world.network.extend(reversed(found))

    def _damage(self, command: Command) -> None:
        for message in self._on(command):
            assert isinstance(message.body, Answer)
            at = self.world.network.index(message)
            self.world.network[at] = replace(message, body=replace(message.body, damaged=True))

    def _too_large(self, command: Command) -> None:
        for message in self._on(command):
            assert isinstance(message.body, Answer)
            at = self.world.network.index(message)
            error = TidelogError(Code.MESSAGE_TOO_LARGE, "raise max_payload")
            answer = replace(message.body.answer, first_offset=None, error=error)
            self.world.network[at] = replace(message, body=Answer(answer))

    def _flight(self, command: Command) -> None:
        self._lines += [message_shown(message) for message in self.world.network] or ["nothing"]

    # ---- time ------------------------------------------------------------------------------------------------------

    def _wait(self, command: Command) -> None:
        world = self.world
        began = world.now
        end = began + float(command.words[0])
        while True:
            self._settle()
            due = world.next_deadline()
            if due > end:
                break
            world.now = max(due, world.now)
            before = len(self._lines)
            self._lines.append(f"after {world.now - began:.3f}".rstrip("0").rstrip(".") + " s")
            for name in world.brokers:
                world.tick(name)
            if len(self._lines) == before + 1:
                self._lines.pop()
            if len(self._lines) > MOST_DELIVERIES:
                raise ScriptError("too long a story")
            if world.next_deadline() <= world.now:
                world.now += 1e-6
        world.now = end

    def _sleep(self, command: Command) -> None:
        self.world.now += float(command.words[0])

    def _tick(self, command: Command) -> None:
        for name in command.words:
            self.world.tick(name)

    # ---- publishing and consuming ----------------------------------------------------------------------------------

    def _publish(self, command: Command) -> None:
        command.check_options("acks", "durability", "as", "timeout", "lease", "producer")
        name, values, *how = command.words
        options = command.options
        acks, token = options.get("acks", "none"), options.get("as", values)
        timeout = float(options["timeout"]) if "timeout" in options else None
        world = self.world
        broker = world.brokers[name]
        leader = broker.leading
        if leader is None:
            raise ScriptError(f"{name} does not lead")
        refused: TidelogError | None = None
        if "producer" not in options:
            refused = world.publish(
                name,
                values,
                acks=acks,
                token=token,
                timeout=timeout,
                lease_valid=options.get("lease") != "no",
                durability=options.get("durability", ""),
            )
        else:
            identity, epoch, sequence = map(int, options["producer"].split("/"))
            level = world.level(broker, acks, options.get("durability", ""))
            verdict = broker.producers.check(identity, epoch, sequence, len(values))
            match verdict:
                case Rejected(error):
                    refused = error
                case Duplicate(base, end):
                    self._lines.append(f"  {name}: duplicate of [{base},{end})")
                    world.wait_for(broker, end, level, token, timeout)
                case _:
                    batch = Batch(broker.log.end, leader.leader_epoch, values, identity, epoch, sequence)
                    world.append(broker, batch, level, token, timeout)
        if refused is not None and "bare" in how:
            told = told_without_epoch(refused, broker.name, leader.view, lease_valid=options.get("lease") != "no")
            self._lines.append(
                f"  {name}: tell {token} {error_shown(told)}" if told is not None else f"  {name}: silent to {token}"
            )
        elif refused is not None:
            self._lines.append(f"  {name}: refuse {token} {error_shown(refused)}")

    def _consume(self, command: Command) -> None:
        command.check_options("offset", "wait", "last", "as", "e")
        name = command.words[0]
        leader = self.world.brokers[name].leading
        if leader is None:
            raise ScriptError(f"{name} does not lead")
        fetch = ConsumerFetch(
            offset=Offset(int(command.options["offset"])),
            leader_epoch=LeaderEpoch(int(command.options.get("e", "0"))),
            max_bytes=1 << 20,
            max_wait=float(command.options.get("wait", "0")),
            last_record_epoch=LeaderEpoch(int(command.options.get("last", "0"))),
            token=command.options.get("as", "consumer"),
        )
        self.world.lead_effects(name, leader.on_consumer_fetch(fetch, self.world.now))

    def _latest(self, command: Command) -> None:
        leader = self.world.brokers[command.words[0]].leading
        if leader is None:
            raise ScriptError(f"{command.words[0]} does not lead")
        found = leader.latest()
        self._lines.append(
            f"  {command.words[0]}: latest {error_shown(found) if isinstance(found, TidelogError) else found}"
        )

    def _replicate(self, command: Command) -> None:
        command.check_options("from", "e", "seq", "offset", "durable", "life")
        name, options = command.words[0], command.options
        world = self.world
        leader = world.brokers[name].leading
        if leader is None:
            raise ScriptError(f"{name} does not lead")
        replica = options["from"]
        known = world.brokers.get(replica)
        fetch = FollowerFetch(
            replica=BrokerId(replica),
            incarnation=Incarnation(int(options.get("life", known.incarnation if known else 1))),
            leader_epoch=LeaderEpoch(int(options["e"])),
            sequence=int(options["seq"]),
            offset=Offset(int(options["offset"])),
            durable_end=Offset(int(options["durable"])) if "durable" in options else None,
            progress_only="progress" in command.words,
            inbox=f"{replica}#{options['seq']}#-1" if known else "",
        )
        before = len(self._lines)
        world.lead_effects(name, leader.on_fetch(fetch, world.now))
        world.network = [message for message in world.network if message.role != -1]
        if len(self._lines) == before:
            self._lines.append(f"  {name}: silent")

    # ---- metadata and brokers --------------------------------------------------------------------------------------

    def _decided(self, code: object) -> None:
        self._lines.append(f"meta {view_shown(self.world.view())}" + (f" ({code})" if code else ""))
        self.world.spread()

    def _alter(self, command: Command) -> None:
        outcome = self.world.cluster.alter_stream(config=command.options)
        self._decided(outcome.code.name if outcome.code else "")

    def _die(self, command: Command) -> None:
        self.world.cluster.die(*command.words)
        self._decided(None)

    def _elect(self, command: Command) -> None:
        outcome = self.world.cluster.elect(target=command.options.get("to", ""), planned="planned" in command.words)
        self._decided(outcome.items[0].name if outcome.items[0] else None)

    def _drain(self, command: Command) -> None:
        command.check_options("to", "timeout")
        name, target = command.words[0], BrokerId(command.options["to"])
        leader = self.world.brokers[name].leading
        if leader is None:
            raise ScriptError(f"{name} does not lead")
        timeout = float(command.options.get("timeout", "5"))
        self.world.lead_effects(name, leader.drain(target, f"move to {target}", timeout, self.world.now))

    def _withdraw(self, command: Command) -> None:
        outcome = self.world.cluster.withdraw(command.words[0])
        self._decided(outcome.items[0].name if outcome.items[0] else None)

    def _unclean(self, command: Command) -> None:
        outcome = self.world.cluster.unclean(command.words[0])
        self._decided(outcome.code.name if outcome.code else None)

    def _isr(self, command: Command) -> None:
        outcome = self.world.cluster.alter(self.world.cluster.alteration(command.words[0].replace(",", " ")))
        self._decided(outcome.items[0].name if outcome.items[0] else None)

    def _kill(self, command: Command) -> None:
        self.world.kill(command.words[0], power="power" in command.words)

    def _restart(self, command: Command) -> None:
        command.check_options("proof")
        name = command.words[0]
        before = self.world.view().epoch
        self.world.register(name, folder_same=command.options.get("proof") != "no")
        changed = PartitionEpoch(before) != self.world.view().epoch
        self._lines.append(
            f"meta {name} is in its life {self.world.brokers[name].incarnation}"
            + (f", {view_shown(self.world.view())}" if changed else ", nothing changed")
        )

    def _disconnect(self, command: Command) -> None:
        self.world.connect(command.words[0], connected=False)

    def _reconnect(self, command: Command) -> None:
        self.world.connect(command.words[0], connected=True)

    def _full(self, command: Command) -> None:
        self.world.set_full(command.words[0], True)

    def _room(self, command: Command) -> None:
        self.world.set_full(command.words[0], False)

    def _hangs(self, command: Command) -> None:
        self.world.set_hanging(command.words[0], True)

    def _answers(self, command: Command) -> None:
        self.world.set_hanging(command.words[0], False)

    def _checkpoint(self, command: Command) -> None:
        broker = self.world.brokers[command.words[0]]
        if broker.role is not None:
            broker.checkpoint = broker.role.high_watermark

    def _retain(self, command: Command) -> None:
        command.check_options("pieces")
        name, offset = command.words
        self.world.retain(name, int(offset))
        self.world.piece_bytes = int(command.options.get("pieces", self.world.piece_bytes))

    def _compact(self, command: Command) -> None:
        command.check_options()
        name, end, *rest = command.words
        self.world.brokers[name].log.compact(Offset(int(end)), tombstones="tombstones" in rest)

    def _state(self, command: Command) -> None:
        self._lines += [broker_shown(broker) for broker in self.world.brokers.values()]
        self._lines.append(f"meta {view_shown(self.world.view())}")
