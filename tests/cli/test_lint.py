"""`imex lint`: arguments, formats, exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from imex_dra.cli import imex
from imex_dra.lint.rules import RULES
from tests.paths import ROOT

BAD = {rule.id: rule.bad for rule in RULES}
GOOD = RULES[0].good
ERROR, WARNING, NOTE = BAD["IMEX105"], BAD["IMEX140"], BAD["IMEX102"]


def run(*arguments: str | Path, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(imex, ["lint", *map(str, arguments)], prog_name="imex", input=stdin)


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name}.yaml").write_text(text)
    return directory


def test_a_finding_is_one_line_like_that_of_a_compiler(tmp_path: Path) -> None:
    file = write(tmp_path, pod=ERROR) / "pod.yaml"
    done = run(file)
    assert done.exit_code == 1
    assert done.stdout == (
        f"{file}:12: error IMEX105 Pod worker: the pod has claim imex, but no container lists it: none gets the"
        " channel; add `claims: [{name: imex}]` to resources of each container that needs it\n"
    )
    assert done.stderr == "1 error in 1 file\n"


@pytest.mark.parametrize(
    ("text", "code", "strict_code"), [(GOOD, 0, 0), (NOTE, 0, 1), (WARNING, 0, 1), (ERROR, 1, 1)]
)
def test_only_errors_fail_unless_strict(tmp_path: Path, text: str, code: int, strict_code: int) -> None:
    file = write(tmp_path, manifest=text) / "manifest.yaml"
    assert run(file).exit_code == code
    assert run("--strict", file).exit_code == strict_code


def test_files_are_checked_together(tmp_path: Path) -> None:
    domain, pod = GOOD.split("---\n")
    write(tmp_path, domain=domain, pod=pod)
    assert "IMEX102" in run(tmp_path / "pod.yaml").stdout
    assert run("--strict", tmp_path / "pod.yaml", tmp_path / "domain.yaml").exit_code == 0


def test_directories_are_searched_for_yaml_and_json(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/pod.yml").write_text(ERROR)
    (tmp_path / "list.json").write_text(json.dumps({"kind": "List", "items": list(yaml.safe_load_all(WARNING))}))
    (tmp_path / "notes.txt").write_text("{{{")
    done = run(tmp_path)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        str(tmp_path / "a/b/pod.yml"),
        str(tmp_path / "list.json"),
    ]
    assert done.stderr == "1 error, 1 warning in 2 files\n"


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path, manifest=NOTE)
    done = run(tmp_path / "manifest.yaml", tmp_path / "manifest.yaml")
    assert done.stderr == "1 note in 1 file\n"


def test_standard_input_is_read(tmp_path: Path) -> None:
    done = run("-", stdin=ERROR)
    assert done.exit_code == 1
    assert done.stdout.startswith("-:12: error IMEX105 ")


def test_a_rule_can_be_ignored_by_an_option(tmp_path: Path) -> None:
    done = run("--strict", "--ignore", "imex105", "--ignore", "IMEX140", "-", stdin=ERROR)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no findings in 1 file\n")


def test_the_namespace_of_objects_without_one_can_be_given(tmp_path: Path) -> None:
    text = BAD["IMEX104"]
    assert "IMEX104" in run("-", stdin=text).stdout
    assert run("--strict", "-n", "default", "-", stdin=text).exit_code == 0
    assert "IMEX103" in run("-n", "team-a", "-", stdin=text).stdout


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_findings_for_programs(output: str, load: Any) -> None:
    done = run("-o", output, "-", stdin=NOTE)
    assert load(done.stdout) == {
        "findings": [
            {
                "id": "IMEX102",
                "severity": "note",
                "file": "-",
                "line": 7,
                "object": "Pod worker",
                "message": "template train-channel of claim imex is not in the files, and cannot be checked",
                "nextStep": "give the file of its ComputeDomain, too, or check with kubectl get"
                " resourceclaimtemplate",
            }
        ],
        "summary": {"errors": 0, "warnings": 0, "notes": 1},
    }
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (["/no/such/file.yaml"], None, "imex: /no/such/file.yaml: No such file or directory"),
        (["-"], "a: 1\nb: [\n", "imex: -:3: no valid YAML: did not find expected node content"),
        (["-"], b"a: 1\nb: \xff\n", "imex: -:2: the file is not UTF-8"),
    ],
)
def test_what_cannot_be_read_ends_with_2(arguments: list[str], stdin: str | bytes | None, message: str) -> None:
    done = run(*arguments, stdin=stdin)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == message + "\n"


def test_an_empty_directory_is_no_success(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.exit_code == 2
    assert done.stderr == f"imex: {tmp_path}: the directory has no *.yaml, *.yml or *.json file\n"


def test_every_argument_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = run("/no/such/file", "/no/such/other", "-", stdin=ERROR)
    assert done.exit_code == 2
    assert done.stderr.count("No such file") == 2
    assert done.stdout == ""


def test_wrong_usage_ends_with_2() -> None:
    assert run().exit_code == 2
    done = run("--ignore", "IMEX999", "-")
    assert done.exit_code == 2
    assert "Invalid value for '--ignore': there is no rule IMEX999; the rules are IMEX101 to" in done.stderr
    assert "there is no rule x" in run("--explain", "x").stderr


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_explained_with_both_examples(rule: Any) -> None:
    done = run("--explain", rule.id.lower())
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{rule.id} ({rule.severity}): {rule.title}\n\n{rule.why}\n")
    for example in (rule.bad, rule.good):
        assert "".join(f"    {line}\n" for line in example.splitlines()) in done.stdout


def test_help_names_exit_codes_and_examples() -> None:
    text = run("--help").stdout
    for part in ("Exit codes:", "imex lint --explain IMEX140", "# imex-lint: ignore", "[text|json|yaml|sarif]"):
        assert part in text


def test_colors_are_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in run("-", stdin=ERROR).stdout
    colored = CliRunner().invoke(imex, ["lint", "-"], input=ERROR, color=True).stdout
    assert "\x1b[31m\x1b[1merror IMEX105\x1b[0m" in colored
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(imex, ["lint", "-"], input=ERROR, color=True).stdout


def test_lint_imports_nothing_that_needs_a_cluster_or_linux() -> None:
    absent = ("grpc", "lightkube", "httpx2", "pynvml", "fcntl", "resource")
    script = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
from imex_dra.cli import imex
imex(['lint', '-'])
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, input=GOOD, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "no findings in 1 file\n")


def test_the_readme_shows_what_lint_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests/lint/readme")
    done = run("job.yaml", "compute-domain.yaml")
    (shown,) = re.findall(
        r"\$ imex lint job.yaml compute-domain.yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    lines = (done.stdout + done.stderr).splitlines()
    assert len(shown.splitlines()) == len(lines)
    for part, line in zip(shown.splitlines(), lines, strict=True):
        assert line.startswith(part.removesuffix("…"))
