"""Bundles: what is packed is read again, and secrets are left out."""

import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest

from imex_dra.api.meta import Key
from imex_dra.base.errors import Unreadable
from imex_dra.diagnose.bundle import is_bundle, pack, unpack
from imex_dra.diagnose.chain import explain
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.drivertexts import ctl_answers, driver_logs
from imex_dra.diagnose.redaction import REDACTED, redacted, redacted_text
from imex_dra.diagnose.rules import diagnose
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import Broken, meta
from tests.diagnose.test_loading import Api


def written(directory: Path, broken: Broken) -> Path:
    file = directory / "bundle.tar.gz"
    file.write_bytes(pack(broken.snapshot(), {"logs/imex-node-x/node.log": "log in with token: abcdef123"}))
    return file


@pytest.mark.parametrize("id", sorted(BREAKINGS))
def test_a_bundle_has_the_same_findings_as_the_cluster(id: str, tmp_path: Path) -> None:
    broken = Broken()
    BREAKINGS[id](broken)
    read = unpack(written(tmp_path, broken))
    assert diagnose(Cluster(read)) == broken.findings()
    assert (read.taken_at, read.missing) == (broken.snapshot().taken_at, broken.snapshot().missing)


def test_a_bundle_can_be_explained(tmp_path: Path) -> None:
    broken = Broken()
    BREAKINGS["IMEX303"](broken)
    found = explain(Cluster(unpack(written(tmp_path, broken))), "pod", Key("team", "worker-1"))
    assert found.findings[0].id == "IMEX303"


def test_logs_are_in_the_bundle_without_credentials(tmp_path: Path) -> None:
    with tarfile.open(written(tmp_path, Broken())) as tar:
        log = tar.extractfile("imex-bundle/logs/imex-node-x/node.log")
        assert log is not None
        assert log.read() == b"log in with token: redacted"


