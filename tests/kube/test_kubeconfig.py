"""Which cluster a command reads: that of kubectl, from the same files in the same order."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from imex_dra.base.errors import Misconfigured
from imex_dra.kube.connection import _load, connect, default_namespace


def written(path: Path, *, current: str = "", contexts: Mapping[str, str] | None = None, **lists: Any) -> Path:
    """`contexts`: namespaces by name; the cluster and the user have the same name."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}
            for name, namespace in (contexts or {}).items()
        ],
        **{key: [{"name": name, **value} for name, value in values.items()] for key, values in lists.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**content, "current-context": current} if current else content))
    return path


def whole(path: Path, name: str, namespace: str) -> Path:
    return written(
        path,
        current=name,
        contexts={name: namespace},
        clusters={name: {"cluster": {"server": f"https://{name}.example"}}},
        users={name: {"user": {"token": name}}},
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("imex_dra.kube.connection.SERVICE_ACCOUNT", str(tmp_path / "account"))
    return tmp_path / "home"


@pytest.fixture
def in_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    for name, content in (("token", "t"), ("namespace", "of-the-pod"), ("ca.crt", "")):
        (account / name).write_text(content)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "192.0.2.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")


def test_in_a_pod_the_service_account_is_used(in_a_pod: None) -> None:
    assert default_namespace() == "of-the-pod"


def test_files_come_before_the_service_account(
    in_a_pod: None, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(home / ".kube/config", "own", "of-the-home")
    assert default_namespace() == "of-the-home"
    monkeypatch.setenv("KUBECONFIG", str(whole(tmp_path / "a", "other", "of-the-variable")))
    assert default_namespace() == "of-the-variable"
    assert default_namespace(whole(tmp_path / "b", "given", "of-the-flag")) == "of-the-flag"


async def test_several_files_are_merged_and_the_first_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path / "first", current="b", contexts={"a": "one"})
    second = whole(tmp_path / "second", "a", "two")
    third = whole(tmp_path / "third", "b", "three")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'absent'}:{second}:{third}")
    assert default_namespace() == "three"
    http = connect("imex-cli")
    assert http.base_url.host == "b.example"
    await http.aclose()


def test_certificates_are_beside_the_file_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = written(tmp_path / "one/config", current="a", contexts={"a": ""})
    second = written(
        tmp_path / "two/config",
        clusters={"a": {"cluster": {"server": "https://a.example", "certificate-authority": "ca.crt"}}},
        users={"a": {"user": {"client-certificate": "own.crt", "client-key": "/keys/own.key"}}},
    )
    monkeypatch.setenv("KUBECONFIG", f"{first}:{second}")
    config = _load(None)
    assert config.cluster.certificate_auth == str(tmp_path / "two/ca.crt")
    assert config.user is not None
    assert (config.user.client_cert, config.user.client_key) == (str(tmp_path / "two/own.crt"), "/keys/own.key")


async def test_another_context_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = whole(tmp_path / "one", "a", "of-a"), whole(tmp_path / "two", "b", "of-b")
    monkeypatch.setenv("KUBECONFIG", f"{one}:{two}")
    assert (default_namespace(), default_namespace(context="b")) == ("of-a", "of-b")
    http = connect("imex-cli", context="b")
    assert http.base_url.host == "b.example"
    await http.aclose()


def refused(kubeconfig: Path | None = None, context: str = "") -> str:
    with pytest.raises(Misconfigured) as error:
        default_namespace(kubeconfig, context)
    return str(error.value)


def test_nothing_at_all_is_one_sentence_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "export KUBECONFIG, which `imex up` prints, or use --kubeconfig FILE"
    assert refused() == f"no kubeconfig was found in KUBECONFIG or ~/.kube/config: {step}"
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert refused() == f"KUBECONFIG is {tmp_path / 'a'}, and there is no such file: {step}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "FILE is no kubeconfig: it has no clusters"),
        ("just text", "FILE is no kubeconfig: it has no clusters"),
        ("kind: Pod", "FILE is no kubeconfig: it has no clusters"),
        ("clusters: [{name: a, cluster: {server: x}}]", "FILE is no kubeconfig: it has no contexts"),
        ("clusters: 5\ncontexts: 6", "no usable cluster configuration in FILE: "),
        ("clusters: [{a: b}]\ncontexts: [{name: c}]", "no usable cluster configuration in FILE: it has no 'name'"),
        ("a: [", "no usable cluster configuration in FILE: "),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert refused(file).startswith(sentence.replace("FILE", str(file)))


def test_several_files_without_a_cluster_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("kind: Pod")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert refused() == f"{tmp_path / 'a'} and {tmp_path / 'b'} are no kubeconfig: they have no clusters"


def test_a_context_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    file = whole(tmp_path / "file", "a", "n")
    assert refused(file, "b") == f"{file} has no context b; it has: a"
    clusters = {"x": {"cluster": {"server": "https://x.example"}}}
    file = written(tmp_path / "file", contexts={"a": "", "b": ""}, clusters=clusters)
    assert refused(file) == f"{file} has no current context: choose one with --context: a, b"
    assert refused(file, "a") == f"{file} has no cluster a, which its context a names"
