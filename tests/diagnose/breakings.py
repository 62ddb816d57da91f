"""One way to break a healthy cluster for every rule. The finding is the example that the documentation shows."""

from collections.abc import Callable

from imex_dra.api import nodereasons
from imex_dra.api.names import CHANNEL_CLASS
from tests.diagnose.healthy import (
    HERE,
    NOW,
    Breaking,
    Broken,
    event,
    meta,
)

BREAKINGS: dict[str, Breaking] = {}


def breaks(id: str) -> Callable[[Breaking], Breaking]:
    def register(breaking: Breaking) -> Breaking:
        BREAKINGS[id] = breaking
        return breaking

    return register


def pending(broken: Broken, name: str = "worker-1") -> None:
    """The pod is bound, and not started."""
    broken.get("pods", name)["status"]["phase"] = "Pending"
    broken.get("nvlinknodes", f"r0-n0{name[-1]}")["status"]["preparedClaims"] = []


def not_ready(broken: Broken, message: str, *nodes: str, reason: str = "NodesNotReady") -> None:
    broken.condition("computedomains", "train", "Ready", "False", reason, message)
    status = broken.get("computedomains", "train")["status"]
    status["nodes"] = [
        {"name": name, "ipAddress": "", "cliqueID": HERE, "index": 0, "status": "NotReady", "reason": "X"}
        for name in nodes
    ]


@breaks("IMEX101")
def _(broken: Broken) -> None:
    spec = broken.get("pods", "worker-1")["spec"]
    spec["resourceClaims"][0]["resourceClaimTemplateName"] = "imex-chanel"
    waiting(broken)
    broken.get("pods", "worker-1")["status"]["resourceClaimStatuses"] = []
    broken.remove("resourceclaims", "worker-1-imex")


def waiting(broken: Broken, name: str = "worker-1") -> None:
    """The pod is not bound."""
    pod = broken.get("pods", name)
    pod["spec"]["nodeName"] = ""
    pod["status"]["phase"] = "Pending"
    pod["status"]["conditions"][0] |= {"status": "False", "message": "0/4 nodes are available"}
    broken.get("resourceclaims", f"{name}-imex")["status"] = {}
    for one in broken.objects["nvlinknodes"]:
        one["status"]["preparedClaims"] = []


@breaks("IMEX103")
def _(broken: Broken) -> None:
    waiting(broken)
    broken.remove("resourceclaims", "worker-1-imex")
    pod = broken.get("pods", "worker-1")
    pod["metadata"]["namespace"] = "other"
    pod["status"]["resourceClaimStatuses"] = []


@breaks("IMEX105")
def _(broken: Broken) -> None:
    del broken.get("pods", "worker-1")["spec"]["containers"][0]["resources"]["claims"]


