"""`tidelog context`, and what commands make of a context."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.cli import main
from tidelog.cli.terminal import login_options, session
from tidelog.nats.login_contexts import names


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the configuration, with a context of the `nats` CLI in it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variable in ("TIDELOG_SERVER", "NATS_CONTEXT", "TIDELOG_NATS_LOGIN", "TIDELOG_NAMESPACE"):
        monkeypatch.delenv(variable, raising=False)
    of_nats = tmp_path / "nats" / "context" / "ngs.json"
    of_nats.parent.mkdir(parents=True)
    of_nats.write_text(json.dumps({"url": "nats://n1:4222", "token": "secret"}))
    return tmp_path


@pytest.fixture
def connects(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What commands connect with; they do nothing else."""
    seen: list[dict[str, Any]] = []

    async def connected(
        server: str | None, namespace: str, _work: object, _waits: bool, _reports: bool, login: dict[str, Any]
    ) -> None:
        seen.append({"server": server, "namespace": namespace, **login})

    monkeypatch.setattr(session, "_connected", connected)
    return seen


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def done(*arguments: str) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_add_list_show_remove(home: Path, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hidden\n")
    done(
        "context", "add", "prod", "--server", "tls://n1:4222,tls://n2:4222", "--user", "orders",
        "--password-file", str(password), "--namespace", "shop", "--description", 'the "real" one',
    )  # fmt: skip
    file = home / "tidelog" / "contexts" / "prod.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert "hidden" not in file.read_text()
    (ngs, prod) = json.loads(done("context", "list", "--json"))
    assert (ngs["name"], ngs["of"], ngs["login"], ngs["servers"]) == ("ngs", "nats", "token", "nats://n1:4222")
    assert prod == {
        "name": "prod", "of": "tidelog", "file": str(file), "servers": "tls://n1:4222, tls://n2:4222",
        "login": "user orders", "namespace": "shop", "in_use": False,
    }  # fmt: skip
    assert "user orders" in done("context", "show", "prod")
    table = done("context", "list")
    assert "prod" in table
    assert "ngs" in table
    assert "secret" not in table
    done("context", "remove", "prod")
    assert not file.exists()
    assert password.exists()
    result = invoke("context", "remove", "ngs")
    assert result.exit_code == 1
    assert "no context 'ngs' of Tidelog's" in result.stderr


def test_a_context_gives_servers_login_and_namespace(connects: list[dict[str, Any]]) -> None:
    done("context", "add", "prod", "--server", "nats://n1:4222", "--namespace", "shop")
    done("stream", "list", "--context", "prod")
    done("stream", "list", "--context", "prod", "--namespace", "other")
    done("stream", "list")
    assert connects == [
        {"server": None, "namespace": "shop", "context": "prod"},
        {"server": None, "namespace": "other", "context": "prod"},
        {"server": None, "namespace": "tidelog"},
    ]


def test_the_one_in_use_counts_where_nothing_else_says_which(
    connects: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "commands use the context prod" in done(
        "context", "add", "prod", "--server", "nats://n1:4222", "--namespace", "shop", "--use"
    )
    done("stream", "list")
    done("stream", "list", "--server", "nats://n9:4222")
    done("stream", "list", "--context", "ngs")
    monkeypatch.setenv("TIDELOG_SERVER", "nats://n8:4222")
    done("stream", "list")
    monkeypatch.delenv("TIDELOG_SERVER")
    done("context", "use", "ngs")
    done("stream", "list")
    done("context", "use", "--none")
    done("stream", "list")
    assert connects == [
        {"server": None, "namespace": "shop", "context": "prod"},
        {"server": "nats://n9:4222", "namespace": "tidelog"},
        {"server": None, "namespace": "tidelog", "context": "ngs"},
        {"server": None, "namespace": "tidelog"},
        {"server": None, "namespace": "tidelog", "context": "ngs"},
        {"server": None, "namespace": "tidelog"},
    ]


def test_the_one_in_use_that_is_removed_is_used_no_more(home: Path, connects: list[dict[str, Any]]) -> None:
    done("context", "add", "prod", "--server", "nats://n1:4222", "--use")
    done("context", "remove", "prod")
    done("stream", "list")
    assert connects == [{"server": None, "namespace": "tidelog"}]
    done("context", "add", "prod", "--server", "nats://n1:4222", "--use")
    (home / "tidelog" / "contexts" / "prod.toml").unlink()
    result = invoke("stream", "list")
    assert result.exit_code == 1
    assert "the context 'prod' cannot be read" in result.stderr
    assert "tidelog context list" in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["../prod", "--server", "nats://n1"], "'../prod' is no name of a context"),
        (["-x", "--server", "nats://n1"], "No such option"),
        (["prod"], "Missing option '--server'"),
        (["prod", "--server", ","], "is no URL"),
        (["prod", "--server", "nats://n1", "--user", "u"], "the user 'u' is given without a password"),
        (["prod", "--server", "nats://n1", "--user", "u", "--token-file", "t"], "user and token_file are both given"),
        (["prod", "--server", "nats://n1", "--token-file", "/nowhere/t"], "token_file /nowhere/t cannot be read"),
        (["prod", "--server", "nats://n1", "--namespace", "a.b"], "namespace"),
        (["prod", "--server", "nats://n1", "--inbox-prefix", "a b"], "inbox"),
    ],
)
def test_what_cannot_be_is_not_written(home: Path, given: list[str], said: str) -> None:
    result = invoke("context", "add", *given)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (home / "tidelog").exists()


def test_a_context_that_is_there_is_kept(home: Path) -> None:
    done("context", "add", "prod", "--server", "nats://n1:4222")
    result = invoke("context", "add", "prod", "--server", "nats://n2:4222")
    assert result.exit_code == 1
    assert "add --replace" in result.stderr
    done("context", "add", "prod", "--server", "nats://n2:4222", "--replace")
    assert "nats://n2:4222" in done("context", "show", "prod")


def test_one_that_cannot_be_read_is_listed_with_the_reason(home: Path) -> None:
    file = home / "tidelog" / "contexts" / "broken.toml"
    file.parent.mkdir(parents=True)
    file.write_text("nats = 5")
    (broken, _) = json.loads(done("context", "list", "--json"))
    assert "nats=5 is no URL" in broken["error"]
    assert "is no URL" in done("context", "list")
    assert invoke("context", "show", "broken").exit_code == 1
    assert invoke("context", "use", "nowhere").exit_code == 1
    assert invoke("context", "use").exit_code == 2
    assert invoke("context", "use", "broken", "--none").exit_code == 2


def test_tidelogs_own_goes_before_one_of_the_nats_cli(home: Path) -> None:
    done("context", "add", "ngs", "--server", "nats://mine:4222")
    assert names({"XDG_CONFIG_HOME": str(home)})["ngs"].suffix == ".toml"
    assert json.loads(done("context", "show", "ngs", "--json"))["servers"] == "nats://mine:4222"


def test_texts_with_any_character_are_read_again(home: Path) -> None:
    text = 'a "quoted" \\ text,\nwith \x7f, \x01 and ü \N{SNOWMAN} \N{GRINNING FACE}'
    done("context", "add", "odd", "--server", "nats://n1:4222", "--description", text)
    done("context", "show", "odd")


def test_names_are_completed(home: Path) -> None:
    done("context", "add", "prod", "--server", "nats://n1:4222")
    found = login_options._context_names(None, None, "p")  # type: ignore[arg-type]
    assert [item.value for item in found] == ["prod"]