def test_values_of_variables_are_left_out_except_those_of_findings() -> None:
    env = [
        {"name": "DATABASE_URL", "value": "postgres://u:p@h"},
        {"name": "NVIDIA_IMEX_CHANNELS", "value": "0"},
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "NVIDIA_API_KEY", "value": "nvapi-1"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}},
    ]
    container = {
        "name": "main",
        "env": env,
        "args": ["--password=hunter2", "--epochs=3", "--db-password", "hunter2"],
    }
    for obj in (
        {"kind": "Pod", "spec": {"containers": [container], "initContainers": [container]}},
        {"kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}},
    ):
        text = json.dumps(redacted(obj))
        assert "postgres" not in text
        assert "hunter2" not in text
        assert "nvapi" not in text
        assert '"value": "0"' in text
        assert '"value": "INFO"' in text
        assert '"secretKeyRef"' in text
        assert "--epochs=3" in text


def test_annotations_of_other_programs_are_left_out() -> None:
    annotations = {"imex-dra.io/readiness": "members", "vault.example/token": "abc", "note": "secret"}
    found = redacted({"metadata": {"annotations": annotations}})
    assert found["metadata"]["annotations"] == {"imex-dra.io/readiness": "members"}


def test_credentials_are_left_out_wherever_they_are() -> None:
    secret = "T-2-secret"
    headers = [{"name": "X-Auth", "value": secret}]
    spec = {
        "containers": [
            {
                "name": "main",
                "command": ["sh", "-c", f"python t.py --api-key {secret} && PASSWORD={secret} x"],
                "args": ["--db-password", secret],
                "workingDir": f"/data?token={secret}",
                "livenessProbe": {"httpGet": {"path": f"/?access_key={secret}", "httpHeaders": headers}},
                "lifecycle": {"preStop": {"exec": {"command": ["curl", f"https://u:{secret}@host"]}}},
                "env": [{"name": "NCCL_PARAMETERS", "value": f"--auth-token {secret}"}],
            }
        ],
        "volumes": [
            {
                "name": "a",
                "csi": {"volumeAttributes": {"password": secret, "clientSecret": secret, "share": "//x"}},
            },
            {"name": "b", "flexVolume": {"options": {"accessKey": secret}}},
        ],
    }
    found = redacted({"kind": "Pod", "spec": spec, "status": {"reason": f"token: {secret}"}})
    assert secret not in json.dumps(found)
    assert found["spec"]["volumes"][0]["csi"]["volumeAttributes"]["share"] == "//x"


def test_what_identifies_objects_stays() -> None:
    spec = {
        "automountServiceAccountToken": True,
        "nodeSelector": {"pool-token": "a"},
        "imagePullSecrets": [{"name": "registry"}],
        "containers": [{"name": "token", "image": "registry.example/app-token:1.2"}],
        "volumes": [
            {"name": "secret", "secret": {"secretName": "tls", "items": [{"key": "token", "path": "token"}]}},
            {"name": "b", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
        ],
    }
    pod = {"kind": "Pod", "metadata": {"name": "token", "labels": {"api-key": "a"}}, "spec": spec}
    assert redacted(pod) == pod


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def", f"Authorization: {REDACTED}"),
        ("password=hunter2 next", f"password={REDACTED} next"),
        ('{"api_key": "abc", "x": 1}', f'{{"api_key": "{REDACTED}", "x": 1}}'),
        ("see https://user:pw@host/x", f"see https://user:{REDACTED}@host/x"),
        ("jwt eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2ln end", f"jwt {REDACTED} end"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", REDACTED),
        (
            "python t.py --api-key T2 --password 'p w' -v",
            f"python t.py --api-key {REDACTED} --password {REDACTED} -v",
        ),
        ("curl --token\nabc", f"curl --token\n{REDACTED}"),
        ("login hf_abcdefghijklmnopqrstuv", f"login {REDACTED}"),
        ("serve --max-tokens 4096 --tokenizer bpe", "serve --max-tokens 4096 --tokenizer bpe"),
        ("x --token-file /run/token --secret-name a", "x --token-file /run/token --secret-name a"),
        ("r0-n01 and r0-n02 cannot reach each other", "r0-n01 and r0-n02 cannot reach each other"),
    ],
)
def test_credentials_in_texts_are_recognized(text: str, expected: str) -> None:
    assert redacted_text(text) == expected


NAMES = ("password", "DB_PASSWORD", "api_key", "client-secret", "passphrase", "authToken", "aws_secret_access_key")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "form",
    [
        '{name}="{value}"',
        "{name}='{value}'",
        '{name}: "{value}"',
        '"{name}": "{value}"',
        "'{name}': '{value}'",
        '{{"x": 1, "{name}":"{value}", "y": 2}}',
        '\\"{name}\\": \\"{value}\\"',
        "--{name} '{value}' -v",
        '--{name}="{value}" -v',
    ],
)
@pytest.mark.parametrize("value", ["hunter2", "my secret phrase", "a,b;c", "it is: x=y", "naïve \u00fc"])
def test_a_quoted_value_is_left_out_to_its_last_character(name: str, form: str, value: str) -> None:
    text = f"before {form.format(name=name, value=value)} after"
    found = redacted_text(text)
    assert not any(word in found for word in re.findall(r"\w\w+", value) if word not in name and word != "is")
    assert found.startswith("before ")
    assert found.endswith(" after")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('password="my secret phrase" next', f'password="{REDACTED}" next'),
        (r'password="a \" b" next', f'password="{REDACTED}" next'),
        ("Authorization: token abcdef\nnext", f"Authorization: {REDACTED}\nnext"),
        ('-H "Authorization: token abcdef" url', f'-H "Authorization: {REDACTED}" url'),
        ("Proxy-Authorization: Negotiate YIIabc", f"Proxy-Authorization: {REDACTED}"),
        ("Authorization: abcdef next", f"Authorization: {REDACTED}"),
        ("redis://:pw@host:6379/0", f"redis://:{REDACTED}@host:6379/0"),
        ("amqp://u:p%40w@host", f"amqp://u:{REDACTED}@host"),
        ("http://u:p:w@host", f"http://u:{REDACTED}@host"),
        ("https://abcdefabcdef@git.example/x", f"https://{REDACTED}@git.example/x"),
        ("curl -u user:pass https://x", f"curl -u user:{REDACTED} https://x"),
        ("curl -uuser:pass https://x", f"curl -uuser:{REDACTED} https://x"),
        ("curl -sS --user user:pass x", f"curl -sS --user user:{REDACTED} x"),
        ("curl --user=user:pass x", f"curl --user=user:{REDACTED} x"),
        ("curl -u 'user:my pass' x", f"curl -u 'user:{REDACTED}' x"),
        ("curl --proxy-user user:pass x", f"curl --proxy-user user:{REDACTED} x"),
    ],
)
def test_more_credentials_in_texts_are_recognized(text: str, expected: str) -> None:
    assert redacted_text(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "serve --tokenizer meta/llama --max-tokens 4096 --tokens=8",
        "tokenizer: bpe, max_tokens=4096, tokens: 12",
        "secretName: tls",
        "imagePullSecrets: registry",
        "docker run -u 1000:1000 image",
        "podman run --user 1000:1000 image",
        "python -u train.py --epochs 3",
        "ssh user@host; scp a user@host:/x",
        "see http://host:8081/imex and [::1]:50000",
        "mail to admin@example.com",
        "image registry.example:5000/app@sha256:0123456789abcdef",
        "2026-11-18T03:00:00Z INFO imex.node: claim team/worker-0-imex is prepared on r0-n00: channel 7",
        "E1118 03:00:00.000001       1 reflector.go:150] Failed to watch *v1.Pod: connection refused",
        "r0-n01 and r0-n02 cannot reach each other; check the network between the IMEX daemons",
        "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
        "0/36 nodes are available: 36 Insufficient nvidia.com/gpu.",
    ],
)
def test_ordinary_texts_stay(text: str) -> None:
    assert redacted_text(text) == text


