"""The Validating- and the MutatingWebhookConfiguration: for which requests the API server calls the webhook.

Match conditions leave out what cannot concern it, so that pods without claims never wait for it. It is called only
for creations, with a short timeout, and an error is ignored: a dead webhook blocks nothing, but one that cannot be
reached delays these creations up to the timeout. The controller adds the authority of its certificate.
"""

from typing import Any

from imex_dra.api.names import DRIVER, NAMESPACE, PLACEMENT_ANNOTATION, SAME_PARTITION, WEBHOOK
from imex_dra.webhook.program import PATH, PLACE, PLACE_ALL

_TIMEOUT = 5
_CLAIMS = "object.?spec.resourceClaims.orValue([]).size() > 0"
_SYSTEM_NAMESPACES = ["kube-system", NAMESPACE]


def _is_ours(spec: str) -> str:
    return f"{spec}.?devices.config.orValue([]).exists(c, c.?opaque.driver.orValue('') == '{DRIVER}')"


def manifests() -> list[dict[str, Any]]:
    return [validating(), placing()]


def placing() -> dict[str, Any]:
    """Of pods in namespaces with the label, and of pods whose ComputeDomain has the annotation."""
    label = {"key": PLACEMENT_ANNOTATION, "operator": "In", "values": [SAME_PARTITION]}
    named = _webhook("placement", "", "pods", _CLAIMS, PLACE)
    labeled = _webhook("namespace-placement", "", "pods", _CLAIMS, PLACE_ALL)
    labeled["namespaceSelector"]["matchExpressions"].append(label)
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [named, labeled],
    }


def validating() -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [
            _webhook("computedomains", "resource.nvidia.com", "computedomains"),
            _webhook("claims", "resource.k8s.io", "resourceclaims", _is_ours("object.?spec")),
            _webhook("templates", "resource.k8s.io", "resourceclaimtemplates", _is_ours("object.?spec.spec")),
            _webhook("pods", "", "pods", _CLAIMS),
        ],
    }


def _webhook(name: str, group: str, resource: str, condition: str = "", path: str = PATH) -> dict[str, Any]:
    service = {"name": WEBHOOK, "namespace": NAMESPACE, "path": path, "port": 443}
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1" if group != "resource.nvidia.com" else "v1beta1"],
        "operations": ["CREATE"],
        "resources": [resource],
        "scope": "Namespaced",
    }
    not_system = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": _SYSTEM_NAMESPACES,
    }
    return {
        "name": f"{name}.imex-dra.io",
        "clientConfig": {"service": service},
        "rules": [rule],
        "namespaceSelector": {"matchExpressions": [not_system]},
        **({"matchConditions": [{"name": "channel", "expression": condition}]} if condition else {}),
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "timeoutSeconds": _TIMEOUT,
        "admissionReviewVersions": ["v1"],
    }
