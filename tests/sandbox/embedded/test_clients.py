"""The same tasks with the clients that people use, on real Kubernetes first, then on the embedded one."""

import importlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from lightkube import Client as Lightkube
from lightkube import KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Namespace
from lightkube.types import PatchType

from imex_sandbox.kubernetes.binaries import find
from imex_sandbox.kubernetes.kubectl import to_yaml
from tests.paths import ROOT
from tests.sandbox.embedded.conftest import SLOW_KUBERNETES

# Of the official client and its dependencies.
pytestmark = pytest.mark.filterwarnings("ignore")

NEWEST_KUBECTL = ROOT / ".venv/kubectl/bin/kubectl"
DOMAINS = ("resource.nvidia.com", "v1beta1", "computedomains")


class Refused(Exception):
    """With the HTTP code as its argument, and with the reason if the client shows no code."""


class SmokeClient(Protocol):
    """What the tests need of a client, with plain objects."""

    def create(self, document: dict[str, Any]) -> dict[str, Any]: ...
    def replace(self, document: dict[str, Any]) -> dict[str, Any]: ...
    def patch(self, name: str, patch: dict[str, Any]) -> dict[str, Any]: ...
    def get(self, kind: str, name: str) -> dict[str, Any]: ...
    def names(self, selector: str) -> list[str]: ...
    def first_event(self, name: str) -> str: ...
    def delete(self, name: str) -> None: ...


