"""CustomResourceDefinitions: which kinds, schemas, columns and names they add to the API."""

from typing import NamedTuple

import msgspec

from imex_sandbox.embedded.kinds import CRDS, Kind, Kinds
from imex_sandbox.embedded.schemas import Schema
from imex_sandbox.embedded.statuses import Json, Undecodable, invalid, not_supported
from imex_sandbox.embedded.storage import Change


class Column(NamedTuple):
    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""


class Definition(NamedTuple):
    kind: Kind
    schema: Schema
    columns: tuple[Column, ...]
    singular: str
    short_names: tuple[str, ...]
    categories: tuple[str, ...]


class Definitions:
    """Follows the CRDs in a storage: they are served as soon as they are stored."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._definitions: dict[Kind, Definition] = {}
        self._parsed: dict[str, Definition] = {}
        """By UID: those that were checked, and will be stored at once."""

    def of(self, kind: Kind) -> Definition | None:
        return self._definitions.get(kind)

    def check(self, document: Json) -> None:
        """Raises ApiError if the CRD is malformed or not supported."""
        _check_shape(document)
        self._parsed[document["metadata"]["uid"]] = parse(document)

    def on_change(self, change: Change) -> None:
        if change.kind is not CRDS:
            return
        if change.new is None:
            definition = parse(change.last.document)
            self._kinds.remove(definition.kind)
            if definition.kind in self._definitions:
                del self._definitions[definition.kind]
            return
        document = change.new.document
        found = self._parsed.pop(document["metadata"]["uid"], None)
        definition = found or parse(document)
        known = next((one for one in self._definitions if one == definition.kind), None)
        # Watches compare kinds by identity.
        kind = known or definition.kind
        self._definitions[kind] = definition._replace(kind=kind)
        self._kinds.add(kind)


class _Names(msgspec.Struct, rename="camel"):
    plural: str = ""
    kind: str = ""
    singular: str = ""
    short_names: list[str] = []
    categories: list[str] = []


class _Column(msgspec.Struct, rename="camel"):
    name: str
    type: str
    json_path: str


class _Version(msgspec.Struct, rename="camel"):
    name: str
    served: bool
    storage: bool
    schema: Json | None = None
    subresources: Json | None = None
    additional_printer_columns: list[_Column] | None = None


class _Spec(msgspec.Struct):
    group: str = ""
    scope: str = ""
    names: _Names | None = None
    versions: list[_Version] | None = None


def _check_shape(document: Json) -> None:
    """Raises ApiError. Only what `parse` relies on."""
    try:
        spec = msgspec.convert(document.get("spec") or {}, _Spec)
    except msgspec.ValidationError as error:
        what = f"{CRDS.kind} in version {CRDS.version!r} cannot be handled as a {CRDS.kind}: spec"
        raise Undecodable(f"{what}: {error}") from error
    names, versions = spec.names or _Names(), spec.versions or []
    given = {"group": spec.group, "scope": spec.scope, "names.plural": names.plural, "names.kind": names.kind}
    causes = [f"spec.{field}: Required value" for field, value in given.items() if not value]
    if sum(version.storage for version in versions) != 1:
        causes.append(
            "spec.versions: Invalid value: null: must have exactly one version marked as storage version"
        )
    for index, version in enumerate(versions):
        if not (version.schema or {}).get("openAPIV3Schema"):
            causes.append(f"spec.versions[{index}].schema.openAPIV3Schema: Required value")
    if causes:
        raise invalid(CRDS, document["metadata"]["name"], *causes)


def parse(document: Json) -> Definition:
    spec, name = document["spec"], document["metadata"]["name"]
    names = spec["names"]
    if name != f"{names['plural']}.{spec['group']}":
        cause = f'metadata.name: Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        raise invalid(CRDS, name, cause)
    served = [version for version in spec["versions"] if version["served"]]
    if len(served) != 1:
        raise not_supported(f"the CRD {name} with {len(served)} served versions")
    (version,) = served
    subresources = version.get("subresources") or {}
    kind = Kind(
        spec["group"],
        version["name"],
        names["plural"],
        names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        has_status="status" in subresources,
        is_custom=True,
    )
    columns = tuple(
        Column(
            column["name"],
            column["type"],
            column["jsonPath"],
            column.get("priority", 0),
            column.get("description", ""),
        )
        for column in version.get("additionalPrinterColumns") or ()
    )
    schema = Schema((version.get("schema") or {}).get("openAPIV3Schema") or {})
    singular = names.get("singular") or names["kind"].lower()
    short, categories = names.get("shortNames") or (), names.get("categories") or ()
    return Definition(kind, schema, columns, singular, tuple(short), tuple(categories))


def accepted_status(document: Json, now: str) -> Json:
    """What the controllers of a real API server set a moment after the creation."""
    spec = document["spec"]
    conditions = [
        {
            "type": "NamesAccepted",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    names = spec["names"]
    accepted = {"listKind": f"{names['kind']}List", "singular": names["kind"].lower(), **names}
    stored = [version["name"] for version in spec["versions"] if version["storage"]]
    return {"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored}
