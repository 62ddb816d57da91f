"""What the chart makes of values: valid objects, flags that the programs know, and refusals with a path."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from imex_dra.api import rbac
from imex_dra.api.names import DAEMON_SECRET, IMEX_DIRECTORY
from imex_dra.daemon.supervisor import CHROOT_SCRIPT, SCRIPT
from imex_sandbox.kubernetes.controlplane import ControlPlane
from imex_sandbox.kubernetes.kubectl import to_yaml
from tests.chart.helm import CHART, HelmFailed, helm, parsed, require, template
from tests.paths import ROOT

VALUES = {path.stem: str(path) for path in sorted((CHART / "values").glob("*.yaml"))}
EVERYTHING = {
    "image.digest": f"sha256:{'0' * 64}",
    "imagePullSecrets": ["registry"],
    "extraLabels": {"team": "platform"},
    "extraPodAnnotations": {"example.com/scrape": "no"},
    "log.level": "debug",
    "log.format": "text",
    "priorityClasses.create": True,
    "networkPolicies.metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}],
    "webhook.certificates": "provided",
    "webhook.configurationAnnotations": {"cert-manager.io/inject-ca-from": "imex-dra/imex-webhook"},
    "webhook.nodeSelector": {"role": "control"},
    "webhook.affinity": {"nodeAffinity": {}},
    "webhook.extraArgs": ["--address=:9443"],
    "metrics.hostPort": 18081,
    "metrics.podMonitors.create": True,
    "metrics.podMonitors.labels": {"release": "prometheus"},
    "metrics.prometheusRule.create": True,
    "metrics.prometheusRule.labels": {"release": "prometheus"},
    "metrics.dashboard.create": True,
    "openshift.enabled": True,
    "controller.nodeSelector": {"role": "control"},
    "controller.affinity": {"nodeAffinity": {}},
    "controller.extraArgs": ["--suspend-after=5"],
    "controller.daemonCertificates": False,
    "node.nodeSelector": {"role": "gpu"},
    "node.affinity": {"nodeAffinity": {}},
    "node.extraArgs": ["--publish-after=3"],
    "hardware.driverRoot": "/opt/driver",
    "daemon.tls": False,
    "daemon.command": ["nvidia-imex", "--verbose"],
    "test.image": "registry.example/test:1",
}
NOTHING = {
    "crds.install": False,
    "deviceClasses.install": False,
    "policies.install": False,
    "networkPolicies.create": False,
    "webhook.enabled": False,
    "metrics.enabled": False,
    "metrics.podMonitors.create": True,
    "controller.replicas": 1,
    "controller.podDisruptionBudget.create": False,
    "controller.tolerations": [],
    "controller.resources": {},
    "node.tolerations": [],
    "node.resources": {},
    "daemon.resources": {},
}
MATRIX: dict[str, tuple[list[str], dict[str, Any]]] = {
    "defaults": ([], {}),
    **{name: ([f"--values={path}"], {}) for name, path in VALUES.items()},
    "everything": ([], EVERYTHING),
    "everything simulated": ([f"--values={VALUES['simulated']}"], EVERYTHING),
    "nothing": ([], NOTHING),
    "network of pods": ([], {"daemon.network": "pod"}),
    "host-managed": ([], {"imex.mode": "host-managed", "imex.config": "/etc/imex.cfg"}),
    "webhook without probes": (
        [],
        {"metrics.enabled": False, "webhook.placement": False, "webhook.tolerations": []},
    ),
}


@pytest.fixture(autouse=True)
def _helm() -> None:
    require()


@pytest.fixture(params=MATRIX)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    options, values = MATRIX[request.param]
    return template(*options, values=values)


def find(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def pod_of(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = find(objects, kind, name)["spec"]["template"]["spec"]
    return spec


def mounts_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}


def daemons(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One, unless the host manages nvidia-imex."""
    return [o for o in objects if o["kind"] == "DaemonSet" and o["metadata"]["name"] == "imex-daemon"]


def has_webhook(objects: list[dict[str, Any]]) -> bool:
    return any(o["kind"] == "Deployment" and o["metadata"]["name"] == "imex-webhook" for o in objects)


