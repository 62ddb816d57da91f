"""Random manifests, in random formats of YAML, with comments: what `migrate` is given in the property test."""

import random
from typing import Any

Plain = dict[str, Any]

VARIABLE = "NVIDIA_IMEX_CHANNELS"
LEGACY_MOUNT = "/var/run/nvidia-container-devices/imex/0"
DEVICES = "/dev/nvidia-caps-imex-channels"
DOMAIN = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "ComputeDomain",
    "metadata": {"name": "shared"},
    "spec": {"channel": {"resourceClaimTemplate": {"name": "shared-channel"}}},
}


def container(rng: random.Random, name: str, *, legacy: bool) -> Plain:
    env = [{"name": "NCCL_DEBUG", "value": "INFO"}] * rng.randint(0, 1)
    mounts = [{"name": "data", "mountPath": "/data"}] * rng.randint(0, 1)
    if legacy:
        env.insert(rng.randint(0, len(env)), {"name": VARIABLE, "value": "0"})
        if rng.random() < 0.5:
            mounts.insert(rng.randint(0, len(mounts)), {"name": "request", "mountPath": LEGACY_MOUNT})
        if rng.random() < 0.5:
            mounts.append({"name": "channels", "mountPath": "/channels"})
    parts: Plain = {"image": "registry.example/train:1"}
    if env:
        parts["env"] = env
    if mounts:
        parts["volumeMounts"] = mounts
    if rng.random() < 0.3:
        parts["args"] = ["first line\nsecond: line\n\n# no comment\n", "--flag=yes"]
    match rng.randint(0, 3):
        case 0:
            parts["resources"] = {"limits": {"nvidia.com/gpu": 4, "cpu": "8"}}
        case 1:
            parts["resources"] = {}
        case 2:
            parts["resources"] = None
    return {"name": name} | shuffled(rng, parts)


def shuffled(rng: random.Random, content: Plain) -> Plain:
    """Often with what is nested deeply at the end, where the next document begins."""
    keys = list(content)
    rng.shuffle(keys)
    if rng.random() < 0.5:
        keys.sort(key=("affinity", "template", "spec").__contains__)
    return {key: content[key] for key in keys}


def pod_spec(rng: random.Random, *, legacy: bool, shares: bool) -> Plain:
    containers = [
        container(rng, f"c{number}", legacy=legacy and number == 0) for number in range(rng.randint(1, 2))
    ]
    used = {mount["name"] for one in containers for mount in one.get("volumeMounts", ())}
    volumes = [{"name": "data", "emptyDir": {}}] if "data" in used else []
    if "request" in used:
        volumes.insert(0, {"name": "request", "hostPath": {"path": "/dev/null"}})
    if "channels" in used:
        volumes.append({"name": "channels", "hostPath": {"path": f"{DEVICES}/channel0"}})
    spec: Plain = {"containers": containers}
    if volumes:
        spec["volumes"] = volumes
    if rng.random() < 0.5:
        spec["restartPolicy"] = "Never"
    if rng.random() < 0.8:
        spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    if shares:
        spec["resourceClaims"] = [{"name": "channel", "resourceClaimTemplateName": "shared-channel"}]
        for one in containers:
            one["resources"] = (one.get("resources") or {}) | {"claims": [{"name": "channel"}]}
    return shuffled(rng, spec)


def workload(rng: random.Random, name: str) -> Plain:
    """In any order of keys: what is inserted may be beside, or above, what belongs to another list or mapping."""
    one = _workload(rng, name)
    if isinstance(one.get("spec"), dict):
        one["spec"] = shuffled(rng, one["spec"])
    return shuffled(rng, one)


def _workload(rng: random.Random, name: str) -> Plain:
    model = rng.choice(["legacy", "legacy", "shares", "shares", "none"])
    spec = pod_spec(rng, legacy=model == "legacy", shares=model == "shares")
    template: Plain = {"spec": spec}
    if rng.random() < 0.5:
        template = shuffled(rng, {"metadata": {"labels": {"app": name}}} | template)
    metadata: Plain = {"name": name}
    pods = rng.randint(1, 18)
    match rng.randint(0, 9):
        case 0:
            return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        case 1:
            body: Plain = {"parallelism": pods, "template": template}
            return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": body}
        case 2:
            command = ["mpirun", *(["-x", f"{VARIABLE}=0"] if model == "legacy" else ()), "train"]
            launcher = {"template": {"spec": {"containers": [{"name": "mpi", "command": command}]}}}
            body = {"mpiReplicaSpecs": {"Launcher": launcher, "Worker": {"replicas": pods, "template": template}}}
            return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": metadata, "spec": body}
        case 3:
            body = {"replicas": 2, "leaderWorkerTemplate": {"size": pods, "workerTemplate": template}}
            api = "leaderworkerset.x-k8s.io/v1"
            return {"apiVersion": api, "kind": "LeaderWorkerSet", "metadata": metadata, "spec": body}
        case 4 | 5 as case:
            selector = {"matchLabels": {"app": name}}
            template = {"metadata": {"labels": {"app": name}}, "spec": spec}
            body = {"replicas": pods, "selector": selector, "template": template}
            kind = "Deployment" if case == 4 else "StatefulSet"
            return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": body}
        case 6:
            workers = {"Worker": {"replicas": pods, "template": template}}
            plain = {
                "template": {"spec": {"containers": [{"name": "pytorch", "image": "registry.example/train:1"}]}}
            }
            body = {"pytorchReplicaSpecs": ({"Master": plain} if rng.random() < 0.5 else {}) | workers}
            return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata, "spec": body}
        case 7 | 8 as case:
            head = {"template": {"spec": {"containers": [{"name": "head", "image": "registry.example/ray:2"}]}}}
            group: Plain = {"groupName": "gb200", "replicas": pods, "template": template}
            body = {"headGroupSpec": head, "workerGroupSpecs": [group]}
            if case == 8:
                body = {"entrypoint": "python train.py", "rayClusterSpec": body}
            kind = "RayCluster" if case == 7 else "RayJob"
            return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": body}
    jobs = [{"name": "workers", "replicas": 2, "template": {"spec": {"template": template}}}]
    body = {"replicatedJobs": jobs}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": body}


