"""What Kubernetes rejects, with the same code and fields: a real API server first, then the embedded one."""

from typing import Any

import pytest

from tests.sandbox.embedded.conftest import MERGE_PATCH, Api
from tests.sandbox.embedded.test_builtin import create_account, create_pod, pod
from tests.sandbox.embedded.test_objects import domain

APPS, BATCH = "apps/v1", "batch/v1"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
CLAIM = {"name": "imex", "resourceClaimTemplateName": "channel"}


def container(name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "registry.example/app:1", **fields}


def using(**resources: Any) -> dict[str, Any]:
    return {"containers": [container(resources=resources)]}


def pod_affinity(**term: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"job": "a"}}
    return {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "rack", "labelSelector": selector, **term}]}}}


def node_affinity(**requirement: Any) -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "rack", **requirement}]}]
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}


def spread(**constraint: Any) -> dict[str, Any]:
    defaults = {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    return {"topologySpreadConstraints": [{**defaults, **constraint}]}


SPREAD = "topologySpreadConstraints[0]"
POD_TERM = f"affinity.podAffinity.{REQUIRED}[0]"
NODE_TERM = f"affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0]"
GPU = "example.com/gpu"

WRONG_PODS: list[tuple[str, dict[str, Any], set[str]]] = [
    (
        "a claim that the pod does not have",
        using(claims=[{"name": "imex"}]),
        {"containers[0].resources.claims[0]"},
    ),
    (
        "another claim than that of the pod",
        {"resourceClaims": [CLAIM], **using(claims=[{"name": "imx"}])},
        {"containers[0].resources.claims[0]"},
    ),
    (
        "a claim twice in a container",
        {"resourceClaims": [CLAIM], **using(claims=[{"name": "imex"}, {"name": "imex"}])},
        {"containers[0].resources.claims[1]"},
    ),
    (
        "a claim that is not there, in an init container",
        {"initContainers": [container("init", resources={"claims": [{"name": "imex"}]})]},
        {"initContainers[0].resources.claims[0]"},
    ),
    (
        "a claim from a template and by name",
        {"resourceClaims": [{**CLAIM, "resourceClaimName": "b"}]},
        {"resourceClaims[0]"},
    ),
    ("a claim from nothing", {"resourceClaims": [{"name": "imex"}]}, {"resourceClaims[0]"}),
    ("two claims of one name", {"resourceClaims": [CLAIM, CLAIM]}, {"resourceClaims[1].name"}),
    ("a claim with a wrong name", {"resourceClaims": [{**CLAIM, "name": "IMEX"}]}, {"resourceClaims[0].name"}),
    (
        "a mount of an unknown volume",
        {"containers": [container(volumeMounts=[{"name": "data", "mountPath": "/data"}])]},
        {"containers[0].volumeMounts[0].name"},
    ),
    (
        "two mounts at one path",
        {
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [container(volumeMounts=[{"name": "data", "mountPath": "/data"}] * 2)],
        },
        {"containers[0].volumeMounts[1].mountPath"},
    ),
    ("two volumes of one name", {"volumes": [{"name": "data", "emptyDir": {}}] * 2}, {"volumes[1].name"}),
    ("a volume without a name", {"volumes": [{"emptyDir": {}}]}, {"volumes[0].name"}),
    ("two containers of one name", {"containers": [container(), container()]}, {"containers[1].name"}),
    ("an init container named like another", {"initContainers": [container()]}, {"initContainers[0].name"}),
    ("no image", {"containers": [{"name": "main"}]}, {"containers[0].image"}),
    ("no name", {"containers": [container(), {"image": "a"}]}, {"containers[1].name"}),
    ("a wrong name", {"containers": [container("Main_1")]}, {"containers[0].name"}),
    (
        "a wrong pull policy",
        {"containers": [container(imagePullPolicy="Rarely")]},
        {"containers[0].imagePullPolicy"},
    ),
    ("more than the limit", using(requests={"cpu": 2}, limits={"cpu": "1"}), {"containers[0].resources.requests"}),
    (
        "half a GPU",
        using(limits={GPU: "0.5"}),
        {f"containers[0].resources.{field}[{GPU}]" for field in ("limits", "requests")},
    ),
    ("a GPU without a limit", using(requests={GPU: 1}), {"containers[0].resources.limits"}),
    ("fewer GPUs than the limit", using(requests={GPU: 1}, limits={GPU: 2}), {"containers[0].resources.requests"}),
    ("an unknown resource", using(requests={"gpu": 1}), {"containers[0].resources.requests[gpu]"}),
    ("a negative amount", using(requests={"cpu": -1}), {"containers[0].resources.requests[cpu]"}),
    ("a wrong restart policy", {"restartPolicy": "Sometimes"}, {"restartPolicy"}),
    ("a wrong DNS policy", {"dnsPolicy": "Sometimes"}, {"dnsPolicy"}),
    ("two mistakes", {"restartPolicy": "Sometimes", "dnsPolicy": "Sometimes"}, {"restartPolicy", "dnsPolicy"}),
    ("a wrong operator", {"tolerations": [{"key": "a", "operator": "Like"}]}, {"tolerations[0].operator"}),
    ("a wrong effect", {"tolerations": [{"key": "a", "effect": "Maybe"}]}, {"tolerations[0].effect"}),
    (
        "a value that is not compared",
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        {"tolerations[0].operator"},
    ),
    ("a toleration of no key", {"tolerations": [{"value": "b"}]}, {"tolerations[0].operator"}),
    (
        "seconds without an eviction",
        {"tolerations": [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 3}]},
        {"tolerations[0].effect"},
    ),
    ("a node label that cannot exist", {"nodeSelector": {"rack": "a b"}}, {"nodeSelector"}),
    (
        "a wrong operator for pods",
        pod_affinity(labelSelector={"matchExpressions": [{"key": "job", "operator": "Gt", "values": ["1"]}]}),
        {f"{POD_TERM}.labelSelector.matchExpressions[0].operator"},
    ),
    (
        "a wrong operator for nodes",
        node_affinity(operator="Is", values=["a"]),
        {f"{NODE_TERM}.matchExpressions[0].operator"},
    ),
    ("no values", node_affinity(operator="In"), {f"{NODE_TERM}.matchExpressions[0].values"}),
    (
        "too many values",
        node_affinity(operator="Gt", values=["1", "2"]),
        {f"{NODE_TERM}.matchExpressions[0].values"},
    ),
    (
        "values that are not compared",
        node_affinity(operator="Exists", values=["a"]),
        {f"{NODE_TERM}.matchExpressions[0].values"},
    ),
    ("no skew", spread(maxSkew=0), {f"{SPREAD}.maxSkew"}),
    ("no domains", spread(minDomains=0), {f"{SPREAD}.minDomains"}),
    (
        "an unknown alternative",
        spread(whenUnsatisfiable="Maybe"),
        {f"{SPREAD}.whenUnsatisfiable"},
    ),
    (
        "keys without a selector",
        pod_affinity(labelSelector=None, matchLabelKeys=["a"]),
        {f"{POD_TERM}.matchLabelKeys"},
    ),
    ("keys of a spread without a selector", spread(matchLabelKeys=["a"]), {f"{SPREAD}.matchLabelKeys"}),
    ("an empty topology", spread(topologyKey=""), {f"{SPREAD}.topologyKey"}),
]


