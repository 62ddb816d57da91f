"""HTTP requests of the API, without HTTP: method, path, query and body in; a body or a watch out."""

import base64
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

import msgspec
import yaml

from imex_sandbox.embedded.events import from_core, to_core
from imex_sandbox.embedded.kinds import CORE_EVENTS, EVENTS, PODS, Kind, Kinds
from imex_sandbox.embedded.objects import Objects, check_head
from imex_sandbox.embedded.selectors import selector
from imex_sandbox.embedded.statuses import ApiError, Json, Undecodable, conflict, invalid, not_supported
from imex_sandbox.embedded.storage import Key, Stored
from imex_sandbox.embedded.tables import Tables
from imex_sandbox.embedded.watches import Watch

_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_TABLE = "as=Table"


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    content_type: str = ""
    body: bytes = b""
    user_agent: str = ""
    accept: str = ""

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or self.user_agent.partition("/")[0]

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("1", "true")


class Response(NamedTuple):
    code: int
    body: bytes
    content_type: str = "application/json"


class Target(NamedTuple):
    kind: Kind
    """As it is stored."""
    served: Kind
    """As the client sees it; not the same for Events of the core."""
    namespace: str
    name: str
    subresource: str


class Rendering:
    """How a client wants to see objects: as they are, as an older version, or as rows of a table."""

    def __init__(self, target: Target, request: Request, tables: Tables | None) -> None:
        self._kind = target.served
        self._converts = to_core if target.served is CORE_EVENTS else None
        self._include = request.query.get("includeObject", "Metadata")
        wants_table = _TABLE in request.accept.partition(",")[0] and target.subresource == ""
        self._tables = tables if wants_table else None
        self.is_plain = self._converts is None and self._tables is None
        self._has_head = False

    def convert(self, document: Json) -> Json:
        return self._converts(document) if self._converts else document

    def one(self, stored: Stored) -> bytes:
        if self.is_plain:
            return stored.encoded
        document = self.convert(stored.document)
        if self._tables is None:
            return msgspec.json.encode(document)
        # kubectl prints the columns of the first event of a watch only.
        head, self._has_head = not self._has_head, True
        # Tables of events are of the core version, whichever version was asked for.
        shown = to_core(stored.document) if self._kind.plural == "events" else document
        metadata = {"resourceVersion": stored.document["metadata"]["resourceVersion"]}
        return msgspec.json.encode(self._tables.table(self._kind, [shown], metadata, self._include, head=head))

    def many(self, found: Iterable[Stored], metadata: Json) -> bytes:
        if self._tables is not None:
            is_event = self._kind.plural == "events"
            documents = [to_core(one.document) if is_event else one.document for one in found]
            return msgspec.json.encode(self._tables.table(self._kind, documents, metadata, self._include))
        head = {"kind": f"{self._kind.kind}List", "apiVersion": self._kind.api_version, "metadata": metadata}
        items = b",".join(self.one(one) for one in found)
        return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"


def answer(objects: Objects, request: Request, tables: Tables | None = None) -> Response | Watch:
    """Raises nothing: an error becomes a Status."""
    try:
        target = parse_path(objects.kinds, request.path)
        rendering = Rendering(target, request, tables)
        if request.is_watch:
            return _watch(objects, target, request, rendering)
        return _answer(objects, target, request, rendering)
    except ApiError as error:
        return Response(error.code, msgspec.json.encode(error.status))
    except (msgspec.MsgspecError, yaml.YAMLError) as error:
        status = ApiError(400, f"the body of the request cannot be decoded: {error}").status
        return Response(400, msgspec.json.encode(status))


def parse_path(kinds: Kinds, path: str) -> Target:
    return _parse_path(kinds, kinds.generation, path)


@lru_cache(1024)
def _parse_path(kinds: Kinds, generation: int, path: str) -> Target:
    """`generation` keeps results for older kinds from being used."""
    parts = path.strip("/").split("/")
    if parts[:1] == ["api"] and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise ApiError(404, "the server could not find the requested resource")
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and kinds.find(group, version, rest[2]):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    served = kinds.find(group, version, plural)
    if served is None or len(rest) > 3 or (namespace and not served.namespaced):
        raise ApiError(404, "the server could not find the requested resource")
    if subresource and not _has_subresource(served, subresource):
        if subresource == "status" or served.is_custom:
            raise ApiError(404, "the server could not find the requested resource")
        raise not_supported(f"the subresource {plural}/{subresource}")
    kind = EVENTS if served is CORE_EVENTS else served
    return Target(kind, served, namespace, name, subresource)


def _has_subresource(kind: Kind, subresource: str) -> bool:
    return (subresource == "status" and kind.has_status) or (subresource == "binding" and kind is PODS)