def containers(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for found in objects:
        spec = found["spec"]["template"]["spec"] if found["kind"] in ("DaemonSet", "Deployment") else {}
        yield from (*spec.get("initContainers", []), *spec.get("containers", []))


@pytest.mark.parametrize("name", VALUES)
def test_helm_lint_finds_nothing(name: str) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), f"--values={VALUES[name]}")


@pytest.mark.kube
def test_the_api_server_accepts_all_objects(control_plane: ControlPlane, objects: list[dict[str, Any]]) -> None:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "imex-dra"},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "imex-dra"}}
    control_plane.kubectl.apply(namespace, account)
    options = ("--dry-run=server", "--server-side", "--force-conflicts", "--validate=strict")
    # The CRDs of the Prometheus Operator are not there.
    known = [found for found in objects if not found["apiVersion"].startswith("monitoring.coreos.com/")]
    printed = control_plane.kubectl("apply", *options, "-f", "-", stdin=to_yaml(*known))
    assert len(printed.splitlines()) == len(known)


def test_the_programs_know_all_their_flags(objects: list[dict[str, Any]]) -> None:
    checked = []
    for container in containers(objects):
        if "command" in container:
            continue
        name, *flags = container["args"]
        # Its variables are set in the pod; the directories exist there.
        flags = [flag.replace("$(HOST_IP)", "192.0.2.1").replace("$(NODE_NAME)", "a0") for flag in flags]
        parsed(name, *flags)
        checked.append(name)
    deployed = {found["metadata"]["name"] for found in objects if found["kind"] == "Deployment"}
    assert set(checked) >= {"controller", "node", *(name.removeprefix("imex-") for name in deployed)}