def fields_of(status: Any) -> set[str]:
    assert (status["code"], status["reason"]) == (422, "Invalid"), status
    causes = status["details"]["causes"]
    assert all(f"{cause['field']}: {cause['message']}" in status["message"] for cause in causes)
    return {cause["field"] for cause in causes}


@pytest.mark.parametrize(
    ("spec", "fields"), [case[1:] for case in WRONG_PODS], ids=[case[0].replace(" ", "-") for case in WRONG_PODS]
)
async def test_a_wrong_pod_is_rejected_with_its_fields(
    server: Api, spec: dict[str, Any], fields: set[str]
) -> None:
    await create_account(server)
    _, status = await server.request("POST", server.path("pods", group="v1"), pod(**spec))
    assert fields_of(status) == {f"spec.{field}" for field in fields}
    assert status["message"].startswith('Pod "x" is invalid: ')


async def test_a_key_is_not_selected_twice(server: Api) -> None:
    """Keys of labels that the pod does not have are ignored."""
    spec = pod_affinity(matchLabelKeys=["job"])
    await create_account(server)
    body = pod(**spec, automountServiceAccountToken=False)
    labels = {"labels": {"job": "a"}}
    _, status = await server.request(
        "POST", server.path("pods", group="v1"), {**body, "metadata": {"name": "x", **labels}}
    )
    assert fields_of(status) == {f"spec.{POD_TERM}[0]"}
    code, created = await server.request("POST", server.path("pods", group="v1"), body)
    assert (code, created["spec"]["affinity"]) == (201, spec["affinity"])
    body = stateful_set(template=template({"app": "a", "job": "a"}, **spec))
    code, created = await server.request("POST", server.path("statefulsets", group=APPS), body)
    assert code == 201, created


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"a b": "c"}}, "metadata.labels"),
        ({"labels": {"a": "b c"}}, "metadata.labels"),
        ({"labels": {"a": "b" * 64}}, "metadata.labels"),
        ({"labels": {"Example.com/a": "b"}}, "metadata.labels"),
        ({"labels": {"a/b/c": "d"}}, "metadata.labels"),
        ({"annotations": {"a b": "c"}}, "metadata.annotations"),
    ],
    ids=["key", "value", "long", "prefix", "two-prefixes", "annotation"],
)
async def test_wrong_labels_and_annotations_are_rejected(
    server: Api, metadata: dict[str, Any], field: str
) -> None:
    path = server.path("configmaps", group="v1")
    _, status = await server.request("POST", path, {"metadata": {"name": "x", **metadata}})
    assert fields_of(status) == {field}
    await server.request("POST", path, {"metadata": {"name": "x"}})
    _, status = await server.request("PATCH", f"{path}/x", {"metadata": metadata}, MERGE_PATCH)
    assert fields_of(status) == {field}
    _, status = await server.request(
        "POST", server.path("computedomains", group=domain()["apiVersion"]), domain(**metadata)
    )
    assert fields_of(status) == {field}


