"""The ways to run a Spark job on the connector that docs/spark.md names, each on a Python that does not have Tidelog
installed, only what Tidelog needs."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import tidelog
from spark_connector.java import ensure_java
from tests.integration.spark.spark_session import ROOT, local_spark
from tidelog.process.loopback import free_ports
from tidelog.server.devcluster import DevCluster

pytestmark = pytest.mark.timeout(900)

SPARK_HOME = Path(pyspark.__file__).parent
JOB = ROOT / "tests" / "integration" / "spark" / "deployed_job.py"
RECORDS = 1_000
LIMIT = 240.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def stream(cluster: DevCluster) -> str:
    async def publish() -> None:
        async with await tidelog.connect(cluster.nats_url) as client:
            await client.create_stream("deployed", partitions=2, replication_factor=3)
            async with client.producer("deployed") as producer:
                await producer.send_many([b"%d" % number for number in range(RECORDS)])

    asyncio.run(publish())
    return "deployed"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with our dependencies and without us."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    packages = next((folder / "lib").glob("python*/site-packages"))
    # The .pth file of an editable install, in a folder that is named by such a file, is not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    python = str(folder / "bin" / "python")
    probe = (
        "import importlib.util as u, pyarrow, pyspark; print(u.find_spec('tidelog'), u.find_spec('spark_connector'))"
    )
    done = subprocess.run([python, "-c", probe], cwd=folder, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["None", "None"]
    return python


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `site` with our packages, `tidelog.zip` and `tidelog.tar.gz` of it."""
    folder = tmp_path_factory.mktemp("packages")
    for package in ("spark_connector", "tidelog", "wire"):
        shutil.copytree(ROOT / package, folder / "site" / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "spark_connector" / "autoload" / "pyspark_tidelog.py", folder / "site")
    for kind in ("zip", "gztar"):
        shutil.make_archive(str(folder / "tidelog"), kind, folder / "site")
    return folder


def environment(**more: str) -> dict[str, str]:
    ensure_java()
    return {**os.environ, "PYTHONPATH": "", "SPARK_HOME": str(SPARK_HOME), **more}


def submit(python: str, folder: Path, path: Path, *arguments: str) -> str:
    """What the job prints. `path`: for the Python processes of the driver."""
    settings = [text for name, value in SETTINGS.items() for text in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(SPARK_HOME / "bin" / "spark-submit"), *settings, *arguments, str(folder)],
        capture_output=True, text=True, timeout=LIMIT, check=False, cwd=folder,
        env=environment(PYTHONPATH=str(path), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@contextmanager
def running(folder: Path, name: str, sign: str, *command: str, **more: str) -> Iterator[None]:
    """A server of Spark's, once its log has the sign."""
    log = folder / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, cwd=folder, env=environment(**more), start_new_session=True
        )
    try:
        deadline = time.monotonic() + LIMIT
        while sign not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{name} does not end:\n{log.read_text(errors='replace')[-3000:]}") from None


def test_py_files_on_a_local_cluster(
    cluster: DevCluster, stream: str, bare_python: str, packages: Path, tmp_path: Path
) -> None:
    """The executor is a process of its own, which has the packages from --py-files alone."""
    zipped = packages / "tidelog.zip"
    found = submit(
        bare_python, tmp_path, zipped,
        "--master", "local-cluster[1,2,1024]", "--py-files", str(zipped), str(JOB), cluster.nats_url, stream,
    )  # fmt: skip
    assert found.split() == ["batch", f"{RECORDS}", "stream", f"{RECORDS}"]


def test_archives_on_a_standalone_cluster(
    cluster: DevCluster, stream: str, bare_python: str, packages: Path, tmp_path: Path
) -> None:
    port, *webs = map(str, free_ports(3))
    spark_class, deploy = str(SPARK_HOME / "bin" / "spark-class"), "org.apache.spark.deploy"
    master = f"spark://127.0.0.1:{port}"
    with (
        running(
            tmp_path, "master", "New state: ALIVE",
            spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", webs[0],
        ),
        running(
            tmp_path, "worker", "Successfully registered with master",
            spark_class, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--webui-port", webs[1],
            "--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work"), master,
        ),
    ):  # fmt: skip
        found = submit(
            bare_python, tmp_path, packages / "site",
            "--master", master, "--archives", f"{packages / 'tidelog.tar.gz'}#tidelog",
            "--conf", "spark.executorEnv.PYTHONPATH=./tidelog", str(JOB), cluster.nats_url, stream,
        )  # fmt: skip
    assert found.split() == ["batch", f"{RECORDS}", "stream", f"{RECORDS}"]


