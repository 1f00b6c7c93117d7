"""The runner of transcripts itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import datadriven
from tests.datadriven import Command, ScriptError

SCRIPT = "# A history.\n\nsay hello\nsay twice=yes hello\n----\nhello\nhello hello\n\n# The end.\n"


def say(command: Command) -> Sequence[str]:
    command.check_options("twice")
    return [" ".join(command.words * (2 if "twice" in command.options else 1))]


def test_a_transcript_that_prints_what_it_says_passes_and_is_rewritten_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    path.write_text(SCRIPT)
    datadriven.run(path, say, rewrite=False)
    datadriven.run(path, say, rewrite=True)
    assert path.read_text() == SCRIPT


def test_another_output_fails_and_is_written_down_only_when_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "history.txt"
    path.write_text(SCRIPT.replace("hello hello", "goodbye"))
    with pytest.raises(AssertionError, match=r"history\.txt:3"):
        datadriven.run(path, say, rewrite=False)
    datadriven.run(path, say, rewrite=True)
    assert path.read_text() == SCRIPT


@pytest.mark.parametrize("text", ["say hello\n", "say hello\n\n----\n", "say thrice=yes\n----\n", "say\n----\n"])
def test_a_wrong_transcript_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.txt"
    path.write_text(text)
    with pytest.raises(ScriptError, match="line 1"):
        datadriven.run(path, say, rewrite=True)
