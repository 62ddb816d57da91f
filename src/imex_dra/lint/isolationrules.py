"""Rules: does a pod get its channel by a claim only, and no channel of others?"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from imex_dra.api.names import CHANNEL_DEVICE_DIRECTORY
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import Manifests
from imex_dra.lint.pods import Container, Pods
from imex_dra.lint.rule import Problem, rule
from imex_dra.lint.values import Value

LEGACY_VARIABLE = "NVIDIA_IMEX_CHANNELS"
LEGACY_MOUNT = PurePosixPath("/var/run/nvidia-container-devices/imex")
_ALL_DEVICES = (PurePosixPath("/"), PurePosixPath("/dev"))
_FIXED_CHANNEL = re.compile(r"nvidia-caps-imex-channels/channel\d+|(?<![\w-])channel0(?!\w)")


def _programs(container: Container) -> Iterator[Value]:
    """Texts that the container runs, or reads from its environment."""
    for part in ("command", "args"):
        yield from container.value[part].texts()
    for variable in container.value["env"].elements():
        yield from variable["value"].texts()


def host_paths(pods: Pods) -> Iterator[tuple[Value, PurePosixPath]]:
    for volume in pods.spec["volumes"].elements():
        path = volume.at("hostPath.path")
        if path.text:
            yield path, PurePosixPath(path.text)


def is_channel_path(path: PurePosixPath) -> bool:
    return path.is_relative_to(CHANNEL_DEVICE_DIRECTORY)


@rule(
    "IMEX150",
    Severity.WARNING,
    "A channel is requested in the old way, by a variable or a mount",
    why="""NVIDIA_IMEX_CHANNELS, and mounts below /var/run/nvidia-container-devices/imex, ask the container
    runtime for a channel. That was the model of the nvidia-imex DaemonSet, with channel 0 for all. With DRA it
    gives the pod nothing, or, where the runtime still obeys, the channel of another workload.""",
)
def legacy_channel(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for container in pods.containers:
            for value, what in legacy_requests(container):
                claims = manifests.channel_claims(pods)
                step = "remove it" + ("" if claims else ", and claim a channel from a ComputeDomain")
                yield Problem(pods.object, value, f"container {container.name} {what}", step)


def legacy_requests(container: Container) -> Iterator[tuple[Value, str]]:
    variable = container.variable(LEGACY_VARIABLE)
    if variable.exists:
        yield variable, f"sets {LEGACY_VARIABLE}, which does not claim a channel"
    for text in (*container.value["command"].texts(), *container.value["args"].texts()):
        if f"{LEGACY_VARIABLE}=" in text.text:
            yield text, f"sets {LEGACY_VARIABLE}, which does not claim a channel"
    for mount in container.value["volumeMounts"].elements():
        if PurePosixPath(mount["mountPath"].text).is_relative_to(LEGACY_MOUNT):
            yield mount, f"mounts {mount['mountPath'].text}, which does not claim a channel"


@rule(
    "IMEX151",
    Severity.ERROR,
    "Channel devices of the host are mounted",
    why="""A host path to /dev/nvidia-caps-imex-channels gives the pod channels that belong to other workloads, or
    to none. Nothing keeps it apart from them, and no ComputeDomain knows of it. Usually the device is not even
    there: the driver creates it only in containers that claim it.""",
)
def mounted_channels(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for value, path in host_paths(pods):
            if is_channel_path(path):
                message = f"{path} of the host is mounted, without a claim"
                yield Problem(pods.object, value, message, "remove it, and claim a channel from a ComputeDomain")


@rule(
    "IMEX152",
    Severity.WARNING,
    "A pod with a channel can open the channels of others",
    why="""A privileged container, or one with the host's /dev, can open every channel device of the node: those
    of other workloads, too, if they exist there. CUDA uses the first channel that it can open, which may be a
    wrong one. A claimed channel needs neither.""",
)
def sees_all_channels(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        step = "remove it: a container that lists the claim gets its device without it"
        for container in pods.containers:
            privileged = container.value.at("securityContext.privileged")
            if privileged.content is True:
                message = f"container {container.name} is privileged, and can open the channels of other workloads"
                yield Problem(pods.object, privileged, message, step)
        for value, path in host_paths(pods):
            if path in _ALL_DEVICES:
                message = f"{path} of the host is mounted: {pods} can open the channels of other workloads"
                yield Problem(pods.object, value, message, step)


@rule(
    "IMEX153",
    Severity.WARNING,
    "A channel number is fixed in the program",
    why="""With NVIDIA's driver the channel is always channel0. Here each ComputeDomain has a number of its own in
    each partition, and it is usually not 0. Programs find it in the variable COMPUTE_DOMAIN_CHANNEL, or as the
    only file in /dev/nvidia-caps-imex-channels. CUDA and NCCL need neither.""",
)
def fixed_channel(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.pods:
        for container in pods.containers:
            for text in _programs(container):
                if found := _FIXED_CHANNEL.search(text.text):
                    message = (
                        f"container {container.name} uses {found[0]}, but the number of its channel is assigned"
                    )
                    step = "use $COMPUTE_DOMAIN_CHANNEL, or the only file in that directory"
                    yield Problem(pods.object, text, message, step)


@rule(
    "IMEX154",
    Severity.NOTE,
    "The launcher of an MPIJob claims a channel",
    why="""The launcher only starts the workers. With a claim it needs a node with a free channel device, and its
    node counts as one of the ComputeDomain. The rule is silent with runLauncherAsWorker, and if the launcher has
    GPUs.""",
)
def launcher_claims(manifests: Manifests) -> Iterator[Problem]:
    for pods in manifests.claiming:
        works = pods.object.value.at("spec.runLauncherAsWorker").content is True
        if pods.object.kind == "MPIJob" and pods.template.role == "Launcher" and not (works or pods.gpus):
            claim = manifests.channel_claims(pods)[0]
            message = f"the launcher has claim {claim.name}, but needs no channel"
            yield Problem(pods.object, claim.value, message, "claim in the Worker only")


RULES = (legacy_channel, mounted_channels, sees_all_channels, fixed_channel, launcher_claims)
