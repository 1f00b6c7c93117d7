"""A broker accepts well-formed master keys, and no message ever shows one."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys, keys_from_file, keys_from_text
from wire.errors import Code, TidelogError

SECRET = bytes(range(100, 132))
HEX = SECRET.hex()
BASE64 = base64.b64encode(SECRET).decode()


@pytest.mark.parametrize("text", [HEX, HEX.upper(), BASE64, f" {HEX}\n", f"default:{HEX}"])
def test_the_environment_holds_one_key_in_hexadecimal_or_base64(text: str) -> None:
    assert keys_from_text(text).keys == (MasterKey("default", SECRET),)


def test_a_key_of_the_environment_may_have_an_id() -> None:
    assert keys_from_text(f"2026-11:{BASE64}").ids == ("2026-11",)


def test_in_a_file_the_first_key_wraps_and_all_are_found(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# newest first\n\n2026-11 {BASE64} # since November\n2026-05\t{'ab' * 32}\n")
    keys = keys_from_file(file)
    assert keys.ids == ("2026-11", "2026-05")
    assert keys.wrapping == MasterKey("2026-11", SECRET)
    assert keys.find("2026-05") == MasterKey("2026-05", b"\xab" * 32)
    assert keys.find("2025-11") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no key"),
        ("# nothing\n", "has no key"),
        (HEX, "line 1 is not of the form ID KEY"),
        (f"a {HEX} {HEX}", "line 1 is not of the form ID KEY"),
        (f"a {HEX}\na {BASE64}", "line 2: the id 'a' was given before"),
        (f"{HEX} a", "line 1: a key's id has 1 to 16"),
        (f"a {HEX[:-2]}", "line 1: the master key 'a' is not 32 bytes"),
        (f"\na {BASE64[:-8]}", "line 2: the master key 'a' is not 32 bytes"),
        (f"a {HEX[:-1]}x", "line 1: the master key 'a' is not 32 bytes"),
        (f"a {BASE64}é", "line 1: the master key 'a' is not 32 bytes"),
        (f"ä {HEX}", "line 1: a key's id has 1 to 16"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_line_and_without_the_key(
    tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(TidelogError) as caught:
        keys_from_file(file)
    assert caught.value.code is Code.BAD_CONFIG
    assert said in caught.value.message
    assert HEX[:10] not in repr(caught.value)
    assert BASE64[:10] not in repr(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TidelogError, match="is no text" if content else "cannot be read: No such file"):
        keys_from_file(file)


def test_only_the_ids_of_keys_are_shown() -> None:
    keys = MasterKeys((MasterKey("a", SECRET),))
    data_key = Keyring(keys).new_data_key()
    for shown in (repr(keys), repr(keys.wrapping), repr(data_key), str(data_key)):
        assert "'a'" in shown
        assert repr(SECRET)[2:10] not in shown
        assert "secret" not in shown
