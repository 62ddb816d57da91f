"""No file of objects makes a command crash, whatever types its values have."""

from typing import Any

import hypothesis.strategies as st
import yaml
from hypothesis import given, settings

from imex_dra.api.meta import Key
from imex_dra.base.errors import Rejected, Unreadable
from imex_dra.diagnose import report
from imex_dra.diagnose.chain import explain
from imex_dra.diagnose.cluster import Cluster
from imex_dra.diagnose.loading import load_files
from imex_dra.diagnose.overview import Selection, model, overview
from imex_dra.diagnose.retirement import retirement
from imex_dra.diagnose.snapshot import KINDS, from_objects
from imex_dra.diagnose.verification import preflight, scope_of, verify
from tests.diagnose.breakings import BREAKINGS
from tests.diagnose.healthy import Broken
from tests.lint.test_robustness import ANYTHING, NEARLY, places


def look(cluster: Cluster) -> None:
    """All that the commands do, except printing."""
    for namespace in ("", "team"):
        report.verification_lines(verify(cluster, scope_of(cluster, namespace), namespace), 80)
    preflight(cluster).plain()
    report.overview_lines(overview(cluster, Selection()), 80)
    model(cluster, Selection())
    report.retirement_lines(retirement(cluster), 80)
    for kind, key in (
        ("pod", Key("team", "worker-1")),
        ("claim", Key("team", "worker-1-imex")),
        ("computedomain", Key("team", "train")),
        ("node", Key("", "r0-n01")),
    ):
        try:
            report.explanation_lines(explain(cluster, kind, key), 80)
        except Rejected:
            continue


OBJECTS = st.fixed_dictionaries(
    {"apiVersion": st.sampled_from([one.api_version for one in KINDS])},
    optional={
        "kind": st.sampled_from([one.kind for one in KINDS]),
        "metadata": NEARLY,
        "spec": NEARLY,
        "status": NEARLY,
    },
)


@settings(settings.get_profile("lint"), max_examples=100)
@given(objects=st.lists(OBJECTS | ANYTHING, max_size=4))
def test_any_objects_are_read(tmp_path_factory: Any, objects: list[object]) -> None:
    file = tmp_path_factory.getbasetemp() / "objects.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    try:
        look(Cluster(load_files([file])))
    except Unreadable as error:
        message = str(error)
        assert message.startswith(str(file))


@settings(settings.get_profile("lint"), max_examples=100)
@given(data=st.data())
def test_a_cluster_with_one_value_replaced_is_read(data: st.DataObject) -> None:
    broken = Broken()
    BREAKINGS[data.draw(st.sampled_from(sorted(BREAKINGS)))](broken)
    objects = [obj for found in broken.objects.values() for obj in found]
    holder, key = data.draw(st.sampled_from(list(places(data.draw(st.sampled_from(objects))))))
    holder[key] = data.draw(ANYTHING | NEARLY)
    look(Cluster(from_objects(objects)))