@pytest.fixture(scope="module")
def connect_server(bare_python: str, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of Spark Connect."""
    pytest.importorskip("grpc_status", reason="needs grpcio-status")
    folder = tmp_path_factory.mktemp("connect")
    (port,) = free_ports(1)
    settings = {
        **SETTINGS,
        "spark.connect.grpc.binding.port": f"{port}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    with running(
        folder, "connect", "Spark Connect server started",
        str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]",
        *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
        PYTHONPATH=str(packages / "site"), PYSPARK_PYTHON=bare_python,
    ):  # fmt: skip
        yield f"sc://127.0.0.1:{port}"


def test_a_client_of_spark_connect_needs_nothing_of_ours(
    connect_server: str, cluster: DevCluster, stream: str, bare_python: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [bare_python, str(JOB), cluster.nats_url, stream, str(tmp_path)],
        capture_output=True, text=True, timeout=LIMIT, check=False, cwd=tmp_path,
        env=environment(SPARK_REMOTE=connect_server),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["batch", f"{RECORDS}", "stream", f"{RECORDS}"]


PIPELINE = """
name: deployed
storage: file://{folder}/storage
libraries:
  - glob:
      include: tables/**
"""

TABLES = """
from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@pipelines.table
def records() -> DataFrame:
    return (
        spark.readStream.format("tidelog")
        .option("servers", "{servers}")
        .option("subscribe", "{stream}")
        .option("startingOffsets", "earliest")
        .load()
    )


@pipelines.materialized_view
def numbers() -> DataFrame:
    return spark.read.table("records").selectExpr("cast(cast(value AS string) AS int) AS number")
"""


def test_a_declarative_pipeline_reads_a_stream(
    connect_server: str, cluster: DevCluster, stream: str, bare_python: str, tmp_path: Path
) -> None:
    pytest.importorskip("yaml", reason="needs PyYAML")
    (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(folder=tmp_path))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "tables.py").write_text(TABLES.format(servers=cluster.nats_url, stream=stream))
    done = subprocess.run(
        [bare_python, str(SPARK_HOME / "pipelines" / "cli.py"), "run"],
        capture_output=True, text=True, timeout=LIMIT, check=False, cwd=tmp_path,
        env=environment(SPARK_REMOTE=connect_server),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    read = "from pyspark.sql import SparkSession as S; print(S.builder.getOrCreate().table('numbers').count())"
    counted = subprocess.run(
        [bare_python, "-c", read],
        capture_output=True, text=True, timeout=LIMIT, check=False, cwd=tmp_path,
        env=environment(SPARK_REMOTE=connect_server),
    )  # fmt: skip
    assert counted.stdout.split() == [f"{RECORDS}"], counted.stderr[-3000:]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = str(tmp_path_factory.mktemp("warehouse"))
    with local_spark("test_spark_deploying", spark__sql__warehouse__dir=warehouse) as session:
        yield session


def test_sql_reads_a_temporary_view(spark: SparkSession, cluster: DevCluster, stream: str) -> None:
    options = f"servers '{cluster.nats_url}', subscribe '{stream}'"
    spark.sql(f"CREATE TEMPORARY VIEW deployed USING tidelog OPTIONS ({options})")
    (row,) = spark.sql("SELECT count(DISTINCT value) AS found FROM deployed").collect()
    assert row.found == RECORDS


def test_a_table_in_the_catalog_is_refused_with_what_to_do_instead(
    spark: SparkSession, cluster: DevCluster, stream: str
) -> None:
    options = f"servers '{cluster.nats_url}', subscribe '{stream}'"
    instead = r"CREATE TEMPORARY VIEW name USING tidelog OPTIONS \(…\)"
    with pytest.raises(PySparkException, match=instead):
        spark.sql(f"CREATE TABLE deployed_table USING tidelog OPTIONS ({options})")
    # Spark asks the source for nothing here, and hands it no options later.
    spark.sql(f"CREATE TABLE declared (value BINARY) USING tidelog OPTIONS ({options})")
    with pytest.raises(PySparkException, match=instead):
        spark.sql("SELECT * FROM declared").collect()