async def test_labels_that_are_allowed(server: Api) -> None:
    labels = {"a": "", "example.com/a_B.c-1": "A_b.c-1", "b" * 63: "c" * 63}
    body = {"metadata": {"name": "x", "labels": labels, "annotations": {"Example.com/A": "any thing: {}"}}}
    code, created = await server.request("POST", server.path("configmaps", group="v1"), body)
    assert (code, created["metadata"]["labels"]) == (201, labels)


def template(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": labels or {"app": "a"}}, "spec": {"containers": [container()], **spec}}


def job(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "spec": {"template": template(restartPolicy="Never"), **spec}}


def stateful_set(**spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"app": "a"}}
    common = {"selector": selector, "serviceName": "x", "replicas": 0, "template": template()}
    return {"metadata": {"name": "x"}, "spec": {**common, **spec}}


POLICY = "spec.template.spec.restartPolicy"
LABELS = "spec.template.metadata.labels"
OTHER = {"matchLabels": {"app": "b"}}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"template": template()}, {POLICY}),
        ({"template": template(restartPolicy="Always")}, {POLICY}),
        ({"template": template(restartPolicy="Sometimes")}, {POLICY}),
        ({"selector": OTHER}, {"spec.selector", LABELS}),
        ({"parallelism": -1}, {"spec.parallelism"}),
        ({"backoffLimit": -1}, {"spec.backoffLimit"}),
        ({"ttlSecondsAfterFinished": -1}, {"spec.ttlSecondsAfterFinished"}),
        (
            {"template": template(restartPolicy="Never", **using(claims=[{"name": "imex"}]))},
            {"spec.template.spec.containers[0].resources.claims[0]"},
        ),
        ({"template": template(restartPolicy="Never", containers=[])}, {"spec.template.spec.containers"}),
    ],
    ids=["default", "Always", "unknown", "selector", "parallelism", "backoff", "ttl", "claim", "containers"],
)
async def test_a_wrong_job_is_rejected_with_its_fields(
    server: Api, spec: dict[str, Any], fields: set[str]
) -> None:
    _, status = await server.request("POST", server.path("jobs", group=BATCH), job(**spec))
    assert fields_of(status) == fields
    assert status["message"].startswith('Job.batch "x" is invalid: ')


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"selector": OTHER}, {LABELS}),
        ({"selector": {}}, {"spec.selector"}),
        ({"template": template(restartPolicy="Never")}, {POLICY}),
        ({"replicas": -1}, {"spec.replicas"}),
        ({"podManagementPolicy": "Random"}, {"spec.podManagementPolicy"}),
        ({"template": template({"app": "a", "b": "c d"})}, {"spec.template.labels"}),
        (
            {"template": template(**using(limits={GPU: "1.5"}))},
            {f"spec.template.spec.containers[0].resources.limits[{GPU}]"},
        ),
    ],
    ids=["selector", "empty", "policy", "replicas", "order", "label", "gpu"],
)
async def test_a_wrong_stateful_set_is_rejected_with_its_fields(
    server: Api, spec: dict[str, Any], fields: set[str]
) -> None:
    _, status = await server.request("POST", server.path("statefulsets", group=APPS), stateful_set(**spec))
    assert fields_of(status) == fields


