"""Where kinds of workloads have their pod templates, and how many pods each template stands for.

One line per kind. In a path, `*` stands for every element of a list and every value of a mapping. An object of
another kind is searched for templates, so that kinds of other operators are checked, too.
"""

from collections.abc import Iterator
from typing import NamedTuple

from imex_dra.lint.values import Value

PER_NODE = None
"""Number of pods of a DaemonSet: one on each node."""


class Template(NamedTuple):
    """A pod template, or a Pod."""

    value: Value
    role: str
    """What the workload calls it: Worker, Launcher, a name; empty if it has only one."""
    pods: int | None
    """Number of pods that form one job, or PER_NODE."""
    counted: Value
    """Where that number is written."""
    annotated: tuple[Value, ...]
    """Metadata of the objects around it, whose annotations may say where the pods run."""


class _Place(NamedTuple):
    path: str
    counts: tuple[str, ...] = ()
    """Their product is the number of pods. Relative to what `*` stands for, or else to the object."""


_REPLICATED = (_Place("spec.template", ("spec.replicas",)),)
_RAY = (("headGroupSpec", ()), ("workerGroupSpecs.*", ("replicas", "numOfHosts")))


def _kubeflow(field: str) -> tuple[_Place, ...]:
    return (_Place(f"spec.{field}.*.template", ("replicas",)),)


def _ray(prefix: str) -> tuple[_Place, ...]:
    return tuple(_Place(f"{prefix}.{path}.template", counts) for path, counts in _RAY)


PLACES: dict[str, tuple[_Place, ...]] = {
    "Pod": (_Place(""),),
    "Deployment": _REPLICATED,
    "ReplicaSet": _REPLICATED,
    "ReplicationController": _REPLICATED,
    "StatefulSet": _REPLICATED,
    "DaemonSet": (_Place("spec.template"),),
    "Job": (_Place("spec.template", ("spec.parallelism",)),),
    "CronJob": (_Place("spec.jobTemplate.spec.template", ("spec.jobTemplate.spec.parallelism",)),),
    "JobSet": (_Place("spec.replicatedJobs.*.template.spec.template", ("replicas", "template.spec.parallelism")),),
    "MPIJob": _kubeflow("mpiReplicaSpecs"),
    "PyTorchJob": _kubeflow("pytorchReplicaSpecs"),
    "TFJob": _kubeflow("tfReplicaSpecs"),
    "JAXJob": _kubeflow("jaxReplicaSpecs"),
    "RayCluster": _ray("spec"),
    "RayJob": _ray("spec.rayClusterSpec"),
    "RayService": _ray("spec.rayClusterConfig"),
}


def templates_of(kind: str, value: Value) -> list[Template]:
    if kind == "LeaderWorkerSet":
        return list(_leader_worker_set(value))
    found = [template for place in PLACES.get(kind, ()) for template in _at_place(value, place)]
    if kind == "DaemonSet":
        return [template._replace(pods=PER_NODE) for template in found]
    # Kinds of other operators may have a known name, such as the Job of Volcano.
    return found or list(_search(value))


def _at_place(value: Value, place: _Place) -> Iterator[Template]:
    prefix, star, suffix = place.path.partition(".*")
    if not star:
        template = value.at(place.path) if place.path else value
        yield from _template(template, "", value, place.counts, ())
        return
    owner = value.at(prefix)
    named = [(item["name"].text or item["groupName"].text, item) for item in owner.elements()]
    for role, item in (*named, *owner.items()):
        between = (item["template"]["metadata"],)
        yield from _template(item.at(suffix.removeprefix(".")), role, item, place.counts, between)


def _template(
    value: Value, role: str, owner: Value, counts: tuple[str, ...], annotated: tuple[Value, ...]
) -> Iterator[Template]:
    if not value["spec"]["containers"].elements():
        return
    pods, count = 1, value
    for path in counts:
        number = owner.at(path)
        pods *= number.count(1)
        if number.exists and (count is value or number.count(1) > 1):
            count = number
    yield Template(value, role, pods, count, annotated)


def _leader_worker_set(value: Value) -> Iterator[Template]:
    """A job is one group: `replicas` groups are independent of each other."""
    group = value.at("spec.leaderWorkerTemplate")
    size = group["size"]
    leader = group["leaderTemplate"]
    leaders = 1 if leader["spec"]["containers"].elements() else 0
    for template, role, pods in (
        (leader, "leader", 1),
        (group["workerTemplate"], "worker", max(size.count(1) - leaders, 0)),
    ):
        for found in _template(template, role, value, (), ()):
            yield found._replace(pods=pods, counted=size if size.exists else template)


def _search(value: Value) -> Iterator[Template]:
    """Every `template` with containers in an object of an unknown kind."""
    stack = [value]
    while stack:
        owner = stack.pop()
        template = owner["template"]
        if template["spec"]["containers"].elements():
            yield from _template(template, owner["name"].text, owner, ("replicas",), ())
        else:
            stack += [item for _, item in owner.items()]
            stack += owner.elements()