def _answer(objects: Objects, target: Target, request: Request, rendering: Rendering) -> Response:
    kind, key = target.kind, Key(target.namespace, target.name)
    if request.query.get("dryRun"):
        raise not_supported("a dry run")
    match request.method, bool(target.name):
        case "GET", True:
            return Response(200, rendering.one(objects.get(kind, key)))
        case "GET", False:
            return Response(200, _list(objects, target, request.query, rendering))
        case "POST", False:
            body = _incoming(target, _object(request.body))
            created = objects.create(kind, target.namespace, body, request.manager)
            return Response(201, rendering.one(created))
        case "POST", True if target.subresource == "binding":
            return Response(201, _bind(objects, key, _object(request.body)))
        case "PATCH", True:
            try:
                stored, is_new = _patched(objects, target, request)
            except Undecodable as error:
                if request.content_type == _APPLY_PATCH:
                    raise
                raise ApiError(422, f"patch: Invalid value: {error}") from error
            return Response(201 if is_new else 200, rendering.one(stored))
        case "PUT", True:
            body, part = _incoming(target, _object(request.body)), target.subresource
            updated = objects.update(kind, key, body, subresource=part, manager=request.manager)
            return Response(200, rendering.one(updated))
        case "DELETE", True:
            return Response(200, rendering.one(objects.delete(kind, key, _delete_options(request))))
        case "DELETE", False:
            return Response(200, _delete_all(objects, target, request, rendering))
    raise ApiError(405, "the server does not allow this method on the requested resource")


def _patched(objects: Objects, target: Target, request: Request) -> tuple[Stored, bool]:
    kind, key, part = target.kind, Key(target.namespace, target.name), target.subresource
    content_type = request.content_type.partition(";")[0]
    if content_type == _JSON_PATCH:
        if kind is not target.served:
            raise not_supported("a JSON patch of events of the core group")
        operations = msgspec.json.decode(request.body, type=list[Json])
        return objects.json_patch(kind, key, operations, subresource=part, manager=request.manager), False
    if content_type == _APPLY_PATCH:
        body, force = _incoming(target, _applied(request.body)), request.query.get("force") == "true"
        _check_identity(target, body)
        return objects.apply(kind, key, body, manager=request.manager, force=force, subresource=part)
    patch = _object(request.body) if content_type in (_MERGE_PATCH, _STRATEGIC_PATCH) else {}
    if kind is not target.served:
        patch = {name: value for name, value in from_core(patch).items() if name not in ("apiVersion", "kind")}
    if content_type == _MERGE_PATCH:
        return objects.patch(kind, key, patch, subresource=part, manager=request.manager), False
    if content_type == _STRATEGIC_PATCH:
        return objects.strategic_patch(kind, key, patch, subresource=part, manager=request.manager), False
    raise not_supported(f"a patch of type {request.content_type}")


def _applied(body: bytes) -> Json:
    applied = yaml.safe_load(body)
    if applied is None:
        raise ApiError(400, "invalid object type: /, Kind=")
    if not isinstance(applied, dict):
        raise ApiError(400, f"error decoding YAML: {type(applied).__name__} is not a map")
    return applied


def _check_identity(target: Target, body: Json) -> None:
    kind, metadata = target.served, body.get("metadata") or {}
    stored = target.kind
    if (body.get("apiVersion"), body.get("kind")) not in (
        (kind.api_version, kind.kind),
        (stored.api_version, stored.kind),
    ):
        raise ApiError(400, f"the object to apply must have apiVersion {kind.api_version} and kind {kind.kind}")
    if metadata.get("name", target.name) != target.name:
        cause = f"the name of the object ({metadata['name']}) does not match the name on the URL ({target.name})"
        raise ApiError(400, cause)


def _incoming(target: Target, body: Json) -> Json:
    """Raises ApiError if the body is of another kind than the path. A body without kind is of that of the path."""
    kinds = (target.served, target.kind)
    kind, version = body.get("kind") or target.served.kind, body.get("apiVersion") or target.served.api_version
    if target.kind.is_custom and kind != target.served.kind:
        cause = f"kind: Invalid value: {msgspec.json.encode(kind).decode()}: must be {target.served.kind}"
        raise invalid(target.served, (body.get("metadata") or {}).get("name") or "", cause)
    if (version, kind) not in [(one.api_version, one.kind) for one in kinds]:
        raise Undecodable(f"{kind} in version {version!r} cannot be handled as a {target.served.kind}")
    check_head(target.served, body)
    return from_core(body) if target.served is CORE_EVENTS else body


def _bind(objects: Objects, key: Key, body: Json) -> bytes:
    """What a scheduler does: it is the only way to set the node of a pod that exists."""
    bind(objects, key, body["target"]["name"])
    return msgspec.json.encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})