async def test_a_wrong_quantity_in_a_template_is_refused(server: Api) -> None:
    body = stateful_set(template=template(**using(limits={"cpu": "four"})))
    code, status = await server.request("POST", server.path("statefulsets", group=APPS), body)
    assert (code, "quantities must match" in status["message"]) == (400, True)


async def test_an_update_keeps_the_name_and_the_namespace_of_its_path(api: Api) -> None:
    path = api.path("leases")
    await api.request("POST", path, {"metadata": {"name": "x"}})
    other = "the name of the object (y) does not match the name on the URL (x)"
    for metadata, message in (
        ({"name": "y"}, other),
        ({}, "the name of the object (x based on URL) was undeterminable: name must be provided"),
        (
            {"name": "x", "namespace": "other"},
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
    ):
        code, status = await api.request("PUT", f"{path}/x", {"metadata": metadata})
        assert (code, status["message"]) == (400, message)
    code, status = await api.request("PATCH", f"{path}/x", {"metadata": {"name": "y"}}, MERGE_PATCH)
    assert (code, status["message"]) == (400, other)


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_some_namespaces_cannot_be_deleted(server: Api, name: str) -> None:
    code, status = await server.request("DELETE", f"/api/v1/namespaces/{name}")
    assert (code, status["reason"]) == (403, "Forbidden")
    assert status["message"] == f'namespaces "{name}" is forbidden: this namespace may not be deleted'


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priorityClassName": "urgent"}, "no PriorityClass with name urgent was found"),
        ({"runtimeClassName": "small"}, 'pod rejected: RuntimeClass "small" not found'),
    ],
    ids=["priority", "runtime"],
)
async def test_a_class_that_does_not_exist_is_forbidden(server: Api, spec: dict[str, str], message: str) -> None:
    await create_account(server)
    code, status = await server.request("POST", server.path("pods", group="v1"), pod(**spec))
    assert (code, status["message"]) == (403, f'pods "x" is forbidden: {message}')