@breaks("IMEX107")
def _(broken: Broken) -> None:
    container = {"name": "second", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    broken.get("pods", "worker-1")["spec"]["containers"].append(container)


@breaks("IMEX150")
def _(broken: Broken) -> None:
    env = [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]
    broken.get("pods", "worker-1")["spec"]["containers"][0]["env"] = env


@breaks("IMEX151")
def _(broken: Broken) -> None:
    volumes = [{"name": "dev", "hostPath": {"path": "/dev/nvidia-caps-imex-channels"}}]
    broken.get("pods", "worker-1")["spec"]["volumes"] = volumes


@breaks("IMEX152")
def _(broken: Broken) -> None:
    broken.get("pods", "worker-1")["spec"]["containers"][0]["securityContext"] = {"privileged": True}


@breaks("IMEX201")
def _(broken: Broken) -> None:
    for plural in ("pods", "resourceclaims", "resourceclaimtemplates"):
        broken.remove(plural)
    why = "the cluster has no kind ComputeDomain (resource.nvidia.com/v1beta1)"
    broken.hide("computedomains", why, not_served=True)


@breaks("IMEX202")
def _(broken: Broken) -> None:
    broken.remove("deviceclasses", CHANNEL_CLASS)


@breaks("IMEX203")
def _(broken: Broken) -> None:
    message = (
        "another driver named compute-domain.nvidia.com runs in this cluster (DaemonSet"
        " nvidia-dra-driver-gpu/kubelet-plugin), and the two would undo each other's work, so imex-dra changes"
        " nothing; remove one of the two drivers; imex-dra continues when the other one is gone"
    )
    for name in ("aaaa.1", "bbbb.1"):
        broken.condition("nvlinkpartitions", name, "OtherDriver", "True", "OtherDriverPresent", message)


@breaks("IMEX204")
def _(broken: Broken) -> None:
    broken.get("leases", "imex-controller")["spec"]["renewTime"] = "2026-11-18T02:00:00.123456Z"


@breaks("IMEX205")
def _(broken: Broken) -> None:
    for plural in ("pods", "resourceclaims", "nvlinknodes", "nvlinkpartitions", "resourceslices"):
        broken.remove(plural)


@breaks("IMEX210")
def _(broken: Broken) -> None:
    broken.version = "v1.33.4"


def node_info(broken: Broken, field: str, value: str) -> None:
    broken.get("nodes", "r0-n01")["status"]["nodeInfo"][field] = value


@breaks("IMEX211")
def _(broken: Broken) -> None:
    node_info(broken, "kubeletVersion", "v1.33.4")


@breaks("IMEX212")
def _(broken: Broken) -> None:
    node_info(broken, "containerRuntimeVersion", "containerd://1.6.20")


@breaks("IMEX213")
def _(broken: Broken) -> None:
    node_info(broken, "containerRuntimeVersion", "containerd://1.7.2")


@breaks("IMEX214")
def _(broken: Broken) -> None:
    for plural in ("pods", "resourceclaims", "nvlinknodes", "nvlinkpartitions", "resourceslices"):
        broken.remove(plural)
    for node in broken.objects["nodes"]:
        node["metadata"]["labels"] = {}


@breaks("IMEX215")
def _(broken: Broken) -> None:
    broken.add("daemonsets", {"metadata": meta("nvidia-imex", "gpu-system"), "spec": {}})


@breaks("IMEX216")
def _(broken: Broken) -> None:
    spec = broken.get("pods", "worker-1")["spec"]
    spec["hostNetwork"] = True
    spec["containers"][0]["ports"] = [{"containerPort": 50000}]


@breaks("IMEX217")
def _(broken: Broken) -> None:
    for name, version in (("r0-n00", "570.1.2"), ("r0-n01", "580.0.1")):
        broken.get("nodes", name)["metadata"]["labels"]["nvidia.com/cuda.driver-version.full"] = version


@breaks("IMEX301")
def _(broken: Broken) -> None:
    conditions = broken.get("nodes", "r0-n01")["status"]["conditions"]
    conditions[0] |= {"status": "Unknown", "message": "Kubelet stopped posting node status."}
    broken.get("nvlinknodes", "r0-n01")["status"]["imexState"] = "UNAVAILABLE"
    broken.get("nvlinknodes", "r0-n00")["status"]["unreachable"] = ["r0-n01"]
    broken.get("nvlinkpartitions", HERE)["status"]["members"][1]["state"] = "Unknown"
    not_ready(broken, "1 of 2 nodes with a claim is not ready: r0-n01 has been unreachable since …", "r0-n01")


@breaks("IMEX302")
def _(broken: Broken) -> None:
    broken.remove("pods", "worker-1")
    broken.remove("resourceclaims", "worker-1-imex")
    broken.remove("nvlinknodes", "r0-n01")
    broken.remove("resourceslices", "r0-n01")
    del broken.get("nvlinkpartitions", HERE)["status"]["members"][1]


@breaks("IMEX303")
def _(broken: Broken) -> None:
    status = broken.get("nvlinknodes", "r0-n01")["status"]
    status["fabric"] = {"state": "broken", "reason": "GPU 2: not registered with the fabric"}
    status["gpus"] = [{"index": 2, "state": "broken", "reason": "not registered"}]
    broken.remove("resourceslices", "r0-n01")
    not_ready(broken, "1 of 2 nodes with a claim is not ready: r0-n01: the NVLink fabric is broken", "r0-n01")
    pending(broken)


@breaks("IMEX304")
def _(broken: Broken) -> None:
    fabric = {"state": "pending", "reason": "registration is in progress"}
    broken.get("nvlinknodes", "r0-n01")["status"]["fabric"] = fabric
    broken.remove("resourceslices", "r0-n01")


@breaks("IMEX305")
def _(broken: Broken) -> None:
    broken.remove("pods", "worker-1")
    broken.remove("resourceclaims", "worker-1-imex")
    del broken.get("nvlinkpartitions", HERE)["status"]["members"][1]
    message = "node r0-n01 cannot join NVLink partition aaaa.1 yet: it is a member of bbbb.1"
    broken.condition("nvlinkpartitions", HERE, "NodesAdmitted", "False", "MemberOfOtherPartition", message)


@breaks("IMEX306")
def _(broken: Broken) -> None:
    status = broken.get("nvlinknodes", "r0-n01")["status"]
    status["imexState"] = "UNAVAILABLE"
    problem = nodereasons.supervisor_not_running()
    explanation = nodereasons.daemon_not_ready(node="r0-n01", state="UNAVAILABLE", problem=problem)
    message = explanation.for_node().message()
    broken.condition("nvlinknodes", "r0-n01", "Ready", "False", "DaemonNotReady", message)
    broken.get("nvlinkpartitions", HERE)["status"]["members"][1]["state"] = "NotReady"
    not_ready(broken, "1 of 2 nodes with a claim is not ready: r0-n01 is NotReady", "r0-n01")


@breaks("IMEX307")
def _(broken: Broken) -> None:
    message = (
        "node r0-n01 cannot write what it has prepared: No space left on device; check the disks of the node:"
        " until then its channels and claims are reported as they were"
    )
    broken.condition("nvlinknodes", "r0-n01", "Ready", "False", "DiskError", message)


@breaks("IMEX308")
def _(broken: Broken) -> None:
    broken.remove("resourceslices", "r0-n01")


@breaks("IMEX310")
def _(broken: Broken) -> None:
    for name, other in (("r0-n00", "r0-n01"), ("r0-n01", "r0-n00")):
        broken.get("nvlinknodes", name)["status"]["unreachable"] = [other]
    text = "r0-n00 and r0-n01 cannot reach each other"
    message = f"{text}; check the network between the IMEX daemons"
    broken.condition("nvlinkpartitions", HERE, "NotConnected", "True", "MembersNotConnected", message)
    not_ready(broken, f"2 of 2 nodes with a claim are not ready: {text}", "r0-n00", "r0-n01")


def partition_condition(type: str, status: str, message: str) -> Breaking:
    return lambda broken: broken.condition("nvlinkpartitions", HERE, type, status, "X", message)


BREAKINGS["IMEX311"] = partition_condition(
    "VersionSkew",
    "True",
    "members run different versions of the GPU driver: 570.1 (r0-n00), 580.2 (r0-n01); install one version on all"
    " nodes of the partition",
)
BREAKINGS["IMEX312"] = partition_condition(
    "ChannelSkew",
    "True",
    "the GPU drivers of the members offer different numbers of channels: 1024 (r0-n00), 2048 (r0-n01); load the"
    " GPU driver with the same NVreg_ImexChannelCount on all nodes",
)
BREAKINGS["IMEX313"] = partition_condition(
    "CliqueLabels",
    "False",
    "the label nvidia.com/gpu.clique of node r0-n01 is bbbb.1, set by gpu-feature-discovery, but its GPUs report"
    " aaaa.1, so pods that select by this label may miss their partition; correct what sets it",
)
BREAKINGS["IMEX314"] = partition_condition(
    "ChannelsReusable", "False", "1 released channel cannot be reused yet: r0-n01 has not confirmed"
)


@breaks("IMEX315")
def _(broken: Broken) -> None:
    isolation = {"state": "open", "reason": "the GPU driver creates channel 0 for every process"}
    broken.get("nvlinknodes", "r0-n01")["status"]["isolation"] = isolation


@breaks("IMEX316")
def _(broken: Broken) -> None:
    broken.remove("pods", "worker-1")
    broken.remove("resourceclaims", "worker-1-imex")
    newest = {"spec": {"containers": [{"name": "imex", "image": "imex:2"}]}}
    spec = {"updateStrategy": {"type": "OnDelete"}, "template": newest}
    broken.add("daemonsets", {"metadata": meta("imex-daemon", "imex-dra"), "spec": spec})
    for node in ("r0-n00", "r0-n01"):
        owner = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "name": "imex-daemon",
            "uid": "uid-imex-daemon",
            "controller": True,
        }
        metadata = meta(f"imex-daemon-{node}", "imex-dra", ownerReferences=[owner])
        pod_spec = {"nodeName": node, "containers": [{"name": "imex", "image": "imex:1"}]}
        broken.add("pods", {"metadata": metadata, "spec": pod_spec, "status": {"phase": "Running"}})


