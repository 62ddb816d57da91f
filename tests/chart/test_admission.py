"""What the chart installs for admission: the policies and the webhook of the tree, for the release's namespace."""

from typing import Any

import pytest

from imex_dra.api import policies
from imex_dra.api.names import NAMESPACE, WEBHOOK, WEBHOOK_SECRET
from imex_dra.webhook import configuration
from tests.chart.helm import parsed, require, template

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
CONFIGURATIONS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")


@pytest.fixture(autouse=True)
def _helm() -> None:
    require()


def of_kinds(objects: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return sorted((o for o in objects if o["kind"] in kinds), key=lambda o: (o["metadata"]["name"], o["kind"]))


def without_labels(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "metadata": {k: v for k, v in document["metadata"].items() if k != "labels"}}


def moved(value: Any, namespace: str) -> Any:
    """The object for another namespace. Nothing but the namespace is called so."""
    if isinstance(value, dict):
        return {key: moved(inner, namespace) for key, inner in value.items()}
    if isinstance(value, list):
        return [moved(inner, namespace) for inner in value]
    if value == NAMESPACE:
        return namespace
    account = f"serviceaccount:{NAMESPACE}:"
    return value.replace(account, f"serviceaccount:{namespace}:") if isinstance(value, str) else value


@pytest.mark.parametrize("namespace", [NAMESPACE, "elsewhere"])
@pytest.mark.parametrize(
    ("kinds", "manifests"), [(POLICIES, policies.manifests()), (CONFIGURATIONS, configuration.manifests())]
)
def test_they_are_those_of_the_tree_in_the_namespace_of_the_release(
    namespace: str, kinds: tuple[str, ...], manifests: list[dict[str, Any]]
) -> None:
    found = of_kinds(template(namespace=namespace), *kinds)
    assert [without_labels(document) for document in found] == moved(of_kinds(manifests, *kinds), namespace)


def test_the_api_server_finds_the_webhook() -> None:
    objects = template()
    (service,) = of_kinds(objects, "Service")
    (deployment,) = [o for o in of_kinds(objects, "Deployment") if o["metadata"]["name"] == WEBHOOK]
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    flags = parsed(*container["args"])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    (exposed,) = service["spec"]["ports"]
    assert f":{ports[exposed['targetPort']]}" == flags["address"]
    assert f":{ports['metrics']}" == flags["metrics_address"]
    for document in of_kinds(objects, *CONFIGURATIONS):
        for called in document["webhooks"]:
            client = called["clientConfig"]["service"]
            assert (client["name"], client["port"]) == (service["metadata"]["name"], exposed["port"])
            assert called["failurePolicy"] == "Ignore"


def test_the_webhook_has_the_certificate_that_the_controller_issues() -> None:
    objects = template()
    pods = {o["metadata"]["name"]: o["spec"]["template"]["spec"] for o in of_kinds(objects, "Deployment")}
    assert "--webhook-certificates" in pods["imex-controller"]["containers"][0]["args"]
    (volume,) = pods[WEBHOOK]["volumes"]
    (container,) = pods[WEBHOOK]["containers"]
    assert volume["secret"] == {"secretName": WEBHOOK_SECRET}
    assert f"--certificate-dir={container['volumeMounts'][0]['mountPath']}" in container["args"]


def test_a_provided_certificate_is_left_alone_and_named_by_annotations() -> None:
    annotations = {"cert-manager.io/inject-ca-from": "imex-dra/imex-webhook"}
    values = {"webhook.certificates": "provided", "webhook.configurationAnnotations": annotations}
    objects = template(values=values)
    (controller, _) = of_kinds(objects, "Deployment")
    assert "--webhook-certificates" not in controller["spec"]["template"]["spec"]["containers"][0]["args"]
    for document in of_kinds(objects, *CONFIGURATIONS):
        assert document["metadata"]["annotations"] == annotations


def test_pods_are_not_changed_without_placement() -> None:
    assert [o["kind"] for o in of_kinds(template(values={"webhook.placement": False}), *CONFIGURATIONS)] == [
        "ValidatingWebhookConfiguration"
    ]


def test_without_webhook_and_policies_nothing_of_them_is_left() -> None:
    objects = template(values={"webhook.enabled": False, "policies.install": False})
    assert of_kinds(objects, *POLICIES, *CONFIGURATIONS, "Service") == []
    assert [o for o in objects if o["metadata"]["name"] == WEBHOOK] == []
    (controller,) = of_kinds(objects, "Deployment")
    assert "--webhook-certificates" not in controller["spec"]["template"]["spec"]["containers"][0]["args"]
