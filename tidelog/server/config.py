"""Configuration of one broker: flags > environment > TOML file > defaults.

    id = "b1"
    nats = "nats://127.0.0.1:4222"          # or a list
    raft_address = "127.0.0.1:7001"         # this voter; leave it out for an observer
    raft_peers = { b2 = "127.0.0.1:7002", b3 = "127.0.0.1:7003" }
    raft_secret_file = "raft-secret"        # proof among brokers: needed beyond loopback; two lines while
                                            # one secret takes the place of the other; reread when it changes
    raft_ca = "ca.pem"                      # these three: TLS between the brokers' Raft nodes
    raft_cert = "b1.pem"
    raft_key = "b1.key"
    liftbridge_port = 9292                  # Liftbridge's gRPC API, off without it: docs/liftbridge.md
    liftbridge_host = "127.0.0.1"           # where it listens; beyond loopback only when it is said here
    liftbridge_advertised = "b1:9292"       # the address that clients get; else host and port
    liftbridge_cert = "b1.pem"              # these three: TLS on that port; with a CA, clients show certificates, too
    liftbridge_key = "b1.key"
    liftbridge_ca = "clients.pem"
    liftbridge_login = "login.toml"         # a [login] to NATS for the calls on that port
    data_dir = "/var/lib/tidelog"
    replace = true                          # the folder that this broker had is lost for good; data_dir may be empty
    boot_id_file = "/run/boot-id"           # where the system has no boot id of its own: see docs/operations.md
    namespace = "tidelog"
    zone = "eu-1a"                          # where it runs: replicas are spread over zones, and consumers read from
                                            # the nearest one; `rack` is its earlier name
    tags = ["ssd"]                          # for streams that ask for brokers with them
    log_level = "info"
    master_key_file = "master-keys"         # for streams with encryption: dataplane.encryption.keyring; SIGHUP
                                            # makes a running broker read it again

    [login]                                 # who connects to NATS and how: tidelog.nats.login_sources
    user = "broker"
    password_file = "nats-password"
    ca = "ca.pem"

    [replica]                               # any of dataplane.replica.replica_settings.ReplicaSettings
    replica_max_lag_time = 5.0
    [metadata]                              # any of metadata.controller.metadata_settings.MetadataSettings
    heartbeat_interval_s = 0.1
    [storage]                               # any of dataplane.broker.disk.storage_settings.StorageSettings
    housekeeping_interval = 5.0
    min_free_bytes = "2GB"                  # bytes and ms are also taken with their units: wire.notation

Environment: TIDELOG_ID, TIDELOG_NATS, TIDELOG_RAFT_ADDRESS, TIDELOG_RAFT_PEERS ("b2=host:port,b3=host:port"),
TIDELOG_RAFT_SECRET, TIDELOG_RAFT_SECRET_FILE, TIDELOG_RAFT_CA, TIDELOG_RAFT_CERT, TIDELOG_RAFT_KEY, TIDELOG_DATA_DIR,
TIDELOG_REPLACE, TIDELOG_BOOT_ID_FILE, TIDELOG_NAMESPACE, TIDELOG_ZONE, TIDELOG_TAGS ("ssd,region=eu"),
TIDELOG_LOG_LEVEL, TIDELOG_MASTER_KEY_FILE, or TIDELOG_MASTER_KEY with the key itself; TIDELOG_LIFTBRIDGE_PORT and its
like; TIDELOG_NATS_USER and the others of the login.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar
from urllib.parse import urlsplit

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.encryption.keyring import ENVIRONMENT_VARIABLE, MasterKeys, keys_from_file, keys_from_text
from dataplane.log.storage.files import LINUX_BOOT_ID
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.controller.metadata_settings import MetadataSettings
from metadata.raft import RaftCertificates
from tidelog.nats.login import NO_LOGIN, NatsLogin, split_url
from tidelog.nats.login_sources import Found, LoginSources, urls
from tidelog.process.loopback import is_loopback
from tidelog.server.liftbridge.port_settings import FILE_KEYS, SECRET_FILE_KEYS, LiftbridgeSettings, read_settings
from tidelog.server.liftbridge.port_settings import KEYS as LIFTBRIDGE_KEYS
from tidelog.server.secret_file import SecretFile
from wire.errors import Code, TidelogError
from wire.notation import BYTES, TIME, amount, check_rack, check_zone, port_number, tags_of, units_in_words
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets, parse_secrets, public_secrets
from wire.subjects import DEFAULT_INBOX_PREFIX, DEFAULT_NAMESPACE, check_broker_id, check_namespace
from wire.types import BrokerId

VOTER_COUNTS = (1, 3, 5)
LOG_LEVELS = ("debug", "info", "warning", "error")
_KEYS = (
    "id", "nats", "raft_address", "raft_peers", "raft_secret", "raft_secret_file", "data_dir", "boot_id_file",
    "namespace", "log_level", "master_key_file", "raft_ca", "raft_cert", "raft_key",
    "zone", "rack", "tags", "replace", *LIFTBRIDGE_KEYS,
)  # fmt: skip
_SECRET_FILES = ("raft_secret_file", "master_key_file", "raft_key", *SECRET_FILE_KEYS)
_RAFT_TLS = ("raft_ca", "raft_cert", "raft_key")
_Settings = TypeVar("_Settings", ReplicaSettings, MetadataSettings, StorageSettings)
_SECTIONS = ("replica", "metadata", "storage")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    broker: BrokerId
    nats: tuple[str, ...]
    data_dir: Path
    replace: bool = False
    """An empty `data_dir` takes the place of a folder that is lost for good. No effect once it is in use."""
    login: Callable[[], NatsLogin] = lambda: NO_LOGIN
    """Returns the login to `nats`, read anew from its source at each call. Raises NatsRefused."""
    secret_files: tuple[Path, ...] = ()
    """Files that nobody but their owner should read."""
    raft_address: str | None = None
    """`host:port` of this voter; None = an observer, or, without peers, a standalone broker on a port of its own
    choice."""
    raft_peers: Mapping[BrokerId, str] = field(default_factory=dict)
    """The other voters."""
    secrets: ClusterSecrets = field(default_factory=public_secrets, repr=False)
    """The secrets by which brokers authenticate each other."""
    raft_secret_file: Path | None = None
    """The file of `secrets`; None: they are from the environment, or there are none."""
    raft_certificates: RaftCertificates | None = None
    """Files of TLS between the brokers' Raft nodes; None: without TLS."""
    liftbridge: LiftbridgeSettings | None = None
    """The settings of the port for Liftbridge's clients; None: there is no port."""
    boot_id_file: Path = LINUX_BOOT_ID
    """A file whose content differs after every start of the operating system."""
    namespace: str = DEFAULT_NAMESPACE
    zone: str = ""
    """Where this broker runs, for the placement of replicas and for consumers that read from the nearest one. Empty:
    not given."""
    tags: tuple[str, ...] = ()
    log_level: str = "info"
    master_keys: MasterKeys = field(default_factory=MasterKeys)
    master_key_file: Path | None = None
    """The file of `master_keys`; None: they are from the environment, or there are none."""
    liftbridge_login: Callable[[], tuple[Callable[[], NatsLogin], str]] = lambda: (
        lambda: NO_LOGIN,
        DEFAULT_INBOX_PREFIX,
    )
    """Returns the login to `nats` of the Liftbridge port, read anew at each call of it, and the prefix of its inboxes.
    Raises TidelogError(BAD_CONFIG)."""
    replica: ReplicaSettings = field(default_factory=ReplicaSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> ServerConfig:
    """Merges the three sources. `flags`: the settings by name, and `login` with those of tidelog.nats.login_sources
    and `context`. Raises TidelogError(BAD_CONFIG) that names the setting, its value, and the values that
    are allowed."""
    values: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    if file is not None:
        document = _read(file)
        sections = {name: document.pop(name, {}) for name in _SECTIONS}
        document.pop("login", None)  # LoginSources reads it
        for name, section in sections.items():
            if not isinstance(section, dict):
                raise _bad(f"{file}: {name} = {section!r} is not a table; write [{name}] and its settings below")
        unknown = sorted(set(document) - set(_KEYS))
        if unknown:
            known = ", ".join([*_KEYS, *(f"[{section}]" for section in (*_SECTIONS, "login"))])
            raise _bad(f"{file}: unknown setting {unknown[0]!r}; known: {known}")
        values.update(document)
        for key in ("raft_secret_file", "data_dir", "boot_id_file", "master_key_file", *_RAFT_TLS, *FILE_KEYS):
            if key in values:
                values[key] = str(file.parent.absolute() / str(values[key]))
    for key in _KEYS:
        text = environment.get(f"TIDELOG_{key.upper()}")
        if text:
            values[key] = text
    values.update({key: value for key, value in flags.items() if key in _KEYS and value not in (None, (), "")})
    sources = LoginSources(
        environment=environment,
        server_variable="TIDELOG_NATS",
        servers=urls(flags["nats"], "--nats") if flags.get("nats") else None,
        options=flags.get("login") or {},
        context=flags.get("context"),
        files=() if file is None else (file,),
    )
    return _build(values, sections, environment.get(ENVIRONMENT_VARIABLE, ""), sources, file)


def _build(
    values: Mapping[str, Any],
    sections: Mapping[str, Any],
    master_key: str,
    sources: LoginSources,
    file: Path | None,
) -> ServerConfig:
    for key, how in (("id", "--id or TIDELOG_ID"), ("data_dir", "--data-dir or TIDELOG_DATA_DIR")):
        if not values.get(key):
            raise _bad(f"no {key} is set; give {how}, or {key} = … in the file of --config")
    peers = _peers(values.get("raft_peers") or {})
    broker = check_broker_id(str(values["id"]))
    peers.pop(broker, None)
    address = values.get("raft_address")
    if address is not None:
        _check_address("raft_address", str(address))
    voters = len(peers) + (1 if address is not None else 0)
    if peers and voters not in VOTER_COUNTS:
        raise _bad(f"{voters} Raft voters are configured; use 1, 3 or 5 (brokers without a raft_address are observers)")
    namespace = check_namespace(str(values.get("namespace", DEFAULT_NAMESPACE)))
    level = str(values.get("log_level", "info")).lower()
    if level not in LOG_LEVELS:
        raise _bad(f"log_level={level!r} is none of {', '.join(LOG_LEVELS)}")
    named = None if values.get("raft_secret") else values.get("raft_secret_file")
    master_key_file = Path(str(values["master_key_file"])) if values.get("master_key_file") else None
    if master_key and master_key_file is not None:
        raise _bad(
            f"both {ENVIRONMENT_VARIABLE} and the master key file {master_key_file} are given; put that key into the"
            " file, or leave the file out"
        )
    found = sources.find()
    liftbridge = read_settings(values)
    _check_port_lends_nothing(liftbridge, found)
    config = ServerConfig(
        broker=broker,
        nats=found.servers,
        login=sources.login,
        secret_files=(*found.secret_files, *_secret_files(values, file)),
        data_dir=Path(str(values["data_dir"])),
        replace=_flag("replace", values.get("replace", False)),
        boot_id_file=Path(str(values.get("boot_id_file") or LINUX_BOOT_ID)),
        raft_address=str(address) if address is not None else None,
        raft_peers=peers,
        secrets=_secrets(values, is_alone=address is None and not peers),
        raft_secret_file=Path(str(named)) if named else None,
        raft_certificates=_raft_certificates(values),
        liftbridge=liftbridge,
        liftbridge_login=lambda: _login_of_port(liftbridge, sources, found.servers),
        namespace=namespace,
        zone=_zone(values),
        tags=_tags(values.get("tags") or ()),
        log_level=level,
        master_keys=(
            keys_from_file(master_key_file)
            if master_key_file is not None
            else keys_from_text(master_key)
            if master_key
            else MasterKeys()
        ),
        master_key_file=master_key_file,
        replica=_section(ReplicaSettings, "replica", sections.get("replica", {})),
        metadata=_section(MetadataSettings, "metadata", sections.get("metadata", {})),
        storage=_section(StorageSettings, "storage", sections.get("storage", {})),
    )
    _check_reach(config)
    return config


def _zone(values: Mapping[str, Any]) -> str:
    """`rack` is the earlier name of `zone`."""
    zone = check_zone(str(values["zone"])) if values.get("zone") else ""
    rack = check_rack(str(values["rack"])) if values.get("rack") else ""
    if zone and rack and zone != rack:
        raise _bad(f"zone={zone!r} and rack={rack!r} name one thing, where this broker runs; leave rack out")
    return zone or rack


def _tags(given: object) -> tuple[str, ...]:
    wanted = [tag.strip() for tag in given.split(",")] if isinstance(given, str) else given
    if not isinstance(wanted, list | tuple):
        raise _bad(f"tags={given!r} is no list of texts; write such as tags = ['ssd']")
    try:
        return tags_of(wanted)
    except ValueError as error:
        raise _bad(f"tags={given!r} {error}") from None


def _flag(name: str, value: object) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in known:
        raise _bad(f"{name}={value!r} is neither true nor false; leave it out, or give one of them")
    return known[str(value).lower()]


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as e:
        raise _bad(f"the configuration file {file} cannot be read: {e.strerror}") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise _bad(f"the configuration file {file} is not TOML: {e}") from e


def _secret_files(values: Mapping[str, Any], file: Path | None) -> list[Path]:
    """Returns the files of this broker's own secrets."""
    named = [Path(str(values[key])) for key in _SECRET_FILES if values.get(key)]
    return [*named, file] if file is not None and values.get("raft_secret") else named


def _peers(value: Any) -> dict[BrokerId, str]:
    if isinstance(value, Mapping):
        pairs = [(str(k), str(v)) for k, v in value.items()]
    else:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            raise _bad(f"raft_peers={value!r} is no table of addresses; write {{ b2 = 'HOST:PORT' }}")
        pairs = []
        for item in items:
            name, sign, address = str(item).strip().partition("=")
            if not sign:
                raise _bad(f"raft peer {item!r} is not of the form ID=HOST:PORT")
            pairs.append((name, address))
    for name, address in pairs:
        _check_address(f"raft peer {name}", address)
    return {check_broker_id(name): address for name, address in pairs}


def _check_address(what: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or port_number(port) is None:
        raise _bad(f"{what} {address!r} is not of the form HOST:PORT")


def _secrets(values: Mapping[str, Any], *, is_alone: bool) -> ClusterSecrets:
    """Returns the secrets of the cluster. `is_alone`: no other broker can join this one, which makes a secret for
    itself (`tidelog.server.own_secret`)."""
    if values.get("raft_secret"):
        return ClusterSecrets(parse_secrets(str(values["raft_secret"]).encode(), "raft_secret (TIDELOG_RAFT_SECRET)"))
    file = values.get("raft_secret_file")
    if file:
        return ClusterSecrets(SecretFile.read(Path(str(file))).secrets)
    return ClusterSecrets([ClusterSecret(token_bytes(32))], are_shared=False) if is_alone else public_secrets()


def _check_reach(config: ServerConfig) -> None:
    """Checks that only this machine reaches a broker without a secret, because it trusts every sender. Raft addresses
    are checked when they are bound."""
    if not config.secrets.are_public:
        return
    for url in config.nats:
        host = urlsplit(url if "//" in url else f"//{url}").hostname or ""
        if not is_loopback(host):
            raise _bad(
                f"the NATS server {host!r} can be reached from other machines, and no raft_secret_file is configured:"
                " anybody there could speak for a broker; give every broker the same secret"
            )


def _raft_certificates(values: Mapping[str, Any]) -> RaftCertificates | None:
    ca, cert, key = (Path(str(values[name])) if values.get(name) else None for name in _RAFT_TLS)
    if ca is not None and cert is not None:
        return RaftCertificates(ca=ca, cert=cert, key=key)
    if ca is not None or cert is not None or key is not None:
        missing = "raft_ca" if ca is None else "raft_cert"
        raise _bad(
            f"TLS between brokers needs raft_ca, raft_cert and raft_key, and there is no {missing}; give it, too"
        )
    return None


def _check_port_lends_nothing(settings: LiftbridgeSettings | None, found: Found) -> None:
    """Checks that the port does not act with the broker's login to NATS, which everybody who reaches it would have.
    Raises TidelogError(BAD_CONFIG)."""
    if settings is None or settings.login is not None:
        return
    login = found.login
    if login.identity is not None or login.cert is not None or any(split_url(url)[1] for url in found.servers):
        raise _bad(
            "liftbridge_port needs liftbridge_login, a file with the port's own login to NATS, for this broker has a"
            " login: without it everybody who reaches the port would act as the broker. Give it what these clients may"
            " do, such as `tidelog security nats-config --role producer --role consumer --role monitoring` prints"
        )


def _login_of_port(
    settings: LiftbridgeSettings | None, sources: LoginSources, servers: tuple[str, ...]
) -> tuple[Callable[[], NatsLogin], str]:
    """Returns the login of the port: its own, or that of the broker, which is none then
    (`_check_port_lends_nothing`)."""
    if settings is None or settings.login is None:
        return sources.login, DEFAULT_INBOX_PREFIX
    bare = tuple(split_url(url)[0] for url in servers)  # a login in a URL is the broker's, and would override the file
    own = LoginSources(
        environment={}, server_variable="TIDELOG_NATS", servers=bare, options={}, files=(settings.login,)
    )
    return own.login, own.find().inbox_prefix or DEFAULT_INBOX_PREFIX


def _section(kind: type[_Settings], name: str, values: Mapping[str, Any]) -> _Settings:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise _bad(f"[{name}] has no setting {unknown[0]!r}; known: {', '.join(sorted(known))}")
    given = dict(values)
    for f in fields(kind):
        if f.name in given:
            given[f.name] = _plain(f"[{name}] {f.name}", given[f.name], f)
            _check_kind(f"[{name}] {f.name}", given[f.name], type(f.default))
    try:
        return kind(**given)
    except ValueError as e:
        raise _bad(f"[{name}]: {e}") from e


def _plain(what: str, value: Any, of: Field[Any]) -> Any:
    """Returns a text with a unit as the plain number; other values as they are."""
    counts = BYTES if "bytes" in of.name or of.metadata.get("counts") == "bytes" else TIME
    if not isinstance(value, str) or not (counts is BYTES or of.name.endswith("_ms")):
        return value
    found = amount(value, counts)
    if found is None:
        raise _bad(f"{what} = {value!r} is no whole number, and no text with a unit ({units_in_words(counts)})")
    return found


def _check_kind(what: str, value: Any, kind: type[object]) -> None:
    allowed: tuple[type[object], ...] = (int, float) if kind is float else (kind,)
    if type(value) not in allowed:
        wanted = {float: "a number", int: "a whole number", bool: "true or false"}.get(kind, kind.__name__)
        raise _bad(f"{what} = {value!r} is not {wanted}")


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