def bind(objects: Objects, key: Key, node: str) -> None:
    live = objects.get(PODS, key).document
    if assigned := live["spec"].get("nodeName"):
        raise conflict("pods/binding", key.name, f"pod {key.name} is already assigned to node {assigned!r}")
    if live["metadata"].get("deletionTimestamp"):
        raise conflict("pods/binding", key.name, f"pod {key.name} is being deleted, cannot be assigned to a host")
    objects.assign(key, node)


def _delete_options(request: Request) -> Json:
    """In the query or, as kubectl sends them, in the body."""
    options: Json = {**request.query, **(_object(request.body) if request.body else {})}
    if options.get("dryRun"):
        raise not_supported("a dry run")
    if options.get("orphanDependents") in (True, "true", "1"):
        raise not_supported("deletion with orphanDependents")
    return options


def _delete_all(objects: Objects, target: Target, request: Request, rendering: Rendering) -> bytes:
    options = _delete_options(request)
    deleted = [
        objects.delete(target.kind, key, options)
        for key, _ in _selected(objects, target, request.query, rendering.convert, objects.storage.version)
    ]
    return rendering.many(deleted, {"resourceVersion": str(objects.storage.version)})


def _selected(
    objects: Objects, target: Target, query: dict[str, str], convert: Callable[[Json], Json], version: int
) -> list[tuple[Key, Stored]]:
    fields = query.get("fieldSelector", "")
    matches = selector(target.served, query.get("labelSelector", ""), fields)
    found = objects.storage.all_at(version, target.kind, target.namespace)
    return [one for one in found if matches(convert(one[1].document))]


def _list(objects: Objects, target: Target, query: dict[str, str], rendering: Rendering) -> bytes:
    version, after = objects.storage.version, None
    if query.get("resourceVersionMatch") == "Exact":
        version = _version(query)
    if token := query.get("continue"):
        version, after = _decode_token(token)
    elif query.get("resourceVersion"):
        _version(query)
    found = _selected(objects, target, query, rendering.convert, version)
    if after:
        found = [(key, one) for key, one in found if key > after]
    limit = _number(query, "limit")
    limit = limit if limit > 0 else len(found)
    page, rest = found[:limit], found[limit:]
    metadata: Json = {"resourceVersion": str(version)}
    if rest:
        metadata["continue"] = _token(version, page[-1][0])
        if not query.get("labelSelector") and not query.get("fieldSelector"):
            metadata["remainingItemCount"] = len(rest)
    return rendering.many([one for _, one in page], metadata)


def _watch(objects: Objects, target: Target, request: Request, rendering: Rendering) -> Watch:
    query, namespace = request.query, target.namespace
    _number(query, "timeoutSeconds")
    if query.get("resourceVersion"):
        _version(query)
    fields = query.get("fieldSelector", "")
    if target.name:
        fields = "metadata.name=" + re.sub(r"([\\,=])", r"\\\1", target.name)
    matches = selector(target.served, query.get("labelSelector", ""), fields)
    converted = matches if rendering.is_plain else lambda document: matches(rendering.convert(document))
    watch = Watch(
        objects.storage,
        target.kind,
        namespace,
        converted,
        render=None if rendering.is_plain else rendering.one,
        bookmarks=query.get("allowWatchBookmarks") == "true",
    )
    try:
        initial = query.get("sendInitialEvents") == "true"
        watch.start(query.get("resourceVersion", ""), initial_events=initial)
    except ApiError as error:
        # A real API server has sent the headers by then, and answers with an event.
        watch.fail(error)
    return watch


def _object(body: bytes) -> Json:
    return msgspec.json.decode(body, type=dict)


def _token(version: int, key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([version, *key])).decode()


def _decode_token(token: str) -> tuple[int, Key]:
    try:
        decoded = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[int, str, str])
    except (ValueError, msgspec.MsgspecError) as error:
        raise ApiError(400, f"invalid continue token: continue key is not valid: {error}") from error
    version, namespace, name = decoded
    return version, Key(namespace, name)


def _version(query: dict[str, str]) -> int:
    text = query.get("resourceVersion", "")
    if not re.fullmatch("[0-9]+", text):
        where = f'resourceVersion: Invalid value: "{text}"'
        # A real API server answers watches so, too, but with 500.
        raise ApiError(
            500 if query.get("watch") else 400,
            f'invalid resource version: {where}: strconv.ParseUint: parsing "{text}": invalid syntax',
        )
    return int(text)


def _number(query: dict[str, str], name: str) -> int:
    try:
        return int(query.get(name) or 0)
    except ValueError:
        raise ApiError(400, f'strconv.ParseInt: parsing "{query[name]}": invalid syntax') from None
