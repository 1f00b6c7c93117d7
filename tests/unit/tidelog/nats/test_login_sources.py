"""Where a login comes from: options, environment, files and contexts of the `nats` CLI, in that order."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from nats.errors import Error

from tidelog.nats.login import LiveLogin, NatsLogin, split_url
from tidelog.nats.login_sources import DEFAULT_SERVER, Found, LoginSources
from tidelog.nats.nats_errors import NatsRefused, NatsUnavailable, check_url, unavailable, without_secrets
from tidelog.process.private_files import warn_of_open
from wire.errors import Code, TidelogError


def sources(
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    servers: Sequence[str] | None = None,
    context: str | None = None,
    files: Sequence[Path] = (),
) -> LoginSources:
    return LoginSources(
        environment=environment or {},
        server_variable="TIDELOG_SERVER",
        servers=servers,
        options=options or {},
        context=context,
        files=files,
    )


def find(*args: Any, **more: Any) -> Found:
    return sources(*args, **more).find()


def toml(folder: Path, text: str) -> Path:
    file = folder / "login.toml"
    file.write_text(text)
    return file


def context(folder: Path, name: str = "prod", **content: Any) -> dict[str, str]:
    """The environment in which the context is found."""
    file = folder / "nats" / "context" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    empty = dict.fromkeys(("description", "token", "user", "password", "creds", "nkey", "cert", "key", "ca", "nsc"), "")
    file.write_text(json.dumps(empty | content))
    return {"XDG_CONFIG_HOME": str(folder)}


def test_without_any_source_nobody_connects_to_this_machine() -> None:
    found = find()
    assert (found.servers, found.login, found.secret_files) == ((DEFAULT_SERVER,), NatsLogin(), ())


def test_options_go_before_environment_before_files_before_a_context(tmp_path: Path) -> None:
    at = context(tmp_path, url="nats://d:1", user="d", password="pd", ca="/d.pem", tls_first=True)
    environment = {"TIDELOG_NATS_USER": "b", "TIDELOG_NATS_PASSWORD": "pb", "TIDELOG_SERVER": "nats://b:1", **at}
    file = toml(tmp_path, 'nats = ["nats://c:1", "nats://c:2"]\n[login]\nuser = "c"\npassword = "pc"\nca = "c.pem"\n')
    every = {"context": "prod", "files": [file]}
    found = find({"user": "a", "password": "pa"}, environment, servers=["nats://a:1"], **every)
    assert (found.servers, found.login.user, found.login.password) == (("nats://a:1",), "a", "pa")
    assert found.login.ca == tmp_path / "c.pem", "TLS is merged setting by setting; paths are the file's"
    assert found.login.tls_first
    found = find({}, environment, **every)
    assert (found.servers, found.login.user, found.login.password) == (("nats://b:1",), "b", "pb")
    found = find({}, at, **every)
    assert (found.servers, found.login.user) == (("nats://c:1", "nats://c:2"), "c")
    found = find({}, at, context="prod")
    assert (found.servers, found.login.user, found.login.ca) == (("nats://d:1",), "d", Path("/d.pem"))


def test_a_user_of_one_source_is_completed_by_the_password_of_another(tmp_path: Path) -> None:
    assert find({"user": "u"}, {"TIDELOG_NATS_PASSWORD": "pw"}).login == NatsLogin(user="u", password="pw")
    (tmp_path / "password").write_text("from file\n")
    found = find({"user": "u", "password_file": tmp_path / "password"}, {"TIDELOG_NATS_PASSWORD": "pw"})
    assert found.login == NatsLogin(user="u", password="from file")
    assert found.secret_files == (tmp_path / "password",)


@pytest.mark.parametrize(
    ("options", "environment", "written"),
    [
        ({}, {}, ""),
        ({"user": "a", "password": "x"}, {}, "the option user and the option password"),
        ({"user": "a"}, {"PASSWORD": "x"}, "the option user and $TIDELOG_NATS_PASSWORD"),
        ({}, {"USER": "a", "PASSWORD": "x"}, "$TIDELOG_NATS_USER and $TIDELOG_NATS_PASSWORD"),
        ({"token": "t"}, {"NKEY": "/n"}, "the option token, before $TIDELOG_NATS_NKEY"),
    ],
)
def test_a_login_says_where_it_is_written(
    tmp_path: Path, options: dict[str, str], environment: dict[str, str], written: str
) -> None:
    given = {f"TIDELOG_NATS_{name}": value for name, value in environment.items()}
    assert find(options, given).login.origin == written
    file = toml(tmp_path, '[login]\nuser = "c"\npassword = "pc"\n')
    in_file = f"user in {file} and password in {file}"
    assert find(options, given, files=[file]).login.origin == (
        in_file if not written else f"{written}{' and' if 'before' in written else ', before'} {in_file}"
    )
    at = context(tmp_path, url="nats://d:1", user="d", password="pd")
    of_context = find({}, at, context="prod").login.origin
    assert of_context.startswith("user in the NATS context 'prod' (")
    in_url = {"TIDELOG_SERVER": "nats://v:w@a:1"}
    assert find({}, in_url, files=[file]).login.origin == f"the URL in $TIDELOG_SERVER, before {in_file}"


def test_a_login_that_lacks_a_part_says_where_the_other_is_written() -> None:
    with pytest.raises(TidelogError, match=r"without a password: give it, too \(it is from \$TIDELOG_NATS_USER\)$"):
        find({}, {"TIDELOG_NATS_USER": "u"})


async def test_a_refusal_says_who_connects_and_where_that_is_written() -> None:
    in_url = NatsLogin(user="v", password="w")

    async def told(in_url: NatsLogin | None, **environment: str) -> str:
        live = LiveLogin(sources({}, environment).login, tls_by_url=False)
        await live.read()
        return live.told(in_url)

    assert await told(None) == "none were given"
    assert await told(in_url, TIDELOG_SERVER="nats://v:w@a:1") == "user 'v' from the URL in $TIDELOG_SERVER"
    by_environment = await told(None, TIDELOG_NATS_USER="u", TIDELOG_NATS_PASSWORD="pw")
    assert by_environment == "user 'u' from $TIDELOG_NATS_USER and $TIDELOG_NATS_PASSWORD"
    assert await told(None, TIDELOG_NATS_TOKEN="t") == "this token from $TIDELOG_NATS_TOKEN"
    error = unavailable(
        "nats://a:1",
        Error("Authorization Violation"),
        auth_required=True,
        certificate_required=False,
        tls_first=False,
        login=by_environment,
    )
    assert str(error).startswith(
        "the NATS server at nats://a:1 refuses these credentials, user 'u' from $TIDELOG_NATS_USER and"
        " $TIDELOG_NATS_PASSWORD ("
    )


def test_a_reset_by_a_server_that_wants_a_certificate_is_a_refusal() -> None:
    """It may overtake the alert that says why."""

    def told(*, certificate_required: bool) -> NatsUnavailable:
        return unavailable(
            "nats://a:1",
            ConnectionResetError("reset by peer"),
            auth_required=False,
            certificate_required=certificate_required,
            tls_first=False,
            login="",
        )

    refusal = told(certificate_required=True)
    assert isinstance(refusal, NatsRefused)
    assert str(refusal).endswith("give the right certificates")
    assert not isinstance(told(certificate_required=False), NatsRefused)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
async def test_a_file_of_tls_that_is_missing_is_named_with_its_setting(tmp_path: Path, name: str) -> None:
    files = {each: tmp_path / f"{each}.pem" for each in ("ca", "cert", "key")}
    for each, file in files.items():
        if each != name:
            file.touch()
    words = rf"\({name}, --tls-{name}, \$TIDELOG_NATS_{name.upper()}\) {files[name]} cannot be read: No such file"
    with pytest.raises(NatsRefused, match=words):
        await LiveLogin(NatsLogin(ca=files["ca"], cert=files["cert"], key=files["key"]), tls_by_url=False).read()


def test_the_highest_source_decides_which_kind_of_login_it_is() -> None:
    environment = {"TIDELOG_NATS_CREDS": "/some.creds", "TIDELOG_NATS_CERT": "/c.pem", "TIDELOG_NATS_KEY": "/k.pem"}
    login = find({"token": "t"}, environment).login
    assert login == NatsLogin(token="t", cert=Path("/c.pem"), key=Path("/k.pem"))
    assert find({"cert": "/o.pem"}, environment).login.key is None, "certificate and key are one"


def test_the_login_in_a_url_counts_for_the_source_of_the_url() -> None:
    environment = {"TIDELOG_NATS_USER": "u", "TIDELOG_NATS_PASSWORD": "pw"}
    assert find({}, environment, servers=["nats://v:w@a:1"]).login.identity is None
    assert find({}, {**environment, "TIDELOG_SERVER": "nats://v:w@a:1"}).login.user == "u"
    assert find({"user": "x", "password": "y"}, {}, servers=["nats://v:w@a:1"]).login.user == "x"


def test_a_context_that_is_in_the_environment_only_counts_for_its_own_servers(tmp_path: Path) -> None:
    environment = {**context(tmp_path, url="nats://d:1", user="d", password="pd"), "NATS_CONTEXT": "prod"}
    assert find({}, environment).login.user == "d"
    assert find({}, environment, servers=["nats://d:1"]).login.user == "d"
    assert find({}, environment, servers=["nats://elsewhere:1"]).login.identity is None
    missing = {**environment, "NATS_CONTEXT": "missing"}
    assert find({}, missing, servers=["nats://elsewhere:1"]).login.identity is None
    with pytest.raises(TidelogError, match=r"the context 'missing' cannot be read .*missing\.json"):
        find({}, missing)


def test_a_file_names_a_context_and_the_environment_names_a_file(tmp_path: Path) -> None:
    environment = context(tmp_path, url="nats://d:1,nats://d:2", token="t")
    file = toml(tmp_path, '[login]\ncontext = "prod"\n')
    found = find({}, {**environment, "TIDELOG_NATS_LOGIN": str(file)})
    assert (found.servers, found.login.token) == (("nats://d:1", "nats://d:2"), "t")
    assert found.secret_files == (tmp_path / "nats" / "context" / "prod.json",)


@pytest.mark.parametrize(
    ("text", "environment", "words"),
    [
        ("[login]\ncolour = 1", {}, "[login] has no setting 'colour'; known: context, inbox_prefix, user,"),
        ("login = 3", {}, "login is no table"),
        ("[login]\nuser = 3", {}, "user is not a text"),
        ("[login]\ntls = 'yes'", {}, "tls is not true or false"),
        ("[login]\nuser = 'u'\ntoken = 'secret-word'", {}, "user and token are both given"),
        ("[login]\npassword = 'secret-word'\npassword_file = 'x'", {}, "password and password_file are both given"),
        ("[login]\nuser = 'u'", {}, "the user 'u' is given without a password"),
        ("[login]\nkey = 'k'", {}, "without a certificate"),
        ("[login]\nuser = 'u'\npassword_file = 'missing'", {}, "missing cannot be read: No such file"),
        ("nats = 'nats://u:secret-word@'\n[login", {}, "not TOML"),
        ("nats = ['nats://u:secret-word@h', 3]", {}, "nats is no URL"),
        ("", {"TIDELOG_NATS_PASSWORD": "secret-word"}, "a password is given without a user"),
        ("", {"TIDELOG_NATS_TLS": "yes"}, "TIDELOG_NATS_TLS='yes' is neither true nor false"),
    ],
)
def test_a_refusal_names_what_is_wrong_and_no_secret(
    text: str, environment: dict[str, str], words: str, tmp_path: Path
) -> None:
    given = sources({}, environment, files=[toml(tmp_path, text)])
    with pytest.raises(TidelogError) as caught:
        given.find()
    assert caught.value.code is Code.BAD_CONFIG
    assert words in caught.value.message
    assert "secret-word" not in caught.value.message
    with pytest.raises(NatsRefused):
        given.login()


def test_contexts_that_need_what_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TidelogError, match="has a login of nsc"):
        find({}, context(tmp_path, nsc="nsc://x"), context="prod")
    with pytest.raises(TidelogError, match="tls_first is of a wrong kind"):
        find({}, context(tmp_path, tls_first="yes"), context="prod")


def test_secrets_are_not_in_the_text_of_a_login() -> None:
    found = find({"user": "u", "password": "secret-word"})
    assert "secret-word" not in repr(found)
    assert "secret-word" not in repr(NatsLogin(token="secret-word"))


@pytest.mark.parametrize("secret", ["pw", "p/w", "p#w", "p@w", "p?w", "p%2Fw"])
def test_urls_are_shown_without_their_secrets(secret: str) -> None:
    for url in (f"nats://u:{secret}@host:4222", f"u:{secret}@host:4222"):
        assert without_secrets(url) == "nats://host:4222"
        plain, login = split_url(url)
        check_url(plain)
        assert plain == "nats://host:4222"
        assert login == NatsLogin(user="u", password=secret.replace("%2F", "/"))


def test_open_files_are_named_once_with_the_remedy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    closed, opened, folder = tmp_path / "closed", tmp_path / "opened", tmp_path / "folder"
    for file, mode in ((closed, 0o600), (opened, 0o644)):
        file.touch()
        file.chmod(mode)
    folder.mkdir()
    folder.chmod(0o755)
    for _ in range(2):
        warn_of_open([closed, opened, folder, tmp_path / "missing"])
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert f"{opened} is open to other users of this machine (mode 0644)" in caplog.text
    assert f"chmod 0700 {folder}" in caplog.text