def test_a_password_of_curl_is_left_out_of_arguments() -> None:
    container = {
        "name": "main",
        "command": ["curl", "-u", "user:pass", "--user", "a:b c", "-H"],
        "args": ["-u", "x"],
    }
    found = redacted({"kind": "Pod", "spec": {"containers": [container]}})["spec"]["containers"][0]
    assert found["command"] == ["curl", "-u", f"user:{REDACTED}", "--user", f"a:{REDACTED}", "-H"]
    assert found["args"] == ["-u", "x"]


async def test_logs_of_the_drivers_pods_are_read_and_failures_are_named() -> None:
    broken = Broken()
    spec = {"containers": [{"name": "node"}]}
    broken.add("pods", {"metadata": meta("imex-node-x", "imex-dra"), "spec": spec, "status": {"phase": "Running"}})
    broken.add("pods", {"metadata": meta("imex-node-y", "imex-dra"), "spec": spec, "status": {"phase": "Pending"}})
    api = Api(broken)
    api.logs = {"imex-node-x": "line\n"}
    client = api.client()
    logs, problems = await driver_logs(client, broken.snapshot())
    await client.close()
    assert logs == {"logs/imex-node-x/node.log": "line\n"}
    assert [problem.partition(": ")[0] for problem in problems] == ["log of node in imex-dra/imex-node-y"]


def node_pod(name: str, node: str, *arguments: str) -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "node", "args": ["node", *arguments]}]}
    return {"metadata": meta(name, "imex-dra"), "spec": spec, "status": {"phase": "Running"}}


async def test_answers_of_nvidia_imex_ctl_come_from_the_pods_of_imex_node_or_from_the_node() -> None:
    broken = Broken()
    broken.add("pods", node_pod("imex-node-x", "r0-n00", "--metrics-address=:9999"))
    broken.add("pods", node_pod("imex-node-y", "r0-n01"))
    api = Api(broken)
    api.pages = {"imex-node-x:9999": "READY", "imex-node-y:8081": "DEGRADED", "r1-n00:8081": "READY"}
    client = api.client()
    answers, problems = await ctl_answers(client, broken.snapshot())
    await client.close()
    assert answers == {
        "nvidia-imex-ctl/r0-n00.txt": "READY",
        "nvidia-imex-ctl/r0-n01.txt": "DEGRADED",
        "nvidia-imex-ctl/r1-n00.txt": "READY",
    }
    (problem,) = problems
    assert problem.startswith("nvidia-imex-ctl on r1-n01: ")
    assert "no endpoint" in problem


async def test_a_reader_who_may_not_use_the_proxy_is_told_once() -> None:
    broken = Broken()
    client = Api(broken, proxy=403).client()
    answers, problems = await ctl_answers(client, broken.snapshot())
    await client.close()
    assert answers == {}
    assert problems == ["nvidia-imex-ctl on r0-n00, r0-n01, r1-n00, r1-n01: you may not get nodes/proxy"]


def test_what_is_no_bundle_is_named(tmp_path: Path) -> None:
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x.json"), io.BytesIO())
    assert is_bundle(other)
    with pytest.raises(Unreadable, match=r"is no bundle of imex collect: it has no imex-bundle/snapshot\.json"):
        unpack(other)
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(written(tmp_path, Broken()).read_bytes()[:400])
    with pytest.raises(Unreadable):
        unpack(cut)
    (tmp_path / "pods.yaml").write_text("kind: Pod")
    assert not is_bundle(tmp_path / "pods.yaml")
