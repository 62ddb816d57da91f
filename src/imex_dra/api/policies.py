"""ValidatingAdmissionPolicies: what RBAC cannot say. They run in the API server, and need no program of ours.

RBAC gives the account of `imex node` rights on all NVLinkNodes and ResourceSlices; these policies hold each token
to the objects of the node that it was issued for. They also keep users who can write ComputeDomains away from what
only the controller may write. Who may write the status of an NVLinkPartition is the controller, or administers the
cluster: that right tells them apart from users, and so no account is named here but that of `imex node`.
"""

from typing import Any, NamedTuple

from imex_dra.api.names import (
    ALL_CHANNELS_ALLOWED,
    ALL_CHANNELS_LABEL,
    DOMAIN_FINALIZER,
    DRIVER,
    NAMESPACE,
    PLACEMENT_ANNOTATION,
    READINESS_ANNOTATION,
    READINESS_MEMBERS,
    RELEASE_ANNOTATION,
    RELEASE_NOW,
    SAME_PARTITION,
)

NODE_ACCOUNT = f"system:serviceaccount:{NAMESPACE}:imex-node"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_NODE = f"request.userInfo.extra[?'{_NODE_NAME}'].orValue([''])[0]"
"""The node that the token was issued for; only the API server sets it, from the token."""

_ADMINISTERS = (
    "authorizer.group('imex-dra.io').resource('nvlinkpartitions').subresource('status').check('patch').allowed()"
)
_MAY_DELETE = (
    "authorizer.group('resource.nvidia.com').resource('computedomains').namespace(request.namespace)"
    ".name(request.name).check('delete').allowed()"
)


class Validation(NamedTuple):
    expression: str
    message: str


class Policy(NamedTuple):
    name: str
    group: str
    versions: tuple[str, ...]
    resources: tuple[str, ...]
    operations: tuple[str, ...]
    validations: tuple[Validation, ...]
    match: str = ""
    """Condition of the request; empty: all requests."""
    variables: tuple[tuple[str, str], ...] = ()
    action: str = "Deny"


_OF_NODE = f"request.userInfo.username == '{NODE_ACCOUNT}'"
_BOUND = Validation(
    "variables.node != ''",
    "the token of imex node names no node: it must be that of a pod, or be bound to a Node",
)


def _every_version(expression: str) -> str:
    """For the object before and after the request; one of them may not exist."""
    return " && ".join(
        f"({version} == null || {expression.replace('OBJECT', version)})" for version in ("object", "oldObject")
    )


def _changed(value: str, none: str = "''") -> str:
    """Whether a value of the object changes; `none` is the value if there was no object before."""
    before, after = (value.replace("OBJECT", version) for version in ("oldObject", "object"))
    return f"(oldObject == null ? {none} : {before}) != {after}"


def _annotation(name: str) -> str:
    return f"OBJECT.?metadata.annotations[?'{name}'].orValue('')"


def _known(annotation: str, *values: str) -> str:
    """Whether it does not exist, has one of these values, or does not change: one that is stored already must not
    hinder others, such as the controller, which removes its finalizer.
    """
    value = _annotation(annotation)
    return f"!({_changed(value)}) || {value.replace('OBJECT', 'object')} in {['', *values]}"


_HAS_FINALIZER = f"OBJECT.?metadata.finalizers.orValue([]).exists(f, f == '{DOMAIN_FINALIZER}')"

