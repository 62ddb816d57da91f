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


def test_nothing_at_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = r"no usable cluster configuration in KUBECONFIG, ~/\.kube/config or the pod's service account: "
    with pytest.raises(Misconfigured, match=where):
        default_namespace()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    with pytest.raises(Misconfigured, match=f"{where}.*a not found"):
        default_namespace()
