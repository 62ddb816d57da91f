"""Strategic merge patches, as kubectl and kubelets send them for built-in types.

Lists are merged by the keys of their entries (`lists`). Of the directives, `$patch` (delete, replace),
`$retainKeys`, `$deleteFromPrimitiveList` and `$setElementOrder` are known.
"""

from typing import Any

from imex_sandbox.embedded.lists import SET, strategic_key
from imex_sandbox.embedded.statuses import ApiError, Json

_ORDER, _DELETED = "$setElementOrder/", "$deleteFromPrimitiveList/"


def strategic_merge(live: Json, patch: Json, path: tuple[str, ...] = ()) -> Json:
    """The live object is not changed; unchanged parts are shared."""
    directive = patch.get("$patch")
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    if directive not in (None, "merge"):
        raise ApiError(400, f"unknown patch type found: {directive}")
    result = dict(live)
    if (retained := patch.get("$retainKeys")) is not None:
        result = {name: value for name, value in result.items() if name in retained}
    for name, deleted in patch.items():
        if name.startswith(_DELETED):
            field = name.removeprefix(_DELETED)
            result[field] = [value for value in result.get(field) or [] if value not in deleted]
    for name, value in patch.items():
        if name.startswith("$"):
            continue
        if value is None or (isinstance(value, dict) and value.get("$patch") == "delete"):
            result.pop(name, None)
        else:
            result[name] = _merge(result.get(name), value, (*path, name))
    for name, order in patch.items():
        if name.startswith(_ORDER):
            field = name.removeprefix(_ORDER)
            if field in result:
                result[field] = _ordered(result[field], order, (*path, field))
    return result


def _merge(live: Any, value: Any, path: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return strategic_merge(live if isinstance(live, dict) else {}, value, path)
    if isinstance(value, list):
        return _merge_list(live if isinstance(live, list) else [], value, path)
    return value


def _merge_list(live: list[Any], patch: list[Any], path: tuple[str, ...]) -> list[Any]:
    keys = strategic_key(path)
    if keys is None:
        return [_merge(None, item, path) if isinstance(item, dict) else item for item in patch]
    if keys == SET:
        return [*live, *(value for value in patch if value not in live)]
    if any(item.get("$patch") == "replace" for item in patch):
        return [item for item in patch if "$patch" not in item]
    (key,) = keys
    result = list(live)
    for item in patch:
        if key not in item:
            raise ApiError(400, f"map: {item} does not contain declared merge key: {key}")
        index = next((i for i, one in enumerate(result) if one.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [one for one in result if one.get(key) != item[key]]
        elif index is None:
            result.append(strategic_merge({}, item, path))
        else:
            result[index] = strategic_merge(result[index], item, path)
    return result


def _ordered(items: list[Any], order: list[Any], path: tuple[str, ...]) -> list[Any]:
    """Entries that the order does not name keep their places behind the one that they followed."""
    keys = strategic_key(path)
    if not keys:
        ranks = {value: index for index, value in enumerate(order)}
        identities = items
    else:
        ranks = {entry[keys[0]]: index for index, entry in enumerate(order)}
        identities = [item.get(keys[0]) for item in items]
    last, decorated = -1, []
    for place, (identity, item) in enumerate(zip(identities, items, strict=True)):
        last = ranks.get(identity, last)
        decorated.append((last, place, item))
    return [item for _, _, item in sorted(decorated, key=lambda one: one[:2])]