async def test_critical_pods_have_their_priority(server: Api) -> None:
    created = await create_pod(server, priorityClassName="system-node-critical")
    assert created["spec"]["priority"] == 2000001000


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"terminationGracePeriodSeconds": 5}, "spec"),
        ({"tolerations": []}, "spec.tolerations"),
        ({"nodeSelector": {"a": "b"}}, "spec"),
        ({"schedulingGates": [{"name": "example.com/gate"}]}, "spec.schedulingGates[0].name"),
    ],
    ids=["grace-period", "tolerations", "selector", "gates"],
)
async def test_what_cannot_be_changed_in_a_pod(server: Api, spec: dict[str, Any], field: str) -> None:
    await create_pod(server, tolerations=[{"key": "a", "operator": "Exists"}])
    path = server.path("pods", "x", group="v1")
    _, status = await server.request("PATCH", path, {"spec": spec}, MERGE_PATCH)
    assert fields_of(status) == {field}


async def test_scheduling_gates_can_only_be_removed(server: Api) -> None:
    await create_pod(server, schedulingGates=[{"name": "example.com/a"}, {"name": "example.com/b"}])
    path = server.path("pods", "x", group="v1")
    gates = [{"name": "example.com/a"}, {"name": "example.com/c"}]
    _, status = await server.request("PATCH", path, {"spec": {"schedulingGates": gates}}, MERGE_PATCH)
    assert fields_of(status) == {"spec.schedulingGates[1].name"}
    for left in (gates[:1], []):
        code, changed = await server.request("PATCH", path, {"spec": {"schedulingGates": left}}, MERGE_PATCH)
        assert (code, changed["spec"].get("schedulingGates") or []) == (200, left)


async def test_an_update_of_a_pod_is_checked(server: Api) -> None:
    await create_pod(server)
    path = server.path("pods", "x", group="v1")
    added = [{"key": "a", "operator": "Like"}]
    _, live = await server.request("GET", path)
    patch = {"spec": {"tolerations": [*live["spec"]["tolerations"], *added]}}
    _, status = await server.request("PATCH", path, patch, MERGE_PATCH)
    assert fields_of(status) == {"spec.tolerations[2].operator"}
    added = [{"key": "a", "operator": "Exists"}]
    patch = {"spec": {"tolerations": [*live["spec"]["tolerations"], *added]}}
    code, _ = await server.request("PATCH", path, patch, MERGE_PATCH)
    assert code == 200


