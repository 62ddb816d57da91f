import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from imex_sandbox.kubernetes.controlplane import ControlPlane
from tests.conftest import install_crds
from tests.paths import DEPLOY
from tests.policies.guarded import Guarded

ROLES = {"viewer": "view", "editor": "edit", "creator": "creator", "owner": "owner"}
"""What each user may do in the namespaces of tests. `owner` has every right on ComputeDomains, also on status."""
CLUSTER_ROLES = {"rack-viewer": "view", "rack-editor": "edit", "rack-admin": "admin"}
"""Of users for the whole cluster."""


@pytest.fixture(scope="session")
def guarded_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With a controller manager, which fills the aggregated roles and counts what a quota limits."""
    users: dict[str, list[str]] = {name: [] for name in (*ROLES, *CLUSTER_ROLES)}
    with ControlPlane(tmp_path_factory.mktemp("guarded"), users=users, scheduler=False) as running:
        install_crds(running)
        files = [f"--filename={DEPLOY / name}" for name in ("rbac.yaml", "policies.yaml")]
        running.kubectl("apply", "--server-side", *files)
        running.kubectl.apply(
            _cluster_role("creator", "computedomains", "get", "create", "update", "patch"),
            _cluster_role("owner", "*", "*"),
            *(_binding("", user, role) for user, role in CLUSTER_ROLES.items()),
        )
        yield running


@pytest.fixture
async def guarded(guarded_control_plane: ControlPlane) -> AsyncIterator[Guarded]:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    bindings = [_binding(namespace, user, role) for user, role in ROLES.items()]
    guarded_control_plane.kubectl.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, *bindings
    )
    async with AsyncExitStack() as stack:
        yield Guarded(guarded_control_plane, stack, namespace)


def _cluster_role(name: str, resource: str, *verbs: str) -> dict[str, object]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": ["resource.nvidia.com"], "resources": [resource], "verbs": list(verbs)}],
    }


def _binding(namespace: str, user: str, role: str) -> dict[str, object]:
    """Without a namespace: for the whole cluster."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding" if namespace else "ClusterRoleBinding",
        "metadata": {"name": user, **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
