import pytest

from imex_dra.api.reasons import Reason, facts_of, sentence
from imex_dra.base.errors import Misconfigured


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_that_uses_all_its_facts(reason: Reason) -> None:
    facts = {name: f"<{name}>" for name in facts_of(reason)}
    text = sentence(reason, 41, **facts)
    assert all(str(fact) in text for fact in facts.values())
    assert not text.endswith(".")
    assert len(text) < 800


def test_a_missing_fact_is_named() -> None:
    with pytest.raises(Misconfigured, match="NodesReady needs the fact 'count'"):
        sentence(Reason.NODES_READY)
