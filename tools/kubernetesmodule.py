"""Writes the Go module that builds a release of Kubernetes.

    python -m tools.kubernetesmodule v1.38.0

The default version has `go.mod`, every other one `go-<minor>.mod`, each with its `.sum`. Uses the Go on the PATH.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from imex_sandbox.kubernetes import toolchain, versions
from imex_sandbox.kubernetes.gobuild import MODULES

_HEAD = """\
// Builds Kubernetes for simulated racks and for tests. Written by tools/kubernetesmodule.py.
//
// k8s.io/kubernetes requires its staging modules at v0.0.0 and replaces them by
// paths in its own tree. Replace directives apply only in the main module, so
// this module replaces them by the published modules of the same release.
module imex-dra.io/sandbox/kubernetes

"""
_TOOLS = ("kubectl", "kubelet")


def main(version: str) -> None:
    module = MODULES / "kubernetes"
    file = module / versions.module_file(version)
    file.write_text(_HEAD + _directives(version, _upstream(module, version)))
    _go(module, "mod", "tidy", f"-modfile={file.name}")


def _upstream(module: Path, version: str) -> dict[str, Any]:
    """go.mod of the release, as JSON."""
    downloaded = json.loads(_go(module, "mod", "download", "-json", f"k8s.io/kubernetes@{version}"))
    parsed: dict[str, Any] = json.loads(_go(module, "mod", "edit", "-json", downloaded["GoMod"]))
    return parsed


def _directives(version: str, upstream: dict[str, Any]) -> str:
    staging = [replaced["Old"]["Path"] for replaced in upstream["Replace"]]
    (etcd,) = [one["Version"] for one in upstream["Require"] if one["Path"] == "go.etcd.io/etcd/server/v3"]
    published = "v0." + version.removeprefix("v1.")
    return "\n".join(
        [
            f"go {upstream['Go']}",
            *(f"tool k8s.io/kubernetes/cmd/{name}" for name in _TOOLS),
            f"require k8s.io/kubernetes {version}",
            f"require go.etcd.io/etcd/server/v3 {etcd}",
            *(f"replace {path} => {path} {published}" for path in staging),
            "",
        ]
    )


def _go(module: Path, *words: str) -> str:
    environment = toolchain.environment() | {"GOFLAGS": "-mod=mod"}
    done = subprocess.run(
        ["go", *words], cwd=module, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 2:
        click.echo(__doc__, err=True)
        sys.exit(2)
    main(sys.argv[1])
