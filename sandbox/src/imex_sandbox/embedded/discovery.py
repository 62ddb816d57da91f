"""What a server offers: versions, groups and resources, in both formats of discovery, and what kubectl reads of
OpenAPI: that the server itself checks fields.

The schemas of types are not published, so `kubectl explain` says that it does not know them.
"""

from collections.abc import Iterator

from imex_sandbox.embedded.definitions import Definitions
from imex_sandbox.embedded.kinds import IN_CATEGORY_ALL, PODS, SHORT_NAMES, Kind, Kinds
from imex_sandbox.embedded.statuses import Json

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.4+embedded", "platform": "embedded"}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS = ["get", "patch", "update"]
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class Discovery:
    def __init__(self, kinds: Kinds, definitions: Definitions) -> None:
        self._kinds = kinds
        self._definitions = definitions

    def answer(self, path: str, *, aggregated: bool) -> Json | None:
        """None if it is not a path of discovery."""
        match path.strip("/").split("/"):
            case ["version"]:
                return VERSION
            case ["api"] if aggregated:
                return self._aggregated([""])
            case ["apis"] if aggregated:
                return self._aggregated([group for group in self._groups() if group])
            case ["api"]:
                return {"kind": "APIVersions", "apiVersion": "v1", "versions": ["v1"]}
            case ["apis"]:
                groups = [self._group(group) for group in self._groups() if group]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["api", version]:
                return self._resources("", version)
            case ["apis", group]:
                found = self._group(group) if group in self._groups() else None
                return found and {"kind": "APIGroup", "apiVersion": "v1", **found}
            case ["apis", group, version]:
                return self._resources(group, version)
            case ["openapi", "v3"]:
                return self._openapi()
            case ["openapi", "v3", "api", version]:
                return self._openapi_of("", version)
            case ["openapi", "v3", "apis", group, version]:
                return self._openapi_of(group, version)
        return None

    def _groups(self) -> list[str]:
        return list(dict.fromkeys(kind.group for kind in self._kinds))

    def _versions(self, group: str) -> list[str]:
        return list(dict.fromkeys(kind.version for kind in self._kinds if kind.group == group))

    def _of(self, group: str, version: str) -> list[Kind]:
        return [kind for kind in self._kinds if (kind.group, kind.version) == (group, version)]

    def _group(self, group: str) -> Json:
        versions = [{"groupVersion": f"{group}/{one}", "version": one} for one in self._versions(group)]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resources(self, group: str, version: str) -> Json | None:
        found = self._of(group, version)
        if not found:
            return None
        resources = []
        for kind in found:
            names = self._names(kind)
            common = {"namespaced": kind.namespaced, "kind": kind.kind}
            resources.append(
                {
                    "name": kind.plural,
                    "singularName": names["singular"],
                    **common,
                    "verbs": _VERBS,
                    **{field: names[field] for field in ("shortNames", "categories") if names[field]},
                }
            )
            for part, verbs in _subresources(kind):
                one = {"name": f"{kind.plural}/{part}", "singularName": "", **common, "verbs": verbs}
                resources.append(one)
        version_name = f"{group}/{version}" if group else version
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": version_name,
            "resources": resources,
        }

    def _aggregated(self, groups: list[str]) -> Json:
        items = [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "resources": [self._aggregated_resource(kind) for kind in self._of(group, version)],
                        "freshness": "Current",
                    }
                    for version in self._versions(group)
                ],
            }
            for group in groups
        ]
        top = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}}
        return {**top, "items": items}

    def _aggregated_resource(self, kind: Kind) -> Json:
        names = self._names(kind)
        answered = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        parts = [
            {"subresource": part, "responseKind": answered, "verbs": verbs} for part, verbs in _subresources(kind)
        ]
        return {
            "resource": kind.plural,
            "responseKind": answered,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "singularResource": names["singular"],
            "verbs": _VERBS,
            **{field: names[field] for field in ("shortNames", "categories") if names[field]},
            **({"subresources": parts} if parts else {}),
        }

    def _names(self, kind: Kind) -> Json:
        definition = self._definitions.of(kind)
        if definition is not None:
            short, categories = list(definition.short_names), list(definition.categories)
            return {"singular": definition.singular, "shortNames": short, "categories": categories}
        categories = ["all"] if kind.plural in IN_CATEGORY_ALL else []
        short = list(SHORT_NAMES.get(kind.plural, ()))
        return {"singular": kind.kind.lower(), "shortNames": short, "categories": categories}

    def _openapi(self) -> Json:
        versions = dict.fromkeys((kind.group, kind.version) for kind in self._kinds)
        names = [f"apis/{group}/{version}" if group else f"api/{version}" for group, version in versions]
        return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in names}}

    def _openapi_of(self, group: str, version: str) -> Json | None:
        """If a PATCH takes `fieldValidation`, kubectl leaves the check of fields to the server."""
        found = self._of(group, version)
        if not found:
            return None
        parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        paths = {}
        for kind in found:
            identity = {"group": kind.group, "kind": kind.kind, "version": kind.version}
            patch = {"parameters": [parameter], "responses": {}, "x-kubernetes-group-version-kind": identity}
            paths[_path(kind)] = {"patch": patch}
        info = {"title": "embedded", "version": VERSION["gitVersion"]}
        return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _path(kind: Kind) -> str:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    inside = "/namespaces/{namespace}" if kind.namespaced else ""
    return f"{root}{inside}/{kind.plural}/{{name}}"


def _subresources(kind: Kind) -> Iterator[tuple[str, list[str]]]:
    if kind.has_status:
        yield "status", _STATUS_VERBS
    if kind is PODS:
        yield from (("log", ["get"]), ("exec", ["create", "get"]), ("binding", ["create"]))
    if kind.qualified == "serviceaccounts":
        yield "token", ["create"]
