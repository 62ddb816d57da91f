"""HTTP requests of the API, without HTTP: method, path, query and body in; a body or a watch out."""

import base64
from functools import lru_cache
from typing import NamedTuple

import msgspec
import yaml

from imex_sandbox.embedded.kinds import Kind, find_kind
from imex_sandbox.embedded.objects import Objects
from imex_sandbox.embedded.selectors import selector
from imex_sandbox.embedded.statuses import ApiError, Json, expired, not_supported
from imex_sandbox.embedded.storage import Key
from imex_sandbox.embedded.watches import Watch

_MERGE_PATCH = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"


class Request(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    content_type: str = ""
    body: bytes = b""
    user_agent: str = ""

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or self.user_agent.partition("/")[0]


class Response(NamedTuple):
    code: int
    body: bytes


class Target(NamedTuple):
    kind: Kind
    namespace: str
    name: str
    subresource: str


def answer(objects: Objects, request: Request) -> Response | Watch:
    """Raises nothing: an error becomes a Status."""
    try:
        target = parse_path(request.path)
        if request.query.get("watch") in ("1", "true"):
            return _watch(objects, target, request)
        return _answer(objects, target, request)
    except ApiError as error:
        return Response(error.code, msgspec.json.encode(error.status))
    except (msgspec.MsgspecError, yaml.YAMLError) as error:
        status = ApiError(400, f"the body of the request cannot be decoded: {error}").status
        return Response(400, msgspec.json.encode(status))


@lru_cache(1024)
def parse_path(path: str) -> Target:
    parts = path.strip("/").split("/")
    if parts[:1] == ["api"]:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise not_supported(f"the path {path}")
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and find_kind(group, version, rest[2]):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, "", "")[:3]
    kind = find_kind(group, version, plural)
    if kind is None:
        raise ApiError(404, "the server could not find the requested resource")
    if subresource and not (subresource == "status" and kind.has_status):
        raise not_supported(f"the subresource {plural}/{subresource}")
    return Target(kind, namespace, name, subresource)


def _answer(objects: Objects, target: Target, request: Request) -> Response:
    kind, key = target.kind, Key(target.namespace, target.name)
    match request.method, bool(target.name):
        case "GET", True:
            return Response(200, objects.get(kind, key).encoded)
        case "GET", False:
            return Response(200, _list(objects, target, request.query))
        case "POST", False:
            created = objects.create(kind, target.namespace, _object(request.body), request.manager)
            return Response(201, created.encoded)
        case "PATCH", True:
            return Response(200, _patched(objects, target, request))
        case "PUT", True:
            updated = objects.update(
                kind, key, _object(request.body), subresource=target.subresource, manager=request.manager
            )
            return Response(200, updated.encoded)
        case "DELETE", True:
            options = _object(request.body) if request.body else {}
            return Response(200, objects.delete(kind, key, options).encoded)
    raise not_supported(f"{request.method} {request.path}")


def _patched(objects: Objects, target: Target, request: Request) -> bytes:
    kind, key = target.kind, Key(target.namespace, target.name)
    if request.content_type == _MERGE_PATCH:
        patch, part = _object(request.body), target.subresource
        return objects.patch(kind, key, patch, subresource=part, manager=request.manager).encoded
    if request.content_type == _JSON_PATCH:
        operations = msgspec.json.decode(request.body, type=list[Json])
        return objects.json_patch(
            kind, key, operations, subresource=target.subresource, manager=request.manager
        ).encoded
    if request.content_type == _APPLY_PATCH and not target.subresource:
        body, force = yaml.safe_load(request.body), request.query.get("force") == "true"
        return objects.apply(kind, key, body, manager=request.manager, force=force).encoded
    raise not_supported(f"a patch of type {request.content_type}")


def _list(objects: Objects, target: Target, query: dict[str, str]) -> bytes:
    kind, storage = target.kind, objects.storage
    matches = selector(query.get("labelSelector", ""), query.get("fieldSelector", ""))
    found = [(key, one) for key, one in storage.all(kind, target.namespace) if matches(one.document)]
    version = str(storage.version)
    if token := query.get("continue"):
        version, after = _decode_token(token)
        # A real API server answers all pages from one version. This one can only if nothing has changed since.
        if version != str(storage.version):
            raise expired("the provided continue parameter is too old: the objects have changed")
        found = [(key, one) for key, one in found if key > after]
    limit = int(query.get("limit") or 0) or len(found)
    page, rest = found[:limit], found[limit:]
    metadata = {"resourceVersion": version}
    if rest:
        metadata["continue"] = _token(version, page[-1][0])
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
    items = b",".join(one.encoded for _, one in page)
    return msgspec.json.encode(head)[:-1] + b',"items":[' + items + b"]}"


def _watch(objects: Objects, target: Target, request: Request) -> Watch:
    query, namespace = request.query, target.namespace
    fields = query.get("fieldSelector", "")
    if target.name:
        fields = f"metadata.name={target.name}"
    watch = Watch(objects.storage, target.kind, namespace, selector(query.get("labelSelector", ""), fields))
    try:
        initial = query.get("sendInitialEvents") == "true"
        watch.start(query.get("resourceVersion", ""), initial_events=initial)
    except ApiError:
        watch.close()
        raise
    return watch


def _object(body: bytes) -> Json:
    return msgspec.json.decode(body, type=dict)


def _token(version: str, key: Key) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([version, *key])).decode()


def _decode_token(token: str) -> tuple[str, Key]:
    version, namespace, name = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[str, str, str])
    return version, Key(namespace, name)
