"""The commands of `tests/testdata/metadata`: the cluster state, and the controller that decides about it.

    cluster a b c [controller=a] [connected=S]     brokers that have registered; a was the first controller, and has
                                           been connected since S (now is 100)
    create s "b a c" "c b a" [min_isr=2] [durability=accepted]     a partition for each placement, its leader first
    delete s
    settings s KEY=VALUE … [unset=KEY,…]   settings of a living stream
    defaults KEY=VALUE … [unset=KEY,…]     settings of streams that are made from then on
    readonly s [N …] [off]   partitions of a stream (all) take no records
    pause s [N …] [resume-all] | resume s [N …]     partitions of a stream (all)
    leader-resumes N [p=N] [e=N] | leader-pauses N ...      the leader of partition N asks for it
    purge s N=OFFSET … [e=N] [epoch=N]     records of partition N below the offset go, as a leader of epoch e told
    repartition s N ["a b c" …] [version=N] [epoch=N]     prepared, with a placement for each partition that is missing
    cancel s | cutover s | finish s [version=N] [epoch=N]     the other commands of a repartition
    leader-tells N=OFFSET … [e=N] [version=N]     the leaders of partitions N report where the layout before ends
    leader-is-empty N … [p=N] [e=N]        the leaders of retired partitions N report that no record is left in them
    reassign N=a,b,c … [p=N] [epoch=N]     partition N is to have these replicas
    start N … | complete N … | give-up N … [p=N]     the other commands of a reassignment
    moves                                  replicas of every partition, and what they are to be
    routes s                               layouts, and the repartition that is under way
    register b [life=same] [folder=other|old|N] [cache=lost] [unsound=N,…]     `folder=N`: it last registered as life N
                [logs=N:E@END,…]           the last record of its log of partition N is of LeaderEpoch E, and the
                                           log ends at END
    recover                                the cluster begins anew, with this state: `tidelog cluster recover`
    register b … knows=after|before [missing=N,…]     b knows that, or does not yet, and has no log of partition N
    register b … asks=no|replace [silent]  as this version does, which is refused an empty folder (folder=0) in place of
                                           another, and the id of a life that lives and has not been `silent`
    die b c [life=N] [epoch=N] [stopping=b,d]     `stopping`: brokers that are about to stop, or were
    remove b [life=N] [epoch=N]            it is taken out of the cluster
    drain b [off] [epoch=N]                it is to hold no replicas any more, or may hold some again
    alter N ISR [leader=x] [e=N] [p=N] [lives=b:N,…] [caught-up=b,…]       a leader's ISR change; ISR is `a,b` …
    elect N [to=x] [planned] [e=N] [epoch=N]
    withdraw b N [p=N] [by=a] | unclean b N     `by`: a follower that holds committed records which b lacks
    epoch b [expected=N]                   another controller begins an epoch
    partitions                             every partition

    founder a [candidate=m]                instead of `cluster`: a's group has no cluster yet
    claim b cluster=X | candidate=X [decided]      b's claim: its cluster, or the one that it founds
    flood                                  strangers send more on the subject of claims than a founder relies on

With the controller's core, whose probes are answered as told:

    raft leads|follows [minority]          the status of its Raft node
    peers b c                              voters with a live Raft connection
    probes b answers|vouches|refuses|silent|behind|untold|both|busy|opening|stuck
                                           how b's probe subject behaves from now on;
                                           `vouches`: it answers, over an old connection with the controller's NATS
                                           server; `untold`: it has applied all, and its roles have not been told that
                                           they lead; `both`: somebody refuses each probe, and b answers it;
                                           `busy`: it answers, and takes up roles; `opening`: thousands of them;
                                           `stuck`: it has roles to take up, and does not go on
    connection lost|made                   the controller's NATS connection
    public-connection lost|made            that over which clients ask it
    peer-lost b                            b's Raft connection closes
    report b N [e=N] [p=N] [refused] [unopened]    b reports the leader of partition N; `refused`: with a 503 as its
                                           only ground; `unopened`: it has never answered b in this LeaderEpoch
    hold | release                         proposals are kept back; committed in order
    lose                                   proposals that are kept back are never committed; their outcome is unknown
    sleep S                                time passes, and the controller's process stands still
    successors none                        no voter can take over
    wait S                                 time passes
    probing S                              as `wait`, and says how many probes went to each broker
    adoption b s=N …|nothing               b tells which generation its clients know, in an answer to a probe
    disk b hangs|answers                   b tells of its disk in an answer to a probe
    stopping b c [leaves]                  b and c tell that they are about to stop, in answers to probes; `leaves`:
                                           that they have handed their leaderships over
    drained                                the leaders that were asked to hand over have drained
    asking S                               as `wait`, and says how often the founder asked
    questions lost|held|delivered          whether NATS delivers the founder's questions; held ones come when they are
                                           delivered again

`p4` is a partition epoch, `e2` a LeaderEpoch, `b/7` life 7 of broker b.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from metadata.cluster.cluster_recovery import advanced
from metadata.cluster.model import Outcome, Partition
from metadata.commands.cluster_state import ClusterState
from metadata.controller.bootstrap import Claim
from metadata.controller.controller import ControllerCore
from metadata.controller.controller_effects import (
    AskForClusters,
    BecomeController,
    Effect,
    HandOver,
    MoveLeader,
    Note,
    Propose,
    RefuseToFound,
    ResignController,
    SendProbe,
)
from metadata.controller.metadata_settings import MetadataSettings
from tests.datadriven import Command, ScriptError
from tests.unit.metadata.cluster_bench import Cluster
from wire.layouts import NOT_REPORTED
from wire.protobuf import metadata_pb2 as pb
from wire.types import (
    BrokerId,
    Generation,
    LeaderEpoch,
    LeaderMove,
    LeaderReport,
    LogEnd,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionState,
    PauseChange,
    RoleProgress,
    Room,
    StreamName,
)

_PROBED = ("answers", "vouches", "refuses", "silent", "behind", "untold", "both", "busy", "opening", "stuck")


class MetadataScript:
    """One method for each command."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._now = 100.0
        self._behaviour: dict[str, str] = {}
        self._probed: Counter[str] = Counter()
        self._held: list[Propose] | None = None
        self._successors = True
        self._asked = 0
        self._asked_as_decided = False
        self._delivery = "delivered"
        self._questions_out = 0
        self._moves: list[LeaderMove] = []
        """Leaders that were asked to drain."""
        self._cluster: Cluster | None = None
        self._core: ControllerCore | None = None
        self._commands: dict[str, Callable[[Command], None]] = {
            "cluster": self._begin,
            "founder": self._begin,
            "claim": self._claim,
            "flood": self._flood,
            "create": self._create,
            "delete": self._delete,
            "settings": self._settings,
            "defaults": self._defaults,
            "readonly": self._readonly,
            "pause": self._pause,
            "resume": self._pause,
            "leader-resumes": self._leader_pauses,
            "leader-pauses": self._leader_pauses,
            "purge": self._purge,
            "repartition": self._repartition,
            "cancel": self._step_of_repartition,
            "cutover": self._step_of_repartition,
            "finish": self._step_of_repartition,
            "leader-tells": self._leader_tells,
            "leader-is-empty": self._leader_is_empty,
            "reassign": self._reassign,
            "start": self._step_of_reassignment,
            "complete": self._step_of_reassignment,
            "give-up": self._step_of_reassignment,
            "moves": self._moves_shown,
            "routes": self._routes,
            "recover": self._recover,
            "register": self._register,
            "die": self._die,
            "remove": self._remove,
            "drain": self._drain,
            "alter": self._alter,
            "elect": self._elect,
            "withdraw": self._withdraw,
            "unclean": self._unclean,
            "epoch": self._epoch,
            "partitions": self._partitions,
            "raft": self._raft,
            "peers": self._peers,
            "probes": self._probes,
            "connection": self._connection,
            "public-connection": self._public_connection,
            "peer-lost": self._peer_lost,
            "report": self._report,
            "hold": self._hold,
            "release": self._release,
            "lose": self._lose,
            "sleep": self._sleep,
            "successors": self._no_successors,
            "wait": self._wait,
            "probing": self._probing,
            "asking": self._asking,
            "adoption": self._adoption,
            "disk": self._disk,
            "stopping": self._stopping,
            "drained": self._drained,
            "questions": self._questions,
        }

    def __call__(self, command: Command) -> Sequence[str]:
        self._lines = []
        carry_out = self._commands.get(command.name)
        if carry_out is None:
            raise ScriptError(f"unknown command; known: {', '.join(self._commands)}")
        carry_out(command)
        return self._lines

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise ScriptError("the first command is `cluster`")
        return self._cluster

    @property
    def core(self) -> ControllerCore:
        if self._core is None:
            raise ScriptError("the first command is `cluster`")
        return self._core

    # ---- the state -------------------------------------------------------------------------------------------------

    def _begin(self, command: Command) -> None:
        founds = command.name == "founder"
        self._cluster = Cluster() if founds else Cluster(*command.words)
        controller = command.options.get("controller", command.words[0])
        self._core = ControllerCore(
            BrokerId(controller),
            f"{controller}-life",
            self._cluster.state,
            MetadataSettings(bootstrap_wait_s=0.5),
            Random(1),
            namespace="tidelog",
            new_cluster_id=command.options.get("candidate", "new"),
        )
        self._behaviour = dict.fromkeys(command.words, "answers")
        self._perform(self._core.on_connection(True, float(command.options.get("connected", "0"))))

    def _flood(self, _: Command) -> None:
        assert self.core.bootstrap is not None
        self.core.bootstrap.on_flood()

    def _claim(self, command: Command) -> None:
        command.check_options("cluster", "candidate")
        claim = Claim(
            broker=command.words[0],
            cluster_id=command.options.get("cluster", ""),
            candidate=command.options.get("candidate", ""),
            decided="decided" in command.words,
        )
        self._perform(self.core.on_claim(claim, self._now))

    def _key(self, number: int) -> PartitionKey:
        return [key for key, _ in self.cluster.state.partitions()][number]

    def _partition(self, number: int) -> Partition:
        found = self.cluster.state.partition(self._key(number))
        assert found is not None
        return found

    def _shown(self, key: PartitionKey) -> str:
        partition = self.cluster.state.partition(key)
        if partition is None:
            return f"{key} gone"
        eligible = f" eligible {','.join(partition.eligible)}" if partition.eligible else ""
        withdrawn = "".join(f" withdrawn {entry.replica}" for entry in partition.withdrawn)
        withdrawn += f" loss e{partition.loss_epoch}" if partition.loss_epoch else ""
        back = " ".join(f"{entry.replica}:{entry.log.leader_epoch}@{entry.log.offset}" for entry in partition.returned)
        withdrawn += f" back {back}" if back else ""
        readonly = (" paused" if partition.paused else "") + (" readonly" if partition.readonly else "")
        purged = f" purged to {partition.purged_end}" if partition.purged_end else ""
        return (
            f"{key} p{partition.epoch} e{partition.leader_epoch} leader {partition.leader or '-'}"
            f" ISR {','.join(partition.isr)}{eligible}{withdrawn}{readonly}{purged}{self._routing_shown(key)}"
        )

    def _routing_shown(self, key: PartitionKey) -> str:
        stream, view = self.cluster.state.streams[key.stream], self.cluster.state.view(key)
        assert view is not None
        state = "" if view.state is PartitionState.ACTIVE else f" {view.state.value}"
        if stream.is_made_ready(key.partition):
            state = " made ready"
        waits = " awaits cutover" if view.awaits_cutover else " awaits sources" if view.awaits_sources else ""
        also = f" also on {','.join(view.further_subjects)}" if view.further_subjects else ""
        return f"{state}{waits}{also}"

    def _ended(self, outcome: Outcome) -> None:
        """The outcome of a command, and its changes."""
        codes = [code.name if code is not None else "done" for code in outcome.items]
        if outcome.code is not None:
            codes = [outcome.code.name]
        value = f" value {outcome.value}" if outcome.value else ""
        self._lines.append(f"{', '.join(codes) or 'done'}{value}")
        changes = outcome.changes
        self._lines += [f"  {self._shown(key)}" for key in (*changes.partitions, *changes.gone)]
        if outcome.changes and self._core is not None:
            self._perform(self._core.on_applied(outcome.changes, self._now))

    def _create(self, command: Command) -> None:
        words = [word for word in shlex.split(command.line)[1:] if "=" not in word]
        self._ended(self.cluster.create(words[0], words[1:], config=command.options))

    def _delete(self, command: Command) -> None:
        self._ended(self.cluster.delete(command.words[0]))

    def _settings(self, command: Command) -> None:
        config = dict(command.options)
        unset = [key for key in config.pop("unset", "").split(",") if key]
        name = command.words[0]
        outcome = self.cluster.alter_stream(name, config=config, unset=unset)
        self._ended(outcome)
        self._explained(outcome)
        stream = self.cluster.state.streams.get(StreamName(name))
        if stream is not None:
            self._lines.append(f"  {name}: min ISR {stream.min_isr}, {_settings_shown(stream.config)}")

    def _reassign(self, command: Command) -> None:
        options = dict(command.options)
        expected, epoch = options.pop("p", None), options.pop("epoch", None)
        keys = {self._key(int(number)): target.replace(",", " ") for number, target in options.items()}
        outcome = self.cluster.reassign(
            {key.partition: target for key, target in keys.items()},
            name=next(iter(keys)).stream,
            expected_epoch=None if expected is None else int(expected),
            epoch=None if epoch is None else int(epoch),
        )
        self._ended(outcome)

    def _step_of_reassignment(self, command: Command) -> None:
        command.check_options("p")
        cluster = self.cluster
        steps = {"start": cluster.start, "complete": cluster.complete, "give-up": cluster.cancel_reassignment}
        keys = [self._key(int(word)) for word in command.words]
        expected = command.options.get("p")
        self._ended(
            steps[command.name](
                *(key.partition for key in keys),
                name=keys[0].stream,
                expected_epoch=None if expected is None else int(expected),
            )
        )

    def _moves_shown(self, _: Command) -> None:
        for key, partition in self.cluster.state.partitions():
            moving = partition.reassignment
            text = f"{key} {','.join(partition.replicas)}"
            if moving is not None:
                phase = "going back" if moving.is_cancelled else "copying" if moving.is_started else "waiting"
                text += f", {phase}: {','.join(moving.original)} to {','.join(moving.target)}"
            self._lines.append(text)

    def _readonly(self, command: Command) -> None:
        command.check_options()
        name, *rest = command.words
        numbers = [int(word) for word in rest if word != "off"]
        outcome = self.cluster.set_readonly(name, *numbers, readonly="off" not in rest)
        self._ended(outcome)
        self._explained(outcome)

    def _pause(self, command: Command) -> None:
        command.check_options()
        name, *rest = command.words
        numbers = [int(word) for word in rest if word != "resume-all"]
        outcome = self.cluster.set_paused(
            name, *numbers, paused=command.name == "pause", resume_all="resume-all" in rest
        )
        self._ended(outcome)
        self._explained(outcome)

    def _leader_pauses(self, command: Command) -> None:
        command.check_options("p", "e")
        number = int(command.words[0])
        partition = self._partition(number)
        self._ended(
            self.cluster.alter_paused(
                PauseChange(
                    key=self._key(number),
                    leader=partition.leader or BrokerId(""),
                    leader_epoch=LeaderEpoch(int(command.options.get("e", partition.leader_epoch))),
                    expected_epoch=PartitionEpoch(int(command.options.get("p", partition.epoch))),
                    paused=command.name == "leader-pauses",
                )
            )
        )

    def _purge(self, command: Command) -> None:
        ends = {int(key): int(value) for key, value in command.options.items() if key.isdigit()}
        outcome = self.cluster.delete_records(
            ends, name=command.words[0], leader_epoch=self._number(command, "e"), epoch=self._number(command, "epoch")
        )
        self._ended(outcome)
        self._explained(outcome)

    def _defaults(self, command: Command) -> None:
        config = dict(command.options)
        unset = [key for key in config.pop("unset", "").split(",") if key]
        outcome = self.cluster.alter_cluster(config=config, unset=unset)
        self._ended(outcome)
        self._explained(outcome)
        self._lines.append(f"  defaults: {_settings_shown(self.cluster.state.defaults)}")

    def _explained(self, outcome: Outcome) -> None:
        if outcome.code is not None:
            self._lines.append(f"  {outcome.message}")

    def _repartition(self, command: Command) -> None:
        words = [word for word in shlex.split(command.line)[1:] if "=" not in word]
        name, count, *assignments = words
        outcome = self.cluster.prepare(
            int(count),
            assignments,
            name=name,
            version=self._number(command, "version"),
            epoch=self._number(command, "epoch"),
        )
        self._ended(outcome)
        self._explained(outcome)

    def _step_of_repartition(self, command: Command) -> None:
        command.check_options("version", "epoch")
        take = {"cancel": self.cluster.cancel, "cutover": self.cluster.cut_over, "finish": self.cluster.finish}
        outcome = take[command.name](
            command.words[0], version=self._number(command, "version"), epoch=self._number(command, "epoch")
        )
        self._ended(outcome)
        self._explained(outcome)

    def _leader_tells(self, command: Command) -> None:
        reports = [
            self.cluster.cutover_at(
                int(number),
                int(end),
                leader_epoch=self._number(command, "e"),
                version=self._number(command, "version"),
            )
            for number, end in command.options.items()
            if number.isdigit()
        ]
        self._ended(self.cluster.report_cutover(*reports))

    def _leader_is_empty(self, command: Command) -> None:
        self._ended(
            self.cluster.remove_retired(
                *(int(number) for number in command.words),
                leader_epoch=self._number(command, "e"),
                expected_epoch=self._number(command, "p"),
            )
        )

    def _routes(self, command: Command) -> None:
        stream = self.cluster.state.streams[StreamName(command.words[0])]
        for layout in stream.layouts:
            starts = ",".join(str(start) if start != NOT_REPORTED else "?" for start in layout.starts)
            self._lines.append(
                f"version {layout.version}: {layout.partitions} partitions, generation {layout.generation}"
                f"{f', starts {starts}' if starts else ''}"
            )
        marker = stream.repartition
        if marker is not None:
            adoption = f", adoption {marker.adoption_generation}" if marker.adoption_generation else ""
            self._lines.append(
                f"{marker.phase.value} to {marker.partitions} partitions, version {marker.version}{adoption}"
            )
        self._lines.append(f"routing generation {stream.routing_generation}")

    def _adoption(self, command: Command) -> None:
        generations = {stream: int(generation) for stream, generation in command.options.items()}
        self.core.repartitioning.on_adoption(BrokerId(command.words[0]), generations)

    def _recover(self, _: Command) -> None:
        state = ClusterState()
        state.restore(advanced(self.cluster.state.snapshot()))
        self.cluster.state = state

    def _register(self, command: Command) -> None:
        command.check_options("life", "folder", "cache", "unsound", "asks", "logs", "missing", "knows")
        options = command.options
        name, folder = command.words[0], options.get("folder", "same")
        self._behaviour.setdefault(name, "answers")
        known = self.cluster.state.brokers.get(BrokerId(name))
        outcome = self.cluster.register(
            name,
            folder_same=folder not in ("other", "0"),
            last_incarnation=int(folder) if folder.isdigit() else 1 if folder == "old" else None,
            page_cache_survived=options.get("cache") != "lost",
            same_life=options.get("life") == "same",
            unsound=[self._key(int(number)) for number in options.get("unsound", "").split(",") if number],
            missing=[self._key(int(number)) for number in options.get("missing", "").split(",") if number],
            recovered_at={None: None, "before": 0, "after": self.cluster.state.recovered_at}[options.get("knows")],
            replace=options["asks"] == "replace" if "asks" in options else None,
            silent_life=known.life_id if known is not None and "silent" in command.words else "",
            logs={
                self._key(int(number)): LogEnd(LeaderEpoch(int(epoch)), Offset(int(end)))
                for number, epoch, end in (
                    re.split("[:@]", entry) for entry in options.get("logs", "").split(",") if entry
                )
            },
        )
        self._ended(outcome)

    @staticmethod
    def _number(command: Command, key: str) -> int | None:
        return int(command.options[key]) if key in command.options else None

    def _die(self, command: Command) -> None:
        command.check_options("life", "epoch", "stopping")
        outcome = self.cluster.die(
            *command.words,
            epoch=self._number(command, "epoch"),
            incarnation=self._number(command, "life"),
            stopping=[broker for broker in command.options.get("stopping", "").split(",") if broker],
        )
        self._ended(outcome)

    def _remove(self, command: Command) -> None:
        command.check_options("life", "epoch")
        (broker,) = command.words
        outcome = self.cluster.remove(
            broker, epoch=self._number(command, "epoch"), incarnation=self._number(command, "life")
        )
        self._ended(outcome)
        self._explained(outcome)
        self._lines.append(f"  brokers {', '.join(sorted(self.cluster.state.brokers))}")

    def _drain(self, command: Command) -> None:
        command.check_options("epoch")
        broker, *rest = command.words
        self._ended(self.cluster.drain(broker, draining=not rest, epoch=self._number(command, "epoch")))

    def _alter(self, command: Command) -> None:
        command.check_options("leader", "e", "p", "lives", "caught-up")
        lives = dict(entry.split(":") for entry in command.options.get("lives", "").split(",") if entry)
        item = self.cluster.alteration(
            command.words[1].replace(",", " "),
            number=int(command.words[0]),
            leader=command.options.get("leader"),
            leader_epoch=self._number(command, "e"),
            expected_epoch=self._number(command, "p"),
            incarnations={broker: int(life) for broker, life in lives.items()},
        )
        item.caught_up.extend(command.options["caught-up"].split(",") if "caught-up" in command.options else ())
        self._ended(self.cluster.alter(item))

    def _elect(self, command: Command) -> None:
        command.check_options("to", "e", "epoch")
        outcome = self.cluster.elect(
            int(command.words[0]),
            target=command.options.get("to", ""),
            planned="planned" in command.words,
            leader_epoch=self._number(command, "e"),
            epoch=self._number(command, "epoch"),
        )
        self._ended(outcome)

    def _withdraw(self, command: Command) -> None:
        command.check_options("p", "by")
        outcome = self.cluster.withdraw(
            command.words[0],
            number=int(command.words[1]),
            expected_epoch=self._number(command, "p"),
            reported_by=command.options.get("by", ""),
        )
        self._ended(outcome)

    def _unclean(self, command: Command) -> None:
        self._ended(self.cluster.unclean(command.words[0], int(command.words[1])))

    def _epoch(self, command: Command) -> None:
        command.check_options("expected")
        self._ended(self.cluster.begin_controller_epoch(command.words[0], self._number(command, "expected")))

    def _partitions(self, command: Command) -> None:
        self._lines += [self._shown(key) for key, _ in self.cluster.state.partitions()] or ["none"]

    # ---- the controller --------------------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Propose():
                    self._lines.append(f"  propose {self._command_shown(effect.command)}")
                    if self._held is None:
                        self._commit(effect)
                    else:
                        self._held.append(effect)
                case SendProbe(broker, number, _, _):
                    self._probed[broker] += 1
                    self._probe(broker, number)
                case BecomeController(epoch):
                    self._lines.append(f"  begin epoch {epoch}")
                case ResignController():
                    self._lines.append("  resign")
                case HandOver():
                    self._lines.append("  hand over")
                    if not self._successors:
                        self._perform(self.core.on_hand_over_refused(self._now))
                case AskForClusters():
                    self._asked += 1
                    self._asked_as_decided = self.core.bootstrap is not None and self.core.bootstrap.is_proposed
                    self._questions_out += 1
                    self._deliver_questions()
                case RefuseToFound(error):
                    self._lines.append(f"  refuse: {error}")
                case MoveLeader(move):
                    self._lines.append(f"  move {move.key} from {move.leader} to {move.target}")
                    self._moves.append(move)
                case Note(text):
                    self._lines.append(f"  note: {text}")

    def _commit(self, proposal: Propose) -> None:
        outcome = self.cluster.apply(proposal.command)
        self._ended(outcome)
        self._perform(self.core.on_outcome(proposal.ticket, outcome, self._now))

    def _probe(self, broker: BrokerId, number: int) -> None:
        match self._behaviour[broker]:
            case "answers" | "vouches" as how:
                generation = Generation(self.cluster.state.generation)
                vouches = how == "vouches"
                self._perform(self.core.on_probe_answer(broker, number, generation, self._now, vouches=vouches))
            case "behind":
                self._perform(self.core.on_probe_answer(broker, number, Generation(1), self._now))
            case "untold":
                generation, begun = Generation(self.cluster.state.generation), Generation(1)
                self._perform(self.core.on_probe_answer(broker, number, generation, self._now, begun=begun))
            case "busy" | "opening" | "stuck" as how:
                generation = Generation(self.cluster.state.generation)
                roles = RoleProgress(pending=9_000 if how == "opening" else 9, done=0 if how == "stuck" else number)
                self._perform(self.core.on_probe_answer(broker, number, generation, self._now, roles=roles))
            case "refuses":
                self._perform(self.core.on_no_responders(broker, number, self._now))
            case "both":
                self._perform(self.core.on_no_responders(broker, number, self._now))
                generation = Generation(self.cluster.state.generation)
                self._perform(self.core.on_probe_answer(broker, number, generation, self._now))
            case _:
                pass

    def _command_shown(self, command: pb.Command) -> str:
        match command.WhichOneof("body"):
            case "begin_controller_epoch":
                begin = command.begin_controller_epoch
                founds = not self.cluster.state.cluster_id and begin.cluster_id
                founded = f" of cluster {begin.cluster_id}" if founds else ""
                return f"epoch {begin.expected_controller_epoch + 1} of {begin.controller}{founded}"
            case "brokers_dead":
                dead = " ".join(f"{life.broker}/{life.incarnation}" for life in command.brokers_dead.brokers)
                stopping = ",".join(command.brokers_dead.stopping)
                stop = f" while {stopping} stop" if stopping else ""
                return f"dead {dead}{stop} (epoch {command.brokers_dead.controller_epoch})"
            case "elect_leaders":
                items = command.elect_leaders.items
                moved = " ".join(
                    f"{item.partition.stream}/{item.partition.partition}@e{item.leader_epoch}" for item in items
                )
                return f"elect {moved} (epoch {command.elect_leaders.controller_epoch})"
            case "cutover":
                cutover = command.cutover
                return f"cutover of {cutover.name} to version {cutover.version} (epoch {cutover.controller_epoch})"
            case "finish_repartition":
                finish = command.finish_repartition
                return f"finish {finish.name} version {finish.version} (epoch {finish.controller_epoch})"
            case "start_reassignments" | "complete_reassignments" as kind:
                steps: pb.StartReassignments | pb.CompleteReassignments = getattr(command, kind)
                of = " ".join(f"{item.partition.stream}/{item.partition.partition}" for item in steps.items)
                return f"{kind.removesuffix('_reassignments')} {of} (epoch {steps.controller_epoch})"
            case kind:
                return str(kind)

    def _raft(self, command: Command) -> None:
        self._perform(self.core.on_raft("leads" in command.words, "minority" not in command.words, self._now))

    def _peers(self, command: Command) -> None:
        self.core.on_raft_peers([BrokerId(name) for name in command.words])

    def _probes(self, command: Command) -> None:
        *brokers, how = command.words
        if how not in _PROBED:
            raise ScriptError(f"a probe is not answered with {how}")
        self._behaviour.update(dict.fromkeys(brokers, how))

    def _connection(self, command: Command) -> None:
        self._perform(self.core.on_connection(command.words == ("made",), self._now))

    def _public_connection(self, command: Command) -> None:
        self._perform(self.core.on_public_connection(command.words == ("made",), self._now))

    def _peer_lost(self, command: Command) -> None:
        self._perform(self.core.on_peer_lost(BrokerId(command.words[0]), self._now))

    def _report(self, command: Command) -> None:
        command.check_options("e", "p")
        number = int(command.words[1])
        partition = self._partition(number)
        assert partition.leader is not None
        report = LeaderReport(
            key=self._key(number),
            replica=BrokerId(command.words[0]),
            leader=partition.leader,
            epoch=PartitionEpoch(int(command.options.get("p", partition.epoch))),
            leader_epoch=LeaderEpoch(int(command.options.get("e", partition.leader_epoch))),
            refused="refused" in command.words[2:],
            unopened="unopened" in command.words[2:],
        )
        self._perform(self.core.on_reports([report], self._now))

    def _hold(self, command: Command) -> None:
        self._held = []

    def _release(self, command: Command) -> None:
        held, self._held = self._held or [], None
        for proposal in held:
            self._lines.append(f"  commit {self._command_shown(proposal.command)}")
            self._commit(proposal)

    def _lose(self, command: Command) -> None:
        held, self._held = self._held or [], None
        for proposal in held:
            self._perform(self.core.on_outcome(proposal.ticket, None, self._now))

    def _sleep(self, command: Command) -> None:
        self._now += float(command.words[0])

    def _no_successors(self, command: Command) -> None:
        self._successors = command.words != ("none",)

    def _wait(self, command: Command) -> None:
        began = self._now
        end = began + float(command.words[0])
        while self.core.next_deadline() <= end:
            self._now = max(self._now + 0.001, self.core.next_deadline())
            before, self._lines = self._lines, []
            self._perform(self.core.tick(self._now))
            if self._lines:
                before.append(f"after {self._now - began:.3f}".rstrip("0").rstrip(".") + " s")
            self._lines = before + self._lines
        self._now = max(self._now, end)

    def _probing(self, command: Command) -> None:
        self._probed.clear()
        self._wait(command)
        probed = " ".join(f"{broker}:{count}" for broker, count in sorted(self._probed.items()))
        self._lines.append(f"probes {probed or 'none'}")

    def _asking(self, command: Command) -> None:
        self._asked, self._asked_as_decided = 0, False
        self._wait(command)
        decided = " as one that has decided" if self._asked_as_decided else ""
        self._lines.append(f"asks {self._asked} times{decided}")

    def _disk(self, command: Command) -> None:
        broker, how = command.words
        self._perform(
            self.core.on_condition(
                BrokerId(broker), room=Room.AMPLE, disk_hangs=how == "hangs", has_master_key=True, now=self._now
            )
        )

    def _stopping(self, command: Command) -> None:
        for broker in (word for word in command.words if word != "leaves"):
            known = self.cluster.state.brokers[BrokerId(broker)]
            self._perform(
                self.core.on_condition(
                    known.id,
                    room=Room.AMPLE,
                    disk_hangs=False,
                    has_master_key=True,
                    now=self._now,
                    is_stopping=True,
                    leaves=known.incarnation if "leaves" in command.words else None,
                )
            )

    def _drained(self, command: Command) -> None:
        moves, self._moves = self._moves, []
        for move in moves:
            election = self.core.requests.carry_out(move)
            self._lines.append(f"  propose {self._command_shown(election)}")
            self._ended(self.cluster.apply(election))
            self._perform(self.core.on_move_ended(move, True, self._now))

    def _questions(self, command: Command) -> None:
        (self._delivery,) = command.words
        self._deliver_questions()

    def _deliver_questions(self) -> None:
        if self._delivery == "held":
            return
        out, self._questions_out = self._questions_out, 0
        for _ in range(out if self._delivery == "delivered" else 0):
            self._perform(self.core.on_own_question(self._now))


def _settings_shown(config: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(config.items())) or "built-in settings"
