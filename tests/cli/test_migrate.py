"""`imex migrate`: arguments, formats, exit codes; and that only --write writes."""

import errno
import json
import os
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from imex_dra.cli import imex
from tests.cli.test_status import written
from tests.diagnose.healthy import Broken
from tests.diagnose.test_retirement import legacy_pod
from tests.migrate.test_migration import LEGACY, MIGRATED


def run(*arguments: str | Path, stdin: str | None = None) -> Result:
    return CliRunner().invoke(imex, ["migrate", *map(str, arguments)], prog_name="imex", input=stdin)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(LEGACY)
    return path


def test_a_diff_is_shown_and_nothing_is_written(file: Path) -> None:
    done = run(file)
    assert done.exit_code == 1
    assert done.stdout.startswith(
        f"--- {file}\n+++ {file}\n@@ -1,3 +1,13 @@\n+apiVersion: resource.nvidia.com/v1beta1\n"
    )
    assert "-        - name: NVIDIA_IMEX_CHANNELS\n" in done.stdout
    assert done.stderr.endswith("1 file would be changed; use --write\n")
    assert file.read_text() == LEGACY


def test_a_file_that_cannot_be_written_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path, content: bytes, *, mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("imex_dra.cli.migrate.write_atomically", fail)
    done = run("--write", file)
    assert done.exit_code == 2
    cause = "Read-only file system; correct that, and run it again"
    assert done.stderr == f"imex: {file} cannot be written: {cause}\n"
    assert file.read_text() == LEGACY


def test_write_writes_and_keeps_mode_byte_order_mark_and_links(file: Path) -> None:
    file.write_text(LEGACY, encoding="utf-8-sig")
    file.chmod(0o640)
    link = file.with_name("link.yaml")
    link.symlink_to(file)
    done = run("--write", link)
    assert done.exit_code == 0
    assert link.is_symlink()
    assert file.read_bytes() == b"\xef\xbb\xbf" + MIGRATED.encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert run(file).exit_code == 0
    assert run(file).stderr == "nothing to change\n"


def test_files_is_the_default_and_directories_are_searched(file: Path) -> None:
    assert run("files", file).stdout == run(file).stdout
    assert run(file.parent).stdout == run(file).stdout


def test_standard_input_is_read_and_never_written() -> None:
    assert "+++ -\n" in run("-", stdin=LEGACY).stdout
    assert run("--write", "-", stdin=LEGACY).exit_code == 2


def test_what_is_left_to_do_exits_with_1(file: Path) -> None:
    file.write_text(LEGACY.replace("parallelism: 4 ", "parallelism: 19"))
    done = run("--write", file)
    assert done.exit_code == 1
    assert "warning IMEX140" in done.stderr


def test_a_file_that_is_no_yaml_exits_with_2(file: Path) -> None:
    file.write_text("a: [")
    done = run("--write", file)
    assert (done.exit_code, file.read_text()) == (2, "a: [")
    assert "no valid YAML" in done.stderr


def test_cluster_lists_the_steps(tmp_path: Path) -> None:
    broken = Broken()
    broken.add("pods", legacy_pod("old-0", "r1-n01"))
    objects = tmp_path / "objects.yaml"
    objects.write_text(yaml.safe_dump_all([obj for found in broken.objects.values() for obj in found]))
    done = run("cluster", "--from", objects)
    assert done.exit_code == 1
    assert done.stdout.startswith("· 1. change the manifests of workloads that ask for channels in the old way:")
    assert (
        "\n· 2. let their pods end, one partition after the other, and start no new ones\n     r1: r1-n01\n"
        in (done.stdout)
    )
    assert done.stdout.endswith("1 workload uses the old model\n")
    plain = json.loads(run("cluster", "--from", objects, "-o", "json").stdout)
    assert plain["workloads"][0]["name"] == "old"
    assert plain["steps"][0]["state"] == "to do"


def test_a_cluster_without_the_old_model_names_what_was_not_read(tmp_path: Path) -> None:
    done = run("cluster", "--from", written(tmp_path))
    assert done.exit_code == 1
    assert "? 3. delete the nvidia-imex DaemonSet" in done.stdout
    assert "not checked: the files contain no" in done.stdout
