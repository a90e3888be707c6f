"""The tables of states: what they allow, and that nothing goes round them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from tests.unit.amqp.pair import Pair

from twinbus.amqp.incoming import LinkAttached
from twinbus.amqp.lifecycle import (
    LINK_STATES,
    PHASES,
    ConnectionLife,
    LinkLife,
    LinkState,
    LinkStep,
    MisstepError,
    Phase,
    PhaseStep,
)
from twinbus.amqp.link_endpoint import SENDER
from twinbus.amqp.performatives import Error, Source, Target

SOURCES = Path(__file__).resolve().parents[3] / "src/twinbus"


def put(kind: type[Enum], state: Enum) -> Any:
    life: Any = ConnectionLife() if kind is Phase else LinkLife()
    setattr(life, "phase" if kind is Phase else "state", state)
    return life


EVERY = [
    *((Phase, PHASES, state, step) for state in Phase for step in PhaseStep),
    *((LinkState, LINK_STATES, state, step) for state in LinkState for step in LinkStep),
]


@pytest.mark.parametrize(("kind", "table", "state", "step"), EVERY)
def test_a_step_leads_where_the_table_says_or_raises_and_changes_nothing(
    kind: type[Enum], table: Mapping[Any, Mapping[Any, Any]], state: Enum, step: Any
) -> None:
    life = put(kind, state)
    after = table[state].get(step)
    if after is None:
        with pytest.raises(MisstepError, match=step.value):
            life.follow(step)
        after = state
    else:
        life.follow(step)
    assert (life.phase if kind is Phase else life.state) is after


@pytest.mark.parametrize(("kind", "table"), [(Phase, PHASES), (LinkState, LINK_STATES)])
def test_every_state_is_in_the_table_can_be_reached_and_has_an_end(
    kind: type[Enum], table: Mapping[Any, Mapping[Any, Any]]
) -> None:
    assert list(table) == list(kind)
    first, *_, last = table
    reached = {first}
    for _ in table:
        reached |= {after for state in reached for after in table[state].values()}
    assert reached == set(kind)
    assert [state for state, row in table.items() if not row] == [last]


def test_only_the_tables_file_changes_a_state() -> None:
    changed = set()
    for path in (*SOURCES.glob("amqp/*.py"), *SOURCES.glob("broker/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {
                    t.attr
                    for each in targets
                    for t in ast.walk(each)
                    if isinstance(t, ast.Attribute)
                }
                if "phase" in names or ("state" in names and path.parent.name == "amqp"):
                    changed.add(path.name)
    assert changed == {"lifecycle.py"}


def test_a_link_that_was_detached_before_its_attach_was_answered_ends_without_a_misstep() -> None:
    pair = Pair().opened()
    session = pair.client.begin()
    link = session.attach("l", SENDER, source=Source(), target=Target("q"))
    link.detach(Error("amqp:internal-error", "changed my mind"))
    states = [link.state]
    link.detach()
    pair.pump()
    for asked in pair.take(LinkAttached):
        asked.link.accept()
    pair.pump()
    states.append(link.state)
    link.detach()
    assert [*states, link.state] == [LinkState.DETACHING, LinkState.DETACHED, LinkState.DETACHED]
    pair.client.close()
    pair.client.close()
    assert pair.client.phase is Phase.CLOSED