@breaks("IMEX401")
def _(broken: Broken) -> None:
    waiting(broken)
    del broken.get("pods", "worker-1")["spec"]["affinity"]
    for one in broken.objects["resourceslices"]:
        one["spec"]["devices"] = one["spec"]["devices"][:1]
    for number, node in enumerate(("r0-n01", "r1-n00", "r1-n01")):
        claim = broken.objects["resourceclaims"][0]
        result = {"request": "channel", "driver": "compute-domain.nvidia.com", "pool": node, "device": "channel-0"}
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": []}
        broken.add("resourceclaims", {**claim, "metadata": meta(f"other-{number}", "other"), "status": status})


@breaks("IMEX402")
def _(broken: Broken) -> None:
    waiting(broken)
    broken.job("worker-2", "")


@breaks("IMEX403")
def _(broken: Broken) -> None:
    pending(broken, "worker-0")
    broken.get("resourceclaims", "worker-0-imex")["status"]["reservedFor"] = []


@breaks("IMEX404")
def _(broken: Broken) -> None:
    pending(broken, "worker-0")
    note = (
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources failed for"
        " ResourceClaim worker-0-imex: channel 7 is still held on node r0-n00; delete the pod that uses that claim"
    )
    broken.add("events", event("Pod", "worker-0", "FailedPrepareDynamicResources", note))
    not_ready(broken, "1 of 2 nodes with a claim is not ready: r0-n00 has not prepared the claim", "r0-n00")