def test_permissions_are_those_of_the_table(objects: list[dict[str, Any]]) -> None:
    def rules(documents: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
        roles = [d for d in documents if d["kind"] in ("Role", "ClusterRole")]
        return {(d["kind"], d["metadata"]["name"]): (d["rules"], aggregated(d)) for d in roles}

    def aggregated(role: dict[str, Any]) -> list[str]:
        return sorted(label for label in role["metadata"].get("labels", {}) if "/aggregate-to-" in label)

    expected = rules(rbac.manifests())
    if not has_webhook(objects):
        del expected["ClusterRole", "imex-webhook"]
    assert rules(objects) == expected


def test_the_release_can_be_in_any_namespace() -> None:
    text = yaml.safe_dump_all(template(namespace="elsewhere"))
    namespaces = set(re.findall(r"^\s*-? ?namespace: (\S+)$", text, re.MULTILINE))
    assert namespaces == {"elsewhere"}
    assert "--namespace=elsewhere" in text
    assert "system:serviceaccount:elsewhere:imex-node" in text
    assert "serviceaccount:imex-dra:" not in text


def test_crds_stay_when_the_release_is_uninstalled(objects: list[dict[str, Any]]) -> None:
    for found in objects:
        policy = found["metadata"].get("annotations", {}).get("helm.sh/resource-policy")
        assert policy == ("keep" if found["kind"] == "CustomResourceDefinition" else None)


def test_an_upgrade_restarts_imex_node_without_a_gap_and_nvidia_imex_not_at_all(
    objects: list[dict[str, Any]],
) -> None:
    node = find(objects, "DaemonSet", "imex-node")["spec"]["updateStrategy"]
    assert node == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    for daemon in daemons(objects):
        assert daemon["spec"]["updateStrategy"] == {"type": "OnDelete"}


def test_on_a_shutdown_of_the_node_our_pods_end_after_those_with_channels() -> None:
    objects = template()
    for name in ("imex-node", "imex-daemon"):
        assert pod_of(objects, "DaemonSet", name)["priorityClassName"] == "system-node-critical"
    assert pod_of(objects, "DaemonSet", "imex-daemon")["terminationGracePeriodSeconds"] > 30, (
        "the supervisor's limit"
    )


def test_the_daemon_has_no_token_and_the_controller_no_privilege(objects: list[dict[str, Any]]) -> None:
    for daemon in daemons(objects):
        assert daemon["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    controller = pod_of(objects, "Deployment", "imex-controller")
    assert controller["securityContext"]["runAsNonRoot"] is True
    assert controller["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    if has_webhook(objects):
        assert pod_of(objects, "Deployment", "imex-webhook")["securityContext"] == controller["securityContext"]


def test_no_variable_of_a_service_can_be_taken_for_a_flag(objects: list[dict[str, Any]]) -> None:
    for found in objects:
        if found["kind"] in ("DaemonSet", "Deployment"):
            assert found["spec"]["template"]["spec"]["enableServiceLinks"] is False


def test_the_programs_of_the_daemon_pod_are_in_the_image() -> None:
    containerfile = (ROOT / "Containerfile").read_text()
    for script, name in ((SCRIPT, "imex-supervisor"), (CHROOT_SCRIPT, "imex-chroot")):
        assert f"install -m 0755 {script.relative_to(ROOT)} /own/opt/imex/bin/{name}" in containerfile
    simulated = pod_of(template(f"--values={VALUES['simulated']}"), "DaemonSet", "imex-daemon")
    directory = "/run/imex-dra/node/run/imex"
    assert simulated["containers"][0]["command"] == ["imex-supervisor", directory, "--", "soft-nvidia-imex"]


@pytest.mark.parametrize("name", ["defaults", "gpu-operator", "host-driver"])
def test_nvidia_imex_runs_from_the_driver_root_with_the_certificate(name: str) -> None:
    """As chroot.sh says, and tests/daemon/test_daemon_pod.py does it on a real kubelet."""
    options, values = MATRIX[name]
    objects = template(*options, values=values)
    daemon, node = (pod_of(objects, "DaemonSet", name) for name in ("imex-daemon", "imex-node"))
    supervised = ["imex-chroot", IMEX_DIRECTORY, "/host", "nvidia-imex"]
    assert daemon["containers"][0]["command"] == ["imex-supervisor", IMEX_DIRECTORY, "--", *supervised]
    for pod in (daemon, node):
        mounts = mounts_of(pod)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        # Writable: persist.dat, the capability's device node and mount points are created there.
        assert mounts["/host"] == {"name": "host", "mountPath": "/host", "mountPropagation": "HostToContainer"}
        assert volumes["host"]["hostPath"] == {"path": "/"}
        assert volumes[mounts[IMEX_DIRECTORY]["name"]]["hostPath"]["path"] == IMEX_DIRECTORY
        assert pod["hostNetwork"] is True
        assert pod["containers"][0]["securityContext"]["privileged"] is True
        # Only the daemon pod sees the key.
        assert ("/etc/imex-dra/tls" in mounts) == (pod is daemon)
    assert "subPath" not in mounts_of(daemon)["/etc/imex-dra/tls"]
    # An optional one that the controller makes later than the pod starts is seen minutes later.
    assert {"name": "tls", "secret": {"secretName": DAEMON_SECRET, "optional": False}} in daemon["volumes"]
    without = pod_of(template(*options, values=values | {"daemon.tls": False}), "DaemonSet", "imex-daemon")
    assert {"name": "tls", "secret": {"secretName": DAEMON_SECRET, "optional": True}} in without["volumes"]


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({}, ["--hardware=nvml:/host", "--imex-tls"]),
        (
            {"hardware.driverRoot": "/opt/driver", "daemon.tls": False},
            ["--hardware=nvml:/host", "--driver-root=/opt/driver", "--no-imex-tls"],
        ),
    ],
)
def test_imex_node_finds_the_driver_root_itself_unless_it_is_given(
    values: dict[str, Any], flags: list[str]
) -> None:
    given = pod_of(template(values=values), "DaemonSet", "imex-node")["containers"][0]["args"]
    related = ("--hardware", "--driver-root", "--imex-tls", "--no-imex-tls", "--imex-ctl")
    assert [flag for flag in given if flag.startswith(related)] == flags


@pytest.mark.parametrize("directory", ["/var/lib/kubelet", "/var/lib/k0s/kubelet"])
def test_imex_node_sees_the_directory_of_the_kubelet_as_the_host_does(directory: str) -> None:
    """Not only the plugins: the sweep reads the kubelet's checkpoint."""
    pod = pod_of(template(values={"kubelet.directory": directory}), "DaemonSet", "imex-node")
    flags = parsed(*(flag.replace("$(NODE_NAME)", "a0") for flag in pod["containers"][0]["args"]))
    mount = mounts_of(pod)[str(flags["kubelet_dir"])]
    assert mount["mountPropagation"] == "HostToContainer"
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == mount["name"]]
    assert volume["hostPath"] == {"path": directory, "type": "Directory"}
    # A mount below it would hide what the host mounts there.
    assert [path for path in mounts_of(pod) if path.startswith(f"{directory}/")] == []