class Official:
    """The `kubernetes` package."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._package = importlib.import_module("kubernetes")
        client, config = self._package.client, self._package.config
        api = config.new_client_from_config(str(kubeconfig))
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._serialize, self._namespace = api.sanitize_for_serialization, namespace
        self._core.create_namespace({"metadata": {"name": namespace}})

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        if document["kind"] == "ComputeDomain":
            return self._call(
                self._custom.create_namespaced_custom_object, *DOMAINS[:2], self._namespace, DOMAINS[2], document
            )
        return self._call(self._core.create_namespaced_config_map, self._namespace, document)

    def replace(self, document: dict[str, Any]) -> dict[str, Any]:
        name = document["metadata"]["name"]
        return self._call(self._core.replace_namespaced_config_map, name, self._namespace, document)

    def patch(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        return self._call(self._core.patch_namespaced_config_map, name, self._namespace, patch)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        if kind == "ComputeDomain":
            return self._call(
                self._custom.get_namespaced_custom_object, *DOMAINS[:2], self._namespace, DOMAINS[2], name
            )
        return self._call(self._core.read_namespaced_config_map, name, self._namespace)

    def names(self, selector: str) -> list[str]:
        found = self._core.list_namespaced_config_map(self._namespace, label_selector=selector)
        return [one.metadata.name for one in found.items]

    def first_event(self, name: str) -> str:
        watch, fields = self._package.watch.Watch(), f"metadata.name={name}"
        function = self._core.list_namespaced_config_map
        for event in watch.stream(function, self._namespace, field_selector=fields, timeout_seconds=60):
            watch.stop()
            return str(event["type"])
        return ""

    def delete(self, name: str) -> None:
        self._call(self._core.delete_namespaced_config_map, name, self._namespace)

    def _call(self, function: Any, *arguments: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._serialize(function(*arguments))
        except self._package.client.ApiException as error:
            raise Refused(str(error.status), str(error.body)) from error
        return found


class OfLightkube:
    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._client = Lightkube(KubeConfig.from_file(str(kubeconfig)), namespace=namespace, field_manager="smoke")
        self._domain = create_namespaced_resource(*DOMAINS[:2], "ComputeDomain", DOMAINS[2])
        self._client.create(Namespace(metadata=ObjectMeta(name=namespace)))

    def _kind(self, kind: str) -> Any:
        return ConfigMap if kind == "ConfigMap" else self._domain

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._call(self._client.create, self._kind(document["kind"]).from_dict(document))

    def replace(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._call(self._client.replace, ConfigMap.from_dict(document))

    def patch(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        return self._call(self._client.patch, ConfigMap, name, patch, patch_type=PatchType.MERGE)

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self._call(self._client.get, self._kind(kind), name)

    def names(self, selector: str) -> list[str]:
        key, _, value = selector.partition("=")
        return [
            str(one.metadata.name) for one in self._client.list(ConfigMap, labels={key: value}) if one.metadata
        ]

    def first_event(self, name: str) -> str:
        for kind, _ in self._client.watch(ConfigMap, fields={"metadata.name": name}):
            return str(kind)
        return ""

    def delete(self, name: str) -> None:
        self._call(self._client.delete, ConfigMap, name)

    def _call(self, function: Any, *arguments: Any, **options: Any) -> dict[str, Any]:
        try:
            found = function(*arguments, **options)
        except ApiError as error:
            raise Refused(str(error.status.code), str(error.status.message)) from error
        return found.to_dict() if found is not None else {}


class OfKubectl:
    def __init__(self, program: Path, kubeconfig: Path, namespace: str) -> None:
        self._program, self._namespace = str(program), namespace
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self._run("create", "namespace", namespace)

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._json("create", "-f", "-", stdin=to_yaml(document))

    def replace(self, document: dict[str, Any]) -> dict[str, Any]:
        return self._json("replace", "-f", "-", stdin=to_yaml(document))

    def patch(self, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        return self._json("patch", "configmap", name, "--type=merge", f"--patch={json.dumps(patch)}")

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self._json("get", kind.lower(), name)

    def names(self, selector: str) -> list[str]:
        return [one["metadata"]["name"] for one in self._json("get", "configmaps", "-l", selector)["items"]]

    def first_event(self, name: str) -> str:
        argv = [
            self._program,
            "-n",
            self._namespace,
            "get",
            f"configmap/{name}",
            "--watch",
            "--output-watch-events",
        ]
        with subprocess.Popen(
            [*argv, "-o", "name"], env=self._environment, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout
            line = child.stdout.readline()
            child.kill()
        return "ADDED" if f"configmap/{name}" in line else line

    def delete(self, name: str) -> None:
        self._run("delete", "configmap", name)

    def _json(self, *words: str, stdin: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._run(*words, "-o", "json", stdin=stdin))
        return found

    def _run(self, *words: str, stdin: str | None = None) -> str:
        argv = [self._program, "-n", self._namespace, *words]
        done = subprocess.run(
            argv, env=self._environment, input=stdin, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            raise Refused(_code(done.stderr), done.stderr)
        return done.stdout


def _code(message: str) -> str:
    codes = {"NotFound": "404", "AlreadyExists": "409", "Conflict": "409", "is invalid": "422"}
    return next((code for reason, code in codes.items() if reason in message), message)


@pytest.fixture(params=[SLOW_KUBERNETES, "embedded"])
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    name = {"kubernetes": "control_plane", "embedded": "embedded_control_plane"}[request.param]
    found: Path = request.getfixturevalue(name).kubeconfig()
    return found


@pytest.fixture(params=["official", "lightkube", "kubectl", "newest kubectl"])
def client(request: pytest.FixtureRequest, kubeconfig: Path) -> Iterator[SmokeClient]:
    namespace = f"smoke-{uuid.uuid4().hex[:8]}"
    match request.param:
        case "official":
            yield Official(kubeconfig, namespace)
        case "lightkube":
            yield OfLightkube(kubeconfig, namespace)
        case "kubectl":
            yield OfKubectl(find("kubectl"), kubeconfig, namespace)
        case _:
            if not NEWEST_KUBECTL.exists():
                pytest.skip("the newest kubectl is not installed: make test-kube installs it")
            yield OfKubectl(NEWEST_KUBECTL, kubeconfig, namespace)


def config_map(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}


def test_a_client_works(client: SmokeClient) -> None:
    created = client.create(config_map("one", team="a"))
    assert created["metadata"]["uid"]
    client.create(config_map("two", team="b"))
    assert client.names("team=a") == ["one"]
    assert client.first_event("one") == "ADDED"
    assert client.patch("one", {"data": {"b": "2"}})["data"] == {"a": "1", "b": "2"}
    with pytest.raises(Refused, match="409"):
        client.replace({**created, "data": {"a": "3"}})  # of the version before the patch
    with pytest.raises(Refused, match="409"):
        client.create(config_map("one"))
    client.delete("one")
    with pytest.raises(Refused, match="404"):
        client.get("ConfigMap", "one")

    domain = {"apiVersion": "/".join(DOMAINS[:2]), "kind": "ComputeDomain", "metadata": {"name": "train"}}
    spec = {"channel": {"resourceClaimTemplate": {"name": "train"}}}
    client.create({**domain, "spec": spec})
    assert client.get("ComputeDomain", "train")["spec"]["numNodes"] == 0  # a default of the schema
    with pytest.raises(Refused, match="422"):
        client.create({**domain, "metadata": {"name": "bad"}, "spec": {**spec, "numNodes": -1}})