@breaks("IMEX405")
def _(broken: Broken) -> None:
    pending(broken, "worker-0")
    config = broken.get("resourceclaims", "worker-0-imex")["status"]["allocation"]["devices"]["config"]
    config[0]["opaque"]["parameters"]["domainID"] = "uid-gone"


@breaks("IMEX406")
def _(broken: Broken) -> None:
    text = (
        "ComputeDomain team/train requests allocationMode All, which opens the memory of every workload in the"
        " partition; use Single, or ask an administrator to label the namespace imex-dra.io/all-channels=allowed"
    )
    broken.condition("computedomains", "train", "Accepted", "False", "AllChannelsRefused", text)
    broken.get("nvlinkpartitions", HERE)["status"]["channels"] = []
    not_ready(broken, f"2 of 2 nodes with a claim are not ready: {text}", "r0-n00", "r0-n01")


@breaks("IMEX407")
def _(broken: Broken) -> None:
    message = (
        "ResourceClaimTemplate imex-channel exists and was not created for ComputeDomain team/train; rename one of"
        " them"
    )
    broken.condition("computedomains", "train", "TemplateReady", "False", "TemplateTaken", message)


@breaks("IMEX408")
def _(broken: Broken) -> None:
    broken.get("nvlinkpartitions", HERE)["status"]["channels"] = []
    text = "NVLink partition aaaa.1 has no free channel: all 2047 are assigned or not yet reusable"
    message = f"{text}; delete ComputeDomains that are no longer needed"
    broken.condition("computedomains", "train", "ChannelAssigned", "False", "ChannelsExhausted", message)
    not_ready(broken, f"2 of 2 nodes with a claim are not ready: {text}", "r0-n00", "r0-n01")


@breaks("IMEX409")
def _(broken: Broken) -> None:
    text = "1 of 2 nodes with a claim is not ready: r0-n01 has not prepared the claim of worker-1"
    not_ready(broken, text, "r0-n01")
    pending(broken)


@breaks("IMEX410")
def _(broken: Broken) -> None:
    broken.get("pods", "worker-1")["spec"]["nodeName"] = "r1-n00"
    results = broken.get("resourceclaims", "worker-1-imex")["status"]["allocation"]["devices"]["results"]
    results[0]["pool"] = "r1-n00"
    there = broken.get("nvlinkpartitions", "bbbb.1")["status"]
    there["channels"] = broken.get("nvlinkpartitions", HERE)["status"]["channels"]


@breaks("IMEX411")
def _(broken: Broken) -> None:
    for name, job in (("worker-0", "one"), ("worker-1", "two")):
        owner = broken.get("pods", name)["metadata"]["ownerReferences"][0]
        owner |= {"kind": "Job", "name": job}


@breaks("IMEX412")
def _(broken: Broken) -> None:
    broken.get("computedomains", "train")["metadata"]["deletionTimestamp"] = NOW
    message = "deletion waits for pods that still hold a channel: worker-0; delete them, or set the annotation"
    broken.condition("computedomains", "train", "Deleting", "True", "WaitingForPods", message)
    gone = "ComputeDomain team/train is being deleted and accepts no new pods"
    broken.condition("computedomains", "train", "TemplateReady", "False", "Deleting", gone)
    broken.remove("resourceclaimtemplates", "imex-channel")


@breaks("IMEX413")
def _(broken: Broken) -> None:
    entry = {"name": "x-n00", "ipAddress": "", "cliqueID": "", "status": "Ready", "reason": "NoFabric"}
    broken.get("computedomains", "train")["status"]["nodes"] = [entry]


@breaks("IMEX414")
def _(broken: Broken) -> None:
    broken.get("nvlinknodes", "r0-n01")["status"]["heldChannels"][0]["channel"] = 9


@breaks("IMEX415")
def _(broken: Broken) -> None:
    pod = broken.get("pods", "worker-0")
    pod["status"]["phase"] = "Pending"
    said = (
        "failed to create containerd container: CDI device injection failed: unresolvable CDI devices"
        " imex-dra.io/channel=uid-worker-0-imex"
    )
    waiting = {"reason": "CreateContainerError", "message": said}
    pod["status"]["containerStatuses"] = [{"name": "main", "state": {"waiting": waiting}}]
