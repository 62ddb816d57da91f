"""Rules: claims and templates that a user wrote instead of the controller."""

import uuid
from collections.abc import Iterator

import msgspec

from imex_dra.api.names import CHANNEL_CLASS, DRIVER
from imex_dra.api.opaque import parse_channel_config
from imex_dra.lint.findings import Severity
from imex_dra.lint.manifests import CHANNEL_CONFIG, HandMade, Manifests, nearest
from imex_dra.lint.rule import Problem, rule
from imex_dra.lint.values import Value

_STEP = "claim from the template that the ComputeDomain names, instead of a template of your own"

_Wrong = tuple[Value, str, str]


@rule(
    "IMEX130",
    Severity.ERROR,
    "A claim or template for a channel is invalid",
    why="""A node reads the configuration of a claim strictly, because it decides which memory a container can
    reach: an unknown field, another kind, a missing configuration or a domainID that is no UID of a ComputeDomain
    is refused. The UID is not known before the ComputeDomain exists. Therefore remove such a template, and use
    the one that the controller creates.""",
)
def invalid_claim(manifests: Manifests) -> Iterator[Problem]:
    for made in manifests.hand_made:
        if made.is_channel:
            for value, message, step in (*_wrong_classes(made), *_wrong_configs(made), *_wrong_requests(made)):
                yield Problem(made.object, value, message, step)


def _wrong_classes(made: HandMade) -> Iterator[_Wrong]:
    for _, name in made.classes():
        if name.text.startswith("compute-domain") and name.text != CHANNEL_CLASS:
            yield name, f"there is no DeviceClass {name.text} for workloads", f"use {CHANNEL_CLASS}"


def _wrong_configs(made: HandMade) -> Iterator[_Wrong]:
    for _, opaque in made.configs():
        driver, parameters = opaque["driver"], opaque["parameters"]
        if driver.text == DRIVER:
            yield from _wrong_parameters(parameters)
        elif parameters["kind"].text == CHANNEL_CONFIG or nearest(driver.text, [DRIVER], 0.8):
            yield driver, f"the driver of a channel is not {driver.text or 'empty'}", f"use {DRIVER}"


def _wrong_parameters(parameters: Value) -> Iterator[_Wrong]:
    try:
        config = parse_channel_config(msgspec.Raw(msgspec.json.encode(parameters.plain())))
    except (ValueError, TypeError) as error:
        yield parameters, f"invalid configuration for {DRIVER}: {error}", _STEP
        return
    try:
        uuid.UUID(config.domain_id)
    except ValueError:
        at = parameters["domainID"]
        yield at, f"domainID {config.domain_id} is no UID, but perhaps a name or a placeholder", _STEP


def _wrong_requests(made: HandMade) -> Iterator[_Wrong]:
    for request, class_ in made.classes():
        if class_.text != CHANNEL_CLASS:
            continue
        name = request["name"].scalar
        configs = [config for config, opaque in made.configs() if _applies(config, opaque, name)]
        if not configs:
            yield request, f"request {name} has no configuration that names a ComputeDomain", _STEP
        elif len(configs) > 1:
            yield configs[-1], f"request {name} has {len(configs)} configurations, and only one is allowed", _STEP
        for holder in (request, request["exactly"]):
            if holder["count"].count(1) > 1 or holder["allocationMode"].text == "All":
                cause = f"request {name} asks for more than one channel, and a claim gets only one"
                yield holder, cause, "remove count and allocationMode"


def _applies(config: Value, opaque: Value, request: str) -> bool:
    requests = [value.scalar.partition("/")[0] for value in config["requests"].elements()]
    ours = opaque["driver"].text == DRIVER or opaque["parameters"]["kind"].text == CHANNEL_CONFIG
    return ours and (not requests or request in requests)


RULES = (invalid_claim,)