def test_an_eviction_leaves_a_replica_and_takes_those_that_do_not_run() -> None:
    """Else a replica that cannot become Ready would hold up the drain of its node for ever."""
    objects = template()
    for name in ("imex-controller", "imex-webhook"):
        spec = find(objects, "PodDisruptionBudget", name)["spec"]
        assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
        labels = find(objects, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert spec["selector"]["matchLabels"].items() <= labels.items()
    alone = template(values={"controller.replicas": 1, "webhook.podDisruptionBudget.create": False})
    assert [found for found in alone if found["kind"] == "PodDisruptionBudget"] == []


def test_nothing_of_nvidia_imex_is_installed_if_the_host_manages_it() -> None:
    assert len(daemons(template())) == 1
    options, values = MATRIX["host-managed"]
    objects = template(*options, values=values)
    assert daemons(objects) == []
    node = pod_of(objects, "DaemonSet", "imex-node")
    assert {"--imex=host-managed", "--imex-config=/etc/imex.cfg"} <= set(node["containers"][0]["args"])
    # Nothing is created on the host for it.
    assert IMEX_DIRECTORY not in mounts_of(node)
    assert "imex" not in [volume["name"] for volume in node["volumes"]]


def test_daemons_in_the_network_of_pods_say_their_address_and_imex_node_asks_them() -> None:
    objects = template(values={"daemon.network": "pod"})
    daemon, node = (pod_of(objects, "DaemonSet", name) for name in ("imex-daemon", "imex-node"))
    assert "hostNetwork" not in daemon
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    assert address in daemon["containers"][0]["env"]
    assert node["hostNetwork"] is True
    assert "--imex-network=pod" in node["containers"][0]["args"]
    assert "POD_IP" not in str(pod_of(template(), "DaemonSet", "imex-daemon"))


def test_values_reach_every_pod() -> None:
    objects = template(values=EVERYTHING)
    for found in (find(objects, "Deployment", "imex-controller"), find(objects, "DaemonSet", "imex-node")):
        pod = found["spec"]["template"]
        assert pod["metadata"]["labels"]["team"] == found["metadata"]["labels"]["team"] == "platform"
        assert pod["metadata"]["annotations"] == {"example.com/scrape": "no"}
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["spec"]["containers"][0]["image"] == f"imex-dra@{EVERYTHING['image.digest']}"
    assert pod_of(objects, "DaemonSet", "imex-node")["priorityClassName"] == "imex-dra-node"
    assert find(objects, "RoleBinding", "imex-dra-privileged")["subjects"][0]["name"] == "imex-node"


def test_pods_run_on_nodes_with_gpus_unless_the_hardware_is_simulated() -> None:
    terms = pod_of(template(), "DaemonSet", "imex-node")["affinity"]["nodeAffinity"]
    (term,) = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["key"] == "nvidia.com/gpu.present"
    for name in ("imex-node", "imex-daemon"):
        pod = pod_of(template(f"--values={VALUES['simulated']}"), "DaemonSet", name)
        assert not {"affinity", "nodeSelector"} & pod.keys()


def test_on_hosts_with_a_driver_pods_run_on_the_nodes_that_an_administrator_labeled() -> None:
    """They tolerate every taint: without a label they would run on control planes, with the files of the host."""
    objects = template(f"--values={VALUES['host-driver']}")
    for name in ("imex-node", "imex-daemon"):
        pod = pod_of(objects, "DaemonSet", name)
        assert pod["nodeSelector"] == {"imex-dra.io/serve": "true"}
        assert "gpu.present" not in str(pod.get("affinity"))


PRESENT = {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
TERM = {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["a"]}]}
OTHER_TERM = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}}


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        (None, [{"matchExpressions": [PRESENT]}]),
        ({}, [{}]),
        (required(TERM, OTHER_TERM), [TERM, OTHER_TERM]),
    ],
    ids=["default", "none", "of the user"],
)
def test_nvidia_imex_and_only_it_leaves_a_node_whose_gpu_driver_is_being_replaced(
    affinity: dict[str, Any] | None, terms: list[dict[str, Any]]
) -> None:
    """The GPU Operator cannot unload the driver before. A Node without these labels is served."""
    not_paused = [
        {
            "key": "nvidia.com/gpu.deploy.client",
            "operator": "NotIn",
            "values": ["paused-for-driver-upgrade", "paused-for-mig-change"],
        },
        {
            "key": "nvidia.com/gpu.deploy.device-plugin",
            "operator": "NotIn",
            "values": ["paused-for-driver-upgrade"],
        },
        {
            "key": "nvidia.com/gpu.deploy.dra-validator",
            "operator": "NotIn",
            "values": ["paused-for-driver-upgrade"],
        },
    ]
    objects = template(values={"node.affinity": affinity})
    expected = [{**term, "matchExpressions": [*term.get("matchExpressions", []), *not_paused]} for term in terms]
    assert pod_of(objects, "DaemonSet", "imex-daemon")["affinity"] == required(*expected)
    assert "gpu.deploy" not in str(pod_of(objects, "DaemonSet", "imex-node").get("affinity"))