def is_legacy(value: Any) -> bool:
    """Whether it has to disappear, and its comments with it."""
    match value:
        case {"name": name} if name == VARIABLE or name in ("request", "channels"):
            return True
        case str():
            return VARIABLE in value or value == "-x"
        case list() if value:
            return all(map(is_legacy, value))
    return False


class Renderer:
    """Writes YAML in many styles. Comments are numbered, and never inside of what has to disappear."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.comments: list[str] = []

    def document(self, content: Plain) -> str:
        return "".join(f"{line}\n" for line in self._mapping(content, 0))

    def comment(self) -> str:
        self.comments.append(f"# comment {len(self.comments)}")
        return self.comments[-1]

    def _chance(self, chance: float) -> bool:
        return self._rng.random() < chance

    def _mapping(self, content: Plain, column: int) -> list[str]:
        lines: list[str] = []
        for key, value in content.items():
            if self._chance(0.1) and column:
                lines.append(" " * column + self.comment())
            lines += self._entry(f"{' ' * column}{key}:", value, column)
            if self._chance(0.05):
                lines.append("")
        return lines

    def _entry(self, head: str, value: Any, column: int) -> list[str]:
        trailing = f"   {self.comment()}" if self._chance(0.1) and not is_legacy(value) else ""
        if isinstance(value, str) and "\n" in value:
            return [f"{head} |+{trailing}", *(f"{' ' * (column + 2)}{line}" for line in value.split("\n")[:-1])]
        if not isinstance(value, dict | list) or not value or self._chance(0.15):
            text = "" if value is None and self._chance(0.5) else f" {self._flow(value)}"
            return [f"{head}{text}{trailing}"]
        if isinstance(value, dict):
            return [f"{head}{trailing}", *self._mapping(value, column + self._rng.choice([2, 4]))]
        if is_legacy(value):
            trailing = ""
        return [f"{head}{trailing}", *self._sequence(value, column + self._rng.choice([0, 2]))]

    def _sequence(self, content: list[Any], column: int) -> list[str]:
        lines: list[str] = []
        for element in content:
            if is_legacy(element):
                lines.append(f"{' ' * column}- {self._flow(element)}")
            elif isinstance(element, dict) and element and self._chance(0.8):
                first, *rest = self._mapping_of_element(element, column + 2)
                lines += [f"{' ' * column}- {first.lstrip()}", *rest]
            else:
                lines += self._entry(f"{' ' * column}-", element, column)
        return lines

    def _mapping_of_element(self, content: Plain, column: int) -> list[str]:
        (key, value), *others = content.items()
        first = self._entry(f"{' ' * column}{key}:", value, column)
        return [*first, *self._mapping(dict(others), column)]

    def _flow(self, value: Any) -> str:
        match value:
            case dict():
                return "{" + ", ".join(f"{key}: {self._flow(item)}" for key, item in value.items()) + "}"
            case list():
                return "[" + ", ".join(map(self._flow, value)) + "]"
            case None:
                return "null"
            case str() if "\n" in value:
                return '"' + value.replace("\n", "\\n") + '"'
            case str():
                return f'"{value}"' if self._chance(0.3) or not value[0].isalpha() else value
        return str(value)


def files(rng: random.Random) -> tuple[dict[str, str], list[str]]:
    """Texts by file, and the comments that have to stay."""
    renderer = Renderer(rng)
    documents = [DOMAIN, *(workload(rng, f"work-{number}x") for number in range(rng.randint(2, 5)))]
    cut = rng.randint(1, len(documents))
    texts: dict[str, str] = {}
    for name, own in (("0.yaml", documents[:cut]), ("1.yaml", documents[cut:])):
        parts = [_headed(renderer, one, rng) for one in own]
        text = ("---\n" if rng.random() < 0.3 else "") + "---\n".join(parts)
        texts[name] = text.rstrip("\n") if rng.random() < 0.2 else text
    return texts, renderer.comments


def _headed(renderer: Renderer, content: Plain, rng: random.Random) -> str:
    head = f"{renderer.comment()}\n" if rng.random() < 0.3 else ""
    return head + renderer.document(content)
