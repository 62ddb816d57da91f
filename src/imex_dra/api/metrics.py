"""All metrics, in one table: what the programs count, docs/metrics.md, and what alerts and dashboards may name.

Names are `imex_dra_<noun>_<unit>`. Labels are only partition, node, reason, state and result, and their values are
bounded: by the number of racks and nodes, and by enumerations. Never a namespace, a pod or a message.
"""

from enum import StrEnum

from imex_dra.base.metrics import Kind, Metric

LABELS = {
    "node": "name of the Node; every metric of `imex node` has it",
    "partition": "name of the NVLinkPartition",
    "reason": "a CamelCase word, as in conditions and Events, or the kind of an error",
    "result": "how it ended: one of the words that the description lists",
    "state": "one of the states that the description lists",
}

_RECONCILE_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
_REVIEW_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0)
_PREPARE_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 40.0)


class Outcome(StrEnum):
    """Label `result`."""

    OK = "ok"
    RETRY = "retry"
    """It failed, and may succeed later."""
    TERMINAL = "terminal"
    """It fails again until something else is changed."""


class ReviewResult(StrEnum):
    """Label `result` of reviews of the webhook."""

    ADMITTED = "admitted"
    WARNED = "warned"
    REJECTED = "rejected"
    PLACED = "placed"
    """A pod was changed, so that it stays in one NVLink partition."""
    MALFORMED = "malformed"
    FAILED = "failed"
    """It had no answer: an error of the webhook or of the API server, or the time limit."""


API_ERRORS = Metric(
    "imex_dra_api_errors_total",
    Kind.COUNTER,
    "Requests to the API server that failed, by kind of error. Conflict, NotFound and AlreadyExists are ordinary.",
    ("reason",),
)
WATCH_RESTARTS = Metric(
    "imex_dra_watch_restarts_total",
    Kind.COUNTER,
    "Watches that were opened again, by what ended the one before; Ended: its time was over.",
    ("reason",),
)

LEADER = Metric(
    "imex_dra_leader_status",
    Kind.GAUGE,
    "Whether this replica of the controller holds the Lease and works: 1 or 0.",
)
PARTITION_STATE = Metric(
    "imex_dra_partition_state",
    Kind.GAUGE,
    "1 for the state of the partition, 0 for the others: UP, DEGRADED or DOWN.",
    ("partition", "state"),
)
PARTITION_MEMBERS = Metric(
    "imex_dra_partition_members",
    Kind.GAUGE,
    "Members by state: Joining, Ready, NotReady, Unknown, Suspended or Leaving.",
    ("partition", "state"),
)
PARTITION_CHANNELS = Metric(
    "imex_dra_partition_channels",
    Kind.GAUGE,
    "Channels by state: assigned, released (not reusable yet) or free.",
    ("partition", "state"),
)
PARTITION_PROBLEMS = Metric(
    "imex_dra_partition_problems",
    Kind.GAUGE,
    "1 for every condition of the partition that reports a problem, with the reason of the condition.",
    ("partition", "reason"),
)
DOMAINS = Metric(
    "imex_dra_computedomain_objects",
    Kind.GAUGE,
    "ComputeDomains by what kubectl get shows (NoPods, Ready, NotReady, Deleting, Unknown) and by the reason of"
    " the condition Ready.",
    ("state", "reason"),
)


def _reconciles(noun: str, what: str) -> tuple[Metric, Metric]:
    return (
        Metric(
            f"imex_dra_{noun}_reconcile_seconds",
            Kind.HISTOGRAM,
            f"Duration of a reconcile of {what}, by result: ok, retry or terminal.",
            ("result",),
            _RECONCILE_BUCKETS,
        ),
        Metric(f"imex_dra_{noun}_queue_keys", Kind.GAUGE, f"Keys of {what} that wait for a worker."),
    )


PARTITION_RECONCILES, PARTITION_QUEUE = _reconciles("partition", "an NVLinkPartition")
DOMAIN_RECONCILES, DOMAIN_QUEUE = _reconciles("computedomain", "a ComputeDomain")
LABEL_RECONCILES, LABEL_QUEUE = _reconciles("label", "the clique label of a Node")
CLAIM_RECONCILES, CLAIM_QUEUE = _reconciles("claim", "a claim that was allocated late")

