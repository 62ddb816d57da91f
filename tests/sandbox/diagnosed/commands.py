"""What the commands find on a rack, and objects to break it with."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from imex_dra.api.names import CLIQUE_LABEL
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.loading import load_cluster
from imex_dra.diagnose.rules import diagnose
from imex_dra.kube.client import Client
from imex_dra.lint.findings import Severity
from tests.sandbox.cluster.namespace import Namespace
from tests.sandbox.failures.rack import SLEEP, Rack

N0, N1, N2, N3 = (f"r0-n0{number}" for number in range(4))


def found(rack: Rack, *severities: Severity) -> list[tuple[str, str]]:
    """Ids and objects of the findings."""

    async def read() -> Cluster:
        client = Client.connect("imex-cli", rack.cluster.kubeconfig)
        try:
            return Cluster(await load_cluster(client))
        finally:
            await client.close()

    findings = diagnose(asyncio.run(read()))
    return [(f.id, f.object) for f in findings if not severities or f.severity in severities]


def imex(rack: Rack, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code, and the output as JSON."""
    flags = [*arguments, "--output=json", f"--kubeconfig={rack.cluster.kubeconfig}"]
    command = [sys.executable, "-m", "imex_dra.cli", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def domain(namespace: Namespace, name: str, mode: str = "Single") -> dict[str, Any]:
    return {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": name, "namespace": namespace.name},
        "spec": {"channel": {"resourceClaimTemplate": {"name": name}, "allocationMode": mode}},
    }


def job(namespace: Namespace, name: str, template: str = "", *, pods: int = 1, gpus: int = 0) -> dict[str, Any]:
    """On any node; its pods are kept in one partition."""
    spec = namespace.pod(name, N2, template=template or name, command=SLEEP)["spec"]
    del spec["nodeSelector"]
    spec["restartPolicy"] = "Never"
    term = {"topologyKey": CLIQUE_LABEL, "labelSelector": {"matchLabels": {"job": name}}}
    spec["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    if gpus:
        spec["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace.name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {"metadata": {"labels": {"job": name}}, "spec": spec},
        },
    }