def test_the_gpu_operator_can_wait_for_nvidia_imex_which_it_finds_by_its_node_selector() -> None:
    client = {"nvidia.com/gpu.deploy.client": "true"}
    objects = template(values={"node.nodeSelector": {"rack": "a"}, "daemon.nodeSelector": client})
    daemon, node = (pod_of(objects, "DaemonSet", name)["nodeSelector"] for name in ("imex-daemon", "imex-node"))
    assert daemon == {"rack": "a", **client}
    assert node == {"rack": "a"}, "without it no pod with a channel could end"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("controller.replicas=0", "/controller/replicas"),
        ("controller.replicas=two", "/controller/replicas"),
        ("controller.replica=2", "/controller"),
        ("hardware.type=real", "/hardware/type"),
        ("hardware.driverRoot=run/nvidia/driver", "/hardware/driverRoot"),
        ("hardware.simulated.partition=1", "/hardware/simulated/partition"),
        ("node.maxClaims=129", "/node/maxClaims"),
        ("node.prepareDeadline=45", "/node/prepareDeadline"),
        ("imex.mode=hostManaged", "/imex/mode"),
        ("log.level=verbose", "/log/level"),
        ("webhook.certificates=cert-manager", "/webhook/certificates"),
        ("webhook.replicas=0", "/webhook/replicas"),
        ("policies.install=yes", "/policies/install"),
        ("metrics.hostPort=70000", "/metrics/hostPort"),
        ("metrics.podMonitors.interval=30", "/metrics/podMonitors/interval"),
        ("metrics.dashboard.labels.a=1", "/metrics/dashboard/labels/a"),
        ("networkPolicies.metricsFrom[0]=all", "/networkPolicies/metricsFrom/0"),
        ("daemon.tls=on", "/daemon/tls"),
        ("image.digest=sha256:1", "/image/digest"),
        ("imagePullSecrets[0]=", "/imagePullSecrets/0"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(value: str, path: str) -> None:
    with pytest.raises(HelmFailed) as refused:
        helm("template", "r", str(CHART), f"--set={value}")
    assert f"at '{path}'" in str(refused.value)


@pytest.mark.parametrize("other", ["hardware.type=simulated", "imex.mode=host-managed"])
def test_the_network_of_pods_is_refused_where_the_daemon_has_the_address_of_its_node(other: str) -> None:
    with pytest.raises(HelmFailed, match=r"daemon\.network=pod needs hardware\.type=nvml and imex\.mode=managed"):
        helm("template", "r", str(CHART), "--set=daemon.network=pod", f"--set={other}")