PREPARES = Metric(
    "imex_dra_prepare_seconds",
    Kind.HISTOGRAM,
    "Duration of the kubelet's prepare call for one claim, with all waiting, by result: ok, retry or terminal.",
    ("result",),
    _PREPARE_BUCKETS,
)
PREPARE_ERRORS = Metric(
    "imex_dra_prepare_errors_total",
    Kind.COUNTER,
    "Prepare calls that failed, by reason. The kubelet repeats a call that failed.",
    ("reason",),
)
UNPREPARES = Metric(
    "imex_dra_unprepare_seconds",
    Kind.HISTOGRAM,
    "Duration of the kubelet's unprepare call for one claim, by result: ok, retry or terminal.",
    ("result",),
    _PREPARE_BUCKETS,
)
UNPREPARE_ERRORS = Metric(
    "imex_dra_unprepare_errors_total", Kind.COUNTER, "Unprepare calls that failed, by reason.", ("reason",)
)
REGISTRATION = Metric(
    "imex_dra_registration_status", Kind.GAUGE, "Whether the kubelet has registered the DRA plugin: 1 or 0."
)
DAEMON_STATE = Metric(
    "imex_dra_daemon_state",
    Kind.GAUGE,
    "1 for the state that nvidia-imex-ctl reports, 0 for the others; UNAVAILABLE: it does not answer.",
    ("state",),
)
FABRIC_STATE = Metric(
    "imex_dra_fabric_state",
    Kind.GAUGE,
    "1 for the state of the node's NVLink fabric, 0 for the others: none, pending, ok or broken.",
    ("state",),
)
NODE_PROBLEMS = Metric(
    "imex_dra_node_problems",
    Kind.GAUGE,
    "1 while the node cannot serve claims, with the reason; no series otherwise.",
    ("reason",),
)
UNREACHABLE = Metric(
    "imex_dra_unreachable_members",
    Kind.GAUGE,
    "Members of the partition that the node's IMEX daemon has not reached for at least five seconds.",
)

REVIEWS = Metric(
    "imex_dra_review_seconds",
    Kind.HISTOGRAM,
    "Duration of a review, by result: admitted, warned, rejected, placed (the pod was changed), malformed or"
    " failed (no answer, so that the API server admits the object).",
    ("result",),
    _REVIEW_BUCKETS,
)

EVERY_PROGRAM = (API_ERRORS, WATCH_RESTARTS)
CONTROLLER = (
    LEADER,
    PARTITION_STATE,
    PARTITION_MEMBERS,
    PARTITION_CHANNELS,
    PARTITION_PROBLEMS,
    DOMAINS,
    PARTITION_RECONCILES,
    PARTITION_QUEUE,
    DOMAIN_RECONCILES,
    DOMAIN_QUEUE,
    LABEL_RECONCILES,
    LABEL_QUEUE,
    CLAIM_RECONCILES,
    CLAIM_QUEUE,
)
NODE = (
    PREPARES,
    PREPARE_ERRORS,
    UNPREPARES,
    UNPREPARE_ERRORS,
    REGISTRATION,
    DAEMON_STATE,
    FABRIC_STATE,
    NODE_PROBLEMS,
    UNREACHABLE,
)
WEBHOOK = (REVIEWS,)
ALL = (*EVERY_PROGRAM, *CONTROLLER, *NODE, *WEBHOOK)


def page(introduction: str) -> str:
    """docs/metrics.md."""
    sections = (
        ("`imex controller`, port 8080", CONTROLLER),
        ("`imex node`, port 8081", NODE),
        ("`imex webhook`, port 8080", WEBHOOK),
        ("Every program", EVERY_PROGRAM),
    )
    labels = "".join(f"| `{name}` | {meaning} |\n" for name, meaning in LABELS.items())
    return (
        introduction
        + "".join(f"\n### {title}\n\n{_table(metrics)}" for title, metrics in sections)
        + f"\n### Labels\n\n| label | value |\n|---|---|\n{labels}"
    )


def _table(metrics: tuple[Metric, ...]) -> str:
    rows = (
        f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels) or '-'} | {metric.help} |\n"
        for metric in metrics
    )
    return "| metric | type | labels | what it says |\n|---|---|---|---|\n" + "".join(rows)