VOLUME: dict[str, Any] = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
RULE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}
INDEXED = {"completionMode": "Indexed", "completions": 1}
VOLUME_TEMPLATE = {
    "metadata": {"name": "v"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.mark.parametrize(
    ("plural", "group", "body", "what"),
    [
        (
            "services",
            "v1",
            {"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}},
            "a Service with a cluster IP",
        ),
        ("statefulsets", APPS, stateful_set(volumeClaimTemplates=[VOLUME_TEMPLATE]), "with volumeClaimTemplates"),
        ("statefulsets", APPS, stateful_set(minReadySeconds=5), "a StatefulSet with minReadySeconds"),
        ("statefulsets", APPS, stateful_set(ordinals={"start": 1}), "a StatefulSet with ordinals"),
        ("statefulsets", APPS, stateful_set(template=template(**VOLUME)), "a Pod with a PersistentVolumeClaim"),
        ("jobs", BATCH, job(**INDEXED), "a Job with completionMode"),
        ("jobs", BATCH, job(activeDeadlineSeconds=5), "a Job with activeDeadlineSeconds"),
        ("jobs", BATCH, job(podFailurePolicy={"rules": [RULE]}), "a Job with pod"),
        ("jobs", BATCH, job(**INDEXED, successPolicy={"rules": [{"succeededCount": 1}]}), "a Job with"),
        ("jobs", BATCH, job(**INDEXED, backoffLimitPerIndex=0), "a Job with"),
        ("jobs", BATCH, job(managedBy="example.com/other"), "a Job with managedBy"),
        ("jobs", BATCH, job(podReplacementPolicy="Failed"), "a Job with podReplacementPolicy"),
        (
            "jobs",
            BATCH,
            job(manualSelector=True, selector={"matchLabels": {"app": "a"}}),
            "a Job with manualSelector",
        ),
        ("pods", "v1", pod(**VOLUME), "a Pod with a PersistentVolumeClaim"),
        (
            "pods",
            "v1",
            pod(**pod_affinity(namespaceSelector={"matchLabels": {"a": "b"}})),
            "a Pod with an affinity that selects namespaces by labels",
        ),
        ("pods", "v1", pod(activeDeadlineSeconds=5), "a Pod with activeDeadlineSeconds"),
        ("pods", "v1", pod(resources={"requests": {"cpu": "1"}}), "a Pod with resources"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
async def test_what_would_have_no_effect_is_not_supported(
    server: Api, plural: str, group: str, body: dict[str, Any], what: str
) -> None:
    await create_account(server)
    code, status = await server.request("POST", server.path(plural, group=group), body)
    if server.is_real:
        assert code == 201, status
    else:
        assert (code, status["reason"]) == (501, "NotImplemented"), status
        assert what in status["message"]


NEW_IMAGE = {"template": {"spec": {"containers": [container(image="registry.example/app:2")]}}}
RESTARTED = {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}


@pytest.mark.parametrize(
    ("plural", "spec", "fields"),
    [
        ("jobs", NEW_IMAGE, {"spec.template"}),
        ("jobs", RESTARTED, {"spec.template"}),
        ("jobs", {"completions": 2}, {"spec.completions"}),
        ("jobs", {"completionMode": "Indexed"}, {"spec.completionMode"}),
        ("statefulsets", {"serviceName": "other"}, {"spec"}),
        ("statefulsets", {"podManagementPolicy": "Parallel"}, {"spec"}),
        ("statefulsets", {"selector": OTHER}, {"spec", LABELS}),
    ],
)
async def test_what_cannot_be_changed_in_workloads(
    server: Api, plural: str, spec: dict[str, Any], fields: set[str]
) -> None:
    group, body = (BATCH, job()) if plural == "jobs" else (APPS, stateful_set())
    await server.request("POST", server.path(plural, group=group), body)
    _, status = await server.request("PATCH", server.path(plural, "x", group=group), {"spec": spec}, MERGE_PATCH)
    # Before 1.37 and here, all of a StatefulSet's fields are one cause. Later each is named.
    named = {f"spec.{name}" for name in spec}
    assert fields_of(status) in (fields, (fields - {"spec"}) | named)


@pytest.mark.parametrize(
    ("plural", "spec", "what"),
    [
        ("statefulsets", NEW_IMAGE, "a change of the template of a StatefulSet"),
        ("statefulsets", RESTARTED, "a change of the template of a StatefulSet"),
        ("statefulsets", {"minReadySeconds": 5}, "a StatefulSet with minReadySeconds"),
        ("jobs", {"activeDeadlineSeconds": 5}, "a Job with activeDeadlineSeconds"),
        ("jobs", {"suspend": True}, "suspending a Job that exists"),
        ("jobs", {"parallelism": 0}, "a lower parallelism of a Job that exists"),
    ],
)
async def test_changes_without_effect_are_not_supported(
    server: Api, plural: str, spec: dict[str, Any], what: str
) -> None:
    group, body = (BATCH, job()) if plural == "jobs" else (APPS, stateful_set())
    await server.request("POST", server.path(plural, group=group), body)
    path = server.path(plural, "x", group=group)
    code, status = await server.request("PATCH", path, {"spec": spec}, MERGE_PATCH)
    assert code == 200 if server.is_real else (code, what in status["message"]) == (501, True), status


async def test_what_can_be_changed_in_workloads(server: Api) -> None:
    await server.request("POST", server.path("jobs", group=BATCH), job(suspend=True))
    await server.request("POST", server.path("statefulsets", group=APPS), stateful_set())
    for plural, group, spec in (
        ("jobs", BATCH, {"parallelism": 2, "backoffLimit": 1, "suspend": False}),
        ("statefulsets", APPS, {"replicas": 2}),
    ):
        path = server.path(plural, "x", group=group)
        code, changed = await server.request("PATCH", path, {"spec": spec}, MERGE_PATCH)
        assert (code, {name: changed["spec"][name] for name in spec}) == (200, spec)


@pytest.mark.parametrize(
    "key", ["operator", "values", "maxSkew", "labelSelector", "matchLabelKeys", "topologyKey"]
)
async def test_labels_may_be_named_like_fields_of_selectors(server: Api, key: str) -> None:
    selector = {"matchLabels": {key: "x"}}
    await create_pod(server, **pod_affinity(labelSelector=selector), **spread(labelSelector=selector))


RESOURCE = "resource.k8s.io/v1"


def devices(**exactly: Any) -> dict[str, Any]:
    return {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "a.example.com", **exactly}}]}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (devices(allocationMode="all"), "exactly.allocationMode"),
        (devices(allocationMode="All", count=2), "exactly.count"),
        (devices(count=-1), "exactly.count"),
        (devices(selectors=[{}]), "exactly.selectors[0].cel"),
        (devices(deviceClassName=""), "exactly.deviceClassName"),
        ({"devices": {"requests": [{"name": "r"}]}}, ""),
    ],
    ids=["mode", "count-of-all", "count", "selector", "class", "nothing"],
)
async def test_a_wrong_claim_is_rejected_with_its_fields(server: Api, spec: dict[str, Any], field: str) -> None:
    path = f"spec.devices.requests[0].{field}".rstrip(".")
    body: dict[str, Any] = {"metadata": {"name": "x"}, "spec": spec}
    _, status = await server.request("POST", server.path("resourceclaims", group=RESOURCE), body)
    assert fields_of(status) == {path}
    body = {"metadata": {"name": "x"}, "spec": {"spec": spec}}
    _, status = await server.request("POST", server.path("resourceclaimtemplates", group=RESOURCE), body)
    assert fields_of(status) == {f"spec.{path}"}


async def test_a_device_class_with_an_empty_selector_is_rejected(server: Api) -> None:
    body = {"metadata": {"name": server.namespace}, "spec": {"selectors": [{}]}}
    _, status = await server.request("POST", f"/apis/{RESOURCE}/deviceclasses", body)
    assert fields_of(status) == {"spec.selectors[0].cel"}


async def test_claims_have_defaults_for_empty_values(server: Api) -> None:
    body = {"metadata": {"name": "x"}, "spec": devices(allocationMode="", count=0)}
    code, created = await server.request("POST", server.path("resourceclaims", group=RESOURCE), body)
    exactly = created["spec"]["devices"]["requests"][0]["exactly"]
    assert (code, exactly["allocationMode"], exactly["count"]) == (201, "ExactCount", 1)


async def test_a_large_amount_is_accepted(server: Api) -> None:
    await create_pod(server, **using(limits={GPU: "1e30", "cpu": "1e19"}))


async def test_an_amount_out_of_range_is_rejected(embedded: Api) -> None:
    """Only here: a real API server computes for minutes."""
    for amount in ("1e99999999", "1e-99999999"):
        _, status = await embedded.request(
            "POST", embedded.path("pods", group="v1"), pod(**using(limits={"cpu": amount}))
        )
        assert "spec.containers[0].resources.limits[cpu]" in fields_of(status)
        body = {"metadata": {"name": "x"}, "status": {"allocatable": {"cpu": amount}}}
        _, status = await embedded.request("POST", "/api/v1/nodes", body)
        assert fields_of(status) == {"status.allocatable"}
