"""Configuration: precedence of the sources, and the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dataplane.log.storage.files import LINUX_BOOT_ID
from metadata.raft import RaftCertificates
from tidelog.server.config import ServerConfig, load
from wire.errors import Code, TidelogError

MINIMAL = {"id": "b1", "data_dir": "/tmp/b1"}


def config(
    flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, file: Path | None = None
) -> ServerConfig:
    return load(MINIMAL if flags is None else flags, environment or {}, file)


def write(folder: Path, text: str) -> Path:
    file = folder / "b.toml"
    file.write_text(text)
    return file


def test_flags_go_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, 'id = "file"\nnats = "nats://file:1"\ndata_dir = "data"\nnamespace = "file"\n')
    environment = {"TIDELOG_ID": "env", "TIDELOG_NATS": "nats://env:1"}
    found = config({"id": "flag"}, environment, file)
    assert (found.broker, found.nats, found.namespace, found.log_level) == ("flag", ("nats://env:1",), "file", "info")
    assert found.data_dir == tmp_path / "data", "relative to the file that says so"
    assert (found.zone, found.tags) == ("", ())
    assert config({"id": "flag", "rack": "eu-1a"}, environment, file).zone == "eu-1a", "the earlier name"
    placed = config({"id": "flag", "zone": "eu-1a", "tags": ("ssd", "region=eu", "ssd")}, environment, file)
    assert (placed.zone, placed.tags) == ("eu-1a", ("region=eu", "ssd"))
    assert config({"id": "flag"}, environment | {"TIDELOG_TAGS": "ssd, region=eu"}, file).tags == ("region=eu", "ssd")


def test_the_boot_id_is_read_from_the_systems_file_or_from_another(tmp_path: Path) -> None:
    assert config().boot_id_file == LINUX_BOOT_ID
    file = write(tmp_path, 'id = "b1"\ndata_dir = "data"\nboot_id_file = "boot"\n')
    assert config({}, file=file).boot_id_file == tmp_path / "boot", "relative to the file that says so"
    assert config({}, {"TIDELOG_BOOT_ID_FILE": "/run/boot"}, file).boot_id_file == Path("/run/boot")


def test_peers_come_as_a_table_a_text_or_flags(tmp_path: Path) -> None:
    want = {"b2": "h2:1", "b3": "h3:1"}
    address = 'id = "b1"\ndata_dir = "d"\nraft_address = "h1:1"\n'
    file = write(tmp_path, address + 'raft_peers = { b2 = "h2:1", b3 = "h3:1" }\n')
    assert config({}, file=file).raft_peers == want
    assert config({**MINIMAL, "raft_address": "h1:1"}, {"TIDELOG_RAFT_PEERS": "b2=h2:1, b3=h3:1"}).raft_peers == want
    assert config({**MINIMAL, "raft_address": "h1:1", "raft_peers": ("b2=h2:1", "b3=h3:1")}).raft_peers == want


def test_a_list_of_peers_may_name_the_broker_itself() -> None:
    peers = "b1=h1:1,b2=h2:1,b3=h3:1"
    assert set(config({**MINIMAL, "raft_address": "h1:1"}, {"TIDELOG_RAFT_PEERS": peers}).raft_peers) == {"b2", "b3"}


def test_settings_of_both_planes_come_from_their_sections(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'id = "b1"\ndata_dir = "d"\n[replica]\nreplica_max_lag_time = 6.0\n[metadata]\nheartbeat_interval_s = 0.2\n',
    )
    found = config({}, file=file)
    assert (found.replica.replica_max_lag_time, found.metadata.heartbeat_interval_s) == (6.0, 0.2)


def test_the_secret_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0123456789abcdef\n")
    file = write(tmp_path, 'id = "b1"\ndata_dir = "d"\nraft_secret_file = "secret"\n')
    assert config({}, file=file).secrets.first.text == b"0123456789abcdef"


def test_the_login_and_the_certificates_of_raft_are_the_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret-word\n")
    file = write(
        tmp_path,
        'id = "b1"\ndata_dir = "d"\nraft_ca = "ca"\nraft_cert = "cert"\nraft_key = "key"\n'
        '[login]\nuser = "u"\npassword_file = "password"\n',
    )
    found = config({}, file=file)
    assert (found.login().user, found.login().password) == ("u", "secret-word")
    assert set(found.secret_files) == {tmp_path / "password", tmp_path / "key"}
    assert found.raft_certificates == RaftCertificates(ca=tmp_path / "ca", cert=tmp_path / "cert", key=tmp_path / "key")
    (tmp_path / "password").write_text("rotated")
    assert found.login().password == "rotated"
    assert "secret-word" not in repr(found)


@pytest.mark.parametrize(
    ("flags", "file", "words"),
    [
        ({"data_dir": "d"}, "", ["no id", "--id"]),
        ({"id": "b1"}, "", ["no data_dir", "--data-dir"]),
        ({**MINIMAL, "raft_address": "nohost"}, "", ["nohost", "HOST:PORT"]),
        ({**MINIMAL, "raft_address": "h:7²"}, "", ["'h:7²'", "HOST:PORT"]),
        ({**MINIMAL, "raft_address": "h:0000070000"}, "", ["'h:0000070000'", "HOST:PORT"]),
        ({**MINIMAL, "raft_peers": ("b2=h:" + "7" * 5000,)}, "", ["raft peer b2", "HOST:PORT"]),
        ({**MINIMAL, "raft_peers": ("b2",)}, "", ["b2", "ID=HOST:PORT"]),
        ({**MINIMAL, "raft_address": "h:1", "raft_peers": ("b2=h:2",)}, "", ["2 Raft voters", "1, 3 or 5"]),
        ({**MINIMAL, "log_level": "loud"}, "", ["loud", "debug"]),
        ({**MINIMAL, "rack": "a b"}, "", ["rack='a b'", "'eu-1a'"]),
        ({**MINIMAL, "zone": "a b"}, "", ["zone='a b'", "'eu-1a'"]),
        ({**MINIMAL, "zone": "a", "rack": "b"}, "", ["zone='a'", "rack='b'", "leave rack out"]),
        ({**MINIMAL, "tags": ("a,b",)}, "", ["tags=", "'a,b'", "no tag"]),
        ({**MINIMAL, "tags": [f"t{number}" for number in range(33)]}, "", ["33 tags", "32"]),
        (MINIMAL, "colour = 1", ["colour", "known"]),
        (MINIMAL, "[replica]\ncolour = 1", ["[replica]", "colour", "replica_max_lag_time"]),
        (MINIMAL, "[replica]\nreplica_max_idle_wait = 9.0", ["[replica]", "replica_max_idle_wait", "9.0"]),
        (MINIMAL, "[replica]\nreplica_max_lag_time = 'long'", ["[replica] replica_max_lag_time", "'long'", "a number"]),
        (MINIMAL, "[replica]\npush_to_waiters = 1", ["[replica] push_to_waiters", "true or false"]),
        (MINIMAL, "[storage]\nmin_free_bytes = '2G'", ["[storage] min_free_bytes = '2G'", "(B, kB, MB,"]),
        (MINIMAL, "[storage]\nhousekeeping_interval = '5s'", ["[storage] housekeeping_interval", "a number"]),
        (MINIMAL, "replica = 3", ["replica = 3", "[replica]"]),
        (MINIMAL, "raft_peers = 3", ["raft_peers=3", "HOST:PORT"]),
        (MINIMAL, "nats = 3", ["nats=3", "nats://"]),
        (MINIMAL, "nats = ['']", ["nats=['']", "nats://"]),
        (MINIMAL, "this is not toml", ["not TOML"]),
        (MINIMAL, 'raft_ca = "ca.pem"', ["raft_ca, raft_cert and raft_key", "no raft_cert"]),
        (MINIMAL, "[login]\nuser = 'u'", ["the user 'u' is given without a password"]),
        (MINIMAL, 'raft_secret_file = "missing"', ["missing", "cannot be read"]),
    ],
)
def test_a_refusal_names_the_setting_the_value_and_the_allowed_values(
    flags: dict[str, Any], file: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(TidelogError) as caught:
        config(flags, file=write(tmp_path, file) if file else None)
    assert caught.value.code is Code.BAD_CONFIG
    for word in words:
        assert word in str(caught.value)


def test_a_bad_broker_id_is_refused() -> None:
    with pytest.raises(TidelogError) as caught:
        config({"id": "b.1", "data_dir": "d"})
    assert caught.value.code is Code.BAD_NAME


KEY = "ab" * 32


def test_master_keys_come_from_the_environment_or_a_file(tmp_path: Path) -> None:
    assert config().master_keys.ids == ()
    assert config(environment={"TIDELOG_MASTER_KEY": f"k1:{KEY}"}).master_keys.ids == ("k1",)
    (tmp_path / "keys").write_text(f"k2 {KEY}\nk1 {'cd' * 32}\n")
    file = write(tmp_path, 'id = "b1"\ndata_dir = "d"\nmaster_key_file = "keys"\n')
    found = config({}, file=file)
    assert found.master_keys.ids == ("k2", "k1")
    assert found.master_key_file == tmp_path / "keys", "relative to the file that says so"
    assert KEY not in repr(found)
    assert repr(bytes.fromhex(KEY)) not in repr(found)
    flag = {**MINIMAL, "master_key_file": str(tmp_path / "keys")}
    assert config(flag).master_keys.ids == ("k2", "k1")


def test_a_master_key_is_given_in_one_way(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"k1 {KEY}\n")
    flag = {**MINIMAL, "master_key_file": str(tmp_path / "keys")}
    with pytest.raises(TidelogError, match=r"both TIDELOG_MASTER_KEY and the master key file .* are given") as caught:
        config(flag, {"TIDELOG_MASTER_KEY": KEY})
    assert KEY not in caught.value.message


def test_master_keys_are_not_settings_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, f'id = "b1"\ndata_dir = "d"\nmaster_key = "{KEY}"\n')
    with pytest.raises(TidelogError, match="unknown setting 'master_key'"):
        config({}, file=file)


def test_the_port_for_liftbridges_clients(tmp_path: Path) -> None:
    assert config().liftbridge is None
    by_flag = config({**MINIMAL, "liftbridge_port": 9292}).liftbridge
    assert by_flag is not None
    assert (by_flag.address, by_flag.advertised, by_flag.cert) == ("127.0.0.1:9292", "127.0.0.1:9292", None)
    assert config(environment={"TIDELOG_LIFTBRIDGE_PORT": "9293"}).liftbridge is not None
    file = write(
        tmp_path,
        'id = "b1"\ndata_dir = "d"\nliftbridge_port = 9292\nliftbridge_host = "::"\nliftbridge_advertised = "b1:80"\n'
        'liftbridge_cert = "b1.pem"\nliftbridge_ca = "ca.pem"\nliftbridge_login = "login.toml"\n',
    )
    by_file = config({}, file=file).liftbridge
    assert by_file is not None
    assert (by_file.address, by_file.advertised) == ("[::]:9292", "b1:80")
    assert (by_file.cert, by_file.ca, by_file.key) == (tmp_path / "b1.pem", tmp_path / "ca.pem", None)
    assert tmp_path / "login.toml" in config({}, file=file).secret_files


def test_a_broker_with_a_login_lends_it_to_nobody(tmp_path: Path) -> None:
    with_port = {**MINIMAL, "liftbridge_port": 9292}
    by_environment = {"TIDELOG_NATS_USER": "broker", "TIDELOG_NATS_PASSWORD": "x"}
    for given, environment in (
        (with_port, by_environment),
        (with_port, {"TIDELOG_NATS_CERT": "broker.pem"}),
        ({**with_port, "nats": ("nats://broker:x@127.0.0.1:4222",)}, {}),
    ):
        with pytest.raises(TidelogError, match="needs liftbridge_login") as refused:
            config(given, environment)
        assert refused.value.code is Code.BAD_CONFIG
    config(MINIMAL, by_environment)
    (tmp_path / "login.toml").write_text('[login]\nuser = "port"\npassword = "y"\n')
    own = {**with_port, "liftbridge_login": str(tmp_path / "login.toml")}
    for given, environment in ((own, by_environment), ({**own, "nats": ("nats://broker:x@127.0.0.1:4222",)}, {})):
        login, _ = config(given, environment).liftbridge_login()
        assert login().user == "port"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"liftbridge_port": "x"}, "liftbridge_port='x' is no port"),
        ({"liftbridge_port": 0}, "liftbridge_port='0' is no port"),
        ({"liftbridge_port": True}, "is no port"),
        ({"liftbridge_port": 99999}, "is no port"),
        ({"liftbridge_port": "0000070000"}, "is no port"),
        ({"liftbridge_host": "h"}, "there is no liftbridge_port"),
        ({"liftbridge_port": 1, "liftbridge_host": "a b"}, "is no host"),
        ({"liftbridge_port": 1, "liftbridge_advertised": "b1"}, "is not of the form HOST:PORT"),
        ({"liftbridge_port": 1, "liftbridge_advertised": "b1:0000070000"}, "is not of the form HOST:PORT"),
        ({"liftbridge_port": 1, "liftbridge_ca": "ca.pem"}, "needs liftbridge_cert"),
        ({"liftbridge_port": 1, "liftbridge_key": "b1.key"}, "needs liftbridge_cert"),
    ],
)
def test_a_port_that_cannot_be_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TidelogError, match=words) as refused:
        config({**MINIMAL, **given})
    assert refused.value.code is Code.BAD_CONFIG


def test_settings_that_count_bytes_or_ms_take_units(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        'id = "b1"\ndata_dir = "d"\n[storage]\nmin_free_bytes = "2GB"\ngroup_retention_ms = "30d"\n'
        'compaction_memory = "64MiB"\nscrub_bytes_per_second = 5\n[replica]\nfetch_max_bytes = "2MiB"\n',
    )
    found = config({}, file=file)
    assert found.storage.min_free_bytes == 2_000_000_000
    assert found.storage.group_retention_ms == 30 * 86_400_000
    assert found.storage.compaction_memory == 64 << 20
    assert found.storage.scrub_bytes_per_second == 5
    assert found.replica.fetch_max_bytes == 2 << 20
