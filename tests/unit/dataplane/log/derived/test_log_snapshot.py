"""The file of the derived state: its content, and that no other bytes are taken for it."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from dataplane.log.derived import log_snapshot as snapshot_module
from dataplane.log.derived.log_snapshot import Section, Snapshot, decode_snapshot, encode_snapshot
from dataplane.replica.derived.epochs import EpochEntry
from dataplane.replica.derived.producer_table import MAX_PRODUCERS, ProducerTable
from tests.unit.dataplane.replica.derived.test_producers import header
from tests.unit.dataplane.replica.derived.test_transactions import ONE, TWO, abort, data
from wire.errors import CorruptData
from wire.types import LeaderEpoch, Offset

PRODUCERS = ProducerTable(
    [header(0, 0, 3), header(3, 0, 2, producer=9, epoch=4)._replace(append_time=1 << 60), header(5, 3, 2)]
).known
EPOCHS = (EpochEntry(LeaderEpoch(1), Offset(0)), EpochEntry(LeaderEpoch(4), Offset(3)))
UNKNOWN = (
    Section("queues", 3, Offset(5), b"\x00\xffwhatever"),
    Section("producers", 3, Offset(7), b"of a later version"),
    Section("empty", 1, Offset(0), b""),
)
SNAPSHOT = Snapshot(Offset(7), EPOCHS, PRODUCERS, UNKNOWN)
TRANSACTIONS = ProducerTable([header(0, 0, 3), data(3), data(4, TWO), abort(5, TWO), data(6, sequence=1)]).known
"""Of them an open one, and an aborted one whose marker is not known to be committed."""


def test_decoding_gives_the_encoded_state() -> None:
    assert decode_snapshot(encode_snapshot(SNAPSHOT)) == SNAPSHOT
    assert decode_snapshot(encode_snapshot(Snapshot(Offset(0)))) == Snapshot(Offset(0))


def test_every_flipped_bit_is_seen() -> None:
    content = bytearray(encode_snapshot(SNAPSHOT))
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData):
            decode_snapshot(bytes(content))
        content[bit // 8] ^= 1 << bit % 8


def test_every_cut_and_every_addition_is_seen() -> None:
    content = encode_snapshot(SNAPSHOT)
    for size in range(len(content)):
        with pytest.raises(CorruptData):
            decode_snapshot(content[:size])
    with pytest.raises(CorruptData):
        decode_snapshot(content + b"\0")


def test_a_section_of_ours_in_another_version_is_carried_and_leaves_no_state_to_go_on_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = encode_snapshot(SNAPSHOT)
    monkeypatch.setattr("dataplane.log.derived.log_snapshot._SECTION_VERSION", 2)
    found = decode_snapshot(encode_snapshot(Snapshot(Offset(7), EPOCHS, PRODUCERS)))
    assert found.is_whole
    found = decode_snapshot(content)
    assert (found.is_whole, found.epochs) == (False, ())
    assert {(section.name, section.version) for section in found.carried} >= {("leader-epochs", 1), ("producers", 1)}


def test_a_file_of_an_earlier_version_has_no_times() -> None:
    """That version knows one of the two producer sections, and carries the other on from an older snapshot."""
    section = encode_snapshot(SNAPSHOT).index(b"producer-times")
    earlier = bytearray(encode_snapshot(SNAPSHOT))
    facts = struct.Struct("<HHIqQ")
    at = section - facts.size - 8
    name_size, zero, version, _, size = facts.unpack_from(earlier, at)
    facts.pack_into(earlier, at, name_size, zero, version, 5, size)
    crc = crc32c(earlier[section : section + name_size + size], crc32c(earlier[at : at + facts.size]))
    struct.pack_into("<I", earlier, at + facts.size, crc)
    struct.pack_into("<I", earlier, len(earlier) - 4, crc32c(earlier[:-4]))
    found = decode_snapshot(bytes(earlier))
    assert found.is_whole
    assert found.producers.producers.keys() == PRODUCERS.producers.keys()
    assert (found.producers.forgotten, found.producers.time) == (-1, 0)
    assert [section.name for section in found.carried] == [section.name for section in UNKNOWN]


def test_a_section_cannot_hold_above_its_snapshot() -> None:
    with pytest.raises(CorruptData, match="holds at 8"):
        decode_snapshot(encode_snapshot(Snapshot(Offset(7), carried=(Section("queues", 1, Offset(8), b""),))))


def test_an_epoch_that_begins_at_the_offset_is_not_of_the_records_below_it() -> None:
    with pytest.raises(CorruptData, match="begins at or above"):
        decode_snapshot(encode_snapshot(Snapshot(Offset(3), EPOCHS)))


def test_as_many_producers_as_are_remembered_fit_and_keep_their_order() -> None:
    table = ProducerTable(header(n, 0, producer=2 * MAX_PRODUCERS - n) for n in range(MAX_PRODUCERS + 5))
    again = ProducerTable()
    again.restore(decode_snapshot(encode_snapshot(Snapshot(Offset(MAX_PRODUCERS + 5), (), table.known))).producers)
    for one in (table, again):
        one.record(header(MAX_PRODUCERS + 5, 0, producer=7))
    assert again.known == table.known
    assert list(again.known.producers) == list(table.known.producers)
    assert len(again) == MAX_PRODUCERS


def test_transactions_are_part_of_the_state() -> None:
    snapshot = Snapshot(Offset(7), EPOCHS, TRANSACTIONS, UNKNOWN)
    found = decode_snapshot(encode_snapshot(snapshot))
    assert found == snapshot
    assert list(found.producers.transactional) == [TWO, ONE]
    assert list(found.producers.transactions.open) == [ONE]
    assert [each.producer_id for each in found.producers.transactions.aborted] == [TWO]


def test_a_log_without_transactions_has_the_sections_that_earlier_versions_know() -> None:
    assert b"transaction" not in encode_snapshot(SNAPSHOT)


def test_a_snapshot_of_a_version_that_carried_the_transactions_on_is_no_state_to_go_on_from() -> None:
    """That version took no notice of the batches behind the offset at which they hold."""
    at_6 = encode_snapshot(Snapshot(Offset(6), EPOCHS, TRANSACTIONS))
    carried = _sections_of(at_6)
    assert list(carried) == ["leader-epochs", "producers", "producer-times", "transactional-producers", "transactions"]
    for names in (["transactional-producers", "transactions"], ["transactions"], ["transactional-producers"]):
        later = Snapshot(Offset(7), EPOCHS, PRODUCERS, tuple(carried[name] for name in names))
        found = decode_snapshot(encode_snapshot(later))
        assert (found.is_whole, found.carried) == (False, ())
        assert not found.producers.transactional


def test_a_snapshot_of_a_version_that_took_transactional_producers_for_others_is_no_state_to_go_on_from() -> None:
    taken = PRODUCERS._replace(producers={**PRODUCERS.producers, **TRANSACTIONS.transactional})
    assert not decode_snapshot(encode_snapshot(Snapshot(Offset(7), EPOCHS, taken))).is_whole


def test_transactions_in_the_form_of_a_later_version_are_carried_and_leave_no_state_to_go_on_from() -> None:
    section = Section("transactions", 2, Offset(7), b"of a later version")
    found = decode_snapshot(encode_snapshot(Snapshot(Offset(7), EPOCHS, PRODUCERS, (section,))))
    assert (found.is_whole, found.carried) == (False, (section,))


@pytest.mark.parametrize("name", ["transactions", "transactional-producers"])
def test_sections_of_transactions_that_contradict_themselves_are_damage(name: str) -> None:
    sections = _sections_of(encode_snapshot(Snapshot(Offset(7), EPOCHS, TRANSACTIONS)))
    sections[name] = sections[name]._replace(payload=sections[name].payload[:-1])
    both = sections["transactional-producers"], sections["transactions"]
    with pytest.raises(CorruptData):
        decode_snapshot(encode_snapshot(Snapshot(Offset(7), EPOCHS, PRODUCERS, both)))


def _sections_of(content: bytes) -> dict[str, Section]:
    at, found = snapshot_module._HEADER.size, {}
    while at < len(content) - 4:
        section, at = snapshot_module._decode_section(content, at, len(content) - 4)
        found[section.name] = section
    return found
