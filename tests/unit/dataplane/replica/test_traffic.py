"""Totals and rates of what clients send and are sent."""

from __future__ import annotations

from dataplane.replica.traffic import SLOTS, TrafficMeter


def test_nothing_was_counted() -> None:
    assert set(TrafficMeter().report(1e6).values()) == {0}


def test_totals_last_and_rates_are_of_the_last_minute() -> None:
    meter = TrafficMeter()
    for second in range(1000, 1120):
        meter.on_in(10, 1000, float(second))
    meter.on_out(300, 60_000, 1119.0)
    told = meter.report(1120.0)
    assert (told["records_in"], told["bytes_in"], told["records_out"], told["bytes_out"]) == (
        1200,
        120_000,
        300,
        60_000,
    )
    assert (told["records_in_per_s"], told["bytes_in_per_s"]) == (10.0, 1000.0)
    assert told["records_out_per_s"] == round(300 / 55, 3), "eleven whole slots, and the twelfth has just begun"
    later = meter.report(1300.0)
    assert (later["records_in"], later["records_in_per_s"], later["bytes_out_per_s"]) == (1200, 0.0, 0.0)


def test_a_meter_that_is_young_divides_by_the_time_that_it_has_counted() -> None:
    meter = TrafficMeter()
    for second in range(10):
        meter.on_in(6, 60, 1000.0 + second)
    assert meter.report(1010.0)["records_in_per_s"] == 6.0


def test_a_single_record_is_no_burst() -> None:
    meter = TrafficMeter()
    meter.on_in(1, 100, 1000.0)
    assert meter.report(1000.0)["records_in_per_s"] == 1.0
    assert meter.report(1050.0)["records_in_per_s"] == 0.02


def test_slots_are_bounded() -> None:
    meter = TrafficMeter()
    for second in range(5000):
        meter.on_out(1, 1, float(second))
    assert len(meter._slots) == SLOTS