POLICIES = (
    Policy(
        "imex-node-nvlinknodes",
        "imex-dra.io",
        ("v1alpha1",),
        ("nvlinknodes", "nvlinknodes/status"),
        ("CREATE", "UPDATE", "DELETE"),
        (
            _BOUND,
            Validation("request.name == variables.node", "imex node writes only the NVLinkNode of its own node"),
        ),
        match=_OF_NODE,
        variables=(("node", _NODE),),
    ),
    Policy(
        "imex-node-resourceslices",
        "resource.k8s.io",
        ("*",),
        ("resourceslices",),
        ("CREATE", "UPDATE", "DELETE"),
        (
            _BOUND,
            Validation(
                _every_version("OBJECT.?spec.nodeName.orValue('') == variables.node"),
                "imex node writes only ResourceSlices of its own node",
            ),
            Validation(
                _every_version(f"(OBJECT.spec.driver == '{DRIVER}' && OBJECT.spec.pool.name == variables.node)"),
                f"imex node writes only ResourceSlices of the driver {DRIVER}, in the pool of its own node",
            ),
        ),
        match=_OF_NODE,
        variables=(("node", _NODE),),
    ),
    Policy(
        "imex-node-resourceclaims",
        "resource.k8s.io",
        ("*",),
        ("resourceclaims/status",),
        ("UPDATE",),
        (
            _BOUND,
            Validation(
                "oldObject.?status.allocation.devices.results.orValue([])"
                f".exists(r, r.driver == '{DRIVER}' && r.pool == variables.node)",
                "imex node writes only the status of claims that are allocated on its own node",
            ),
        ),
        match=_OF_NODE,
        variables=(("node", _NODE),),
    ),
    Policy(
        "imex-computedomain-status",
        "resource.nvidia.com",
        ("*",),
        ("computedomains/status",),
        ("UPDATE",),
        (Validation(_ADMINISTERS, "only imex controller writes the status of a ComputeDomain"),),
    ),
    Policy(
        "imex-computedomain-metadata",
        "resource.nvidia.com",
        ("*",),
        ("computedomains",),
        ("CREATE", "UPDATE"),
        (
            Validation(
                f"!({_changed(_HAS_FINALIZER, none='false')}) || {_ADMINISTERS}",
                f"only imex controller adds and removes the finalizer {DOMAIN_FINALIZER}: leave"
                " metadata.finalizers as it is; to delete the ComputeDomain, delete its pods first",
            ),
            Validation(
                f"!({_changed(_annotation(RELEASE_ANNOTATION))}) || {_MAY_DELETE}",
                f"the annotation {RELEASE_ANNOTATION} needs the right to delete the ComputeDomain",
            ),
            Validation(
                _known(RELEASE_ANNOTATION, RELEASE_NOW),
                f"the annotation {RELEASE_ANNOTATION} has the value {RELEASE_NOW}, or does not exist",
            ),
            Validation(
                _known(READINESS_ANNOTATION, "local", READINESS_MEMBERS),
                f"the annotation {READINESS_ANNOTATION} has the value local or {READINESS_MEMBERS}",
            ),
            Validation(
                _known(PLACEMENT_ANNOTATION, SAME_PARTITION),
                f"the annotation {PLACEMENT_ANNOTATION} has the value {SAME_PARTITION}, or does not exist",
            ),
        ),
    ),
    Policy(
        "imex-computedomain-all-channels",
        "resource.nvidia.com",
        ("*",),
        ("computedomains",),
        ("CREATE",),
        (
            Validation(
                "object.?spec.channel.allocationMode.orValue('Single') != 'All' ||"
                f" namespaceObject.?metadata.labels[?'{ALL_CHANNELS_LABEL}'].orValue('')"
                f" == '{ALL_CHANNELS_ALLOWED}'",
                "allocationMode All opens the memory of every workload in the partition: its pods get no channel"
                f" until an administrator labels the namespace {ALL_CHANNELS_LABEL}={ALL_CHANNELS_ALLOWED}; use"
                " Single",
            ),
        ),
        # The label may follow.
        action="Warn",
    ),
)


def manifests() -> list[dict[str, Any]]:
    return [document for policy in POLICIES for document in (_policy(policy), _binding(policy))]


def _policy(policy: Policy) -> dict[str, Any]:
    rule = {
        "apiGroups": [policy.group],
        "apiVersions": list(policy.versions),
        "resources": list(policy.resources),
        "operations": list(policy.operations),
    }
    spec: dict[str, Any] = {"failurePolicy": "Fail", "matchConstraints": {"resourceRules": [rule]}}
    if policy.match:
        spec["matchConditions"] = [{"name": "account", "expression": policy.match}]
    if policy.variables:
        spec["variables"] = [{"name": name, "expression": expression} for name, expression in policy.variables]
    spec["validations"] = [
        {"expression": found.expression, "message": found.message, "reason": "Forbidden"}
        for found in policy.validations
    ]
    return _document("ValidatingAdmissionPolicy", policy.name, spec)


def _binding(policy: Policy) -> dict[str, Any]:
    spec = {"policyName": policy.name, "validationActions": [policy.action]}
    return _document("ValidatingAdmissionPolicyBinding", policy.name, spec)


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }
