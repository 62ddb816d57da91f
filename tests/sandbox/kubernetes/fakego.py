"""A Go toolchain that builds nothing: `go build` writes an empty shell script, and every call is recorded."""

from pathlib import Path

_GO = r"""#!/bin/sh
echo "$@" >> "$GO_CALLS"
case "$1" in
env) echo "${GO_VERSION:-go1.26.6}" ;;
list)
  if [ "$2" = -m ]; then
    mkdir -p "$GO_CALLS.module/deploy/v2beta1"
    echo "kind: CustomResourceDefinition" > "$GO_CALLS.module/deploy/v2beta1/mpi-operator.yaml"
    echo "$GO_CALLS.module"
  else echo "go: downloading k8s.io/kubernetes" >&2; echo fmt; echo k8s.io/kubernetes; fi ;;
build)
  eval "$GO_BUILD"
  while [ "$1" != -o ]; do shift; done
  printf '#!/bin/sh\n' > "$2"; chmod +x "$2" ;;
esac
"""


class FakeGo:
    """With `environment` set, this Go is the first on the PATH, and the cache is empty.

    `GO_BUILD` is a shell script that `go build` runs first, and `GO_VERSION` is the version that Go reports.
    """

    def __init__(self, directory: Path) -> None:
        self.calls = directory / "calls"
        self.path = directory / "path"
        self.path.mkdir()
        (self.path / "go").write_text(_GO)
        (self.path / "go").chmod(0o755)
        self.environment = {
            "PATH": f"{self.path}:/usr/bin:/bin",
            "XDG_CACHE_HOME": str(directory / "cache"),
            "KUBEBUILDER_ASSETS": "",
            "IMEX_KUBERNETES": "",
            "IMEX_KUBERNETES_MIRROR": "",
            "GO_CALLS": str(self.calls),
        }

    def built(self) -> list[str]:
        """The packages for which `go build` was called."""
        calls = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [call.split()[-1] for call in calls if call.startswith("build")]
