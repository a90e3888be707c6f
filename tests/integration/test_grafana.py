"""What `/metrics` says, read by Prometheus's own parser; and whatever asks for it by name: the
Grafana dashboard, the alerts in docs/monitoring.md, and the tables there."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from harness.brokers import BrokerProcess
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.blocks import ROOT, blocks
from tests.integration.administrators import ask

from twinbus.homeward.rounds import Outcome, Tally
from twinbus.syphon.progress import Progress, ProgressServer

ODD = 'orders "in" C:\\new\nline'
QUEUES: dict[str, dict[str, Any]] = {"orders": {}, "twice": {"requires_duplicate_detection": True}}
DASHBOARD = json.loads((ROOT / "grafana/twinbus.json").read_text())
PAGE = ROOT / "docs/monitoring.md"


def families(text: str) -> dict[str, Metric]:
    found = list(text_string_to_metric_families(text))
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def syphon_text() -> str:
    """The page of a syphon that has done something of everything, as it serves it."""
    progress = Progress()
    progress.learn([Tally("backlog", ODD, outcome, 3) for outcome in Outcome], 1.5)
    progress.look({ODD: 2}, 2, exact=True, oldest=1.0)
    server = ProgressServer(progress, 0)
    try:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    finally:
        server.close()


@pytest.fixture(scope="module")
def exported(broker: BrokerProcess) -> dict[str, Metric]:
    """All metrics there are, by the names of their families."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        assert receiver.receive_messages(1, max_wait_time=10)
        text = ask(broker, "GET", "metrics").text
    return {**families(text), **families(syphon_text())}


def names(exported: dict[str, Metric]) -> dict[str, set[str]]:
    """Each sample's name, as one asks for it, and its labels."""
    return {
        f"{name}_total" if each.type == "counter" else name: set().union(
            *(sample.labels for sample in each.samples)
        )
        for name, each in exported.items()
    }


def test_prometheus_reads_every_number(exported: dict[str, Metric]) -> None:
    for name, each in exported.items():
        assert each.type in ("counter", "gauge"), name
        assert each.documentation.endswith("."), name
        assert each.samples, name
    held = {
        sample.labels["entity"]: sample.value
        for sample in exported["twinbus_locked_messages"].samples
    }
    assert held == {"orders": 1, "twice": 0}


def test_a_name_comes_through_whatever_is_in_it(exported: dict[str, Metric]) -> None:
    (moved,) = exported["twinbus_syphon_moved"].samples
    assert (moved.labels, moved.value) == ({"destination": ODD}, 3)


# ---------------------------------------------------------------- the dashboard


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> Iterator[str]:
    for panel in panels():
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def asked(expression: str) -> tuple[set[str], set[str]]:
    """The metrics that an expression names, and the labels."""
    metrics = set(re.findall(r"twinbus_\w+", expression))
    labels = set(re.findall(r'(\w+)(?:=~|!~|!=|=)"', expression))
    labels |= {
        label.strip()
        for group in re.findall(r"by \(([^)]*)\)", expression)
        for label in group.split(",")
    }
    return metrics, labels


def test_the_dashboard_asks_only_for_what_is_exported(exported: dict[str, Metric]) -> None:
    known = names(exported)
    seen: set[str] = set()
    for expression in expressions():
        metrics, labels = asked(expression)
        assert metrics, expression
        assert metrics <= known.keys(), expression
        for metric in metrics:
            assert labels <= known[metric], expression
        seen |= metrics
    assert known.keys() - seen == set(), "exported, and on no panel"


def test_the_dashboard_has_what_grafana_needs() -> None:
    assert DASHBOARD["schemaVersion"] >= 36
    for key in ("title", "uid", "time", "refresh", "annotations", "version"):
        assert key in DASHBOARD
    assert "id" not in DASHBOARD, "Grafana gives it one"
    variables = {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "namespace": "query"}
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["datasource"] == source, panel["title"]
        assert all(target["datasource"] == source for target in panel["targets"])
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


# ---------------------------------------------------------------- the page


def test_the_page_has_a_line_for_every_metric_and_for_no_other(exported: dict[str, Metric]) -> None:
    listed = set(re.findall(r"^\| `(twinbus_\w+)`", PAGE.read_text(), re.MULTILINE))
    assert listed == names(exported).keys()


def test_the_alerts_ask_only_for_what_is_exported(exported: dict[str, Metric]) -> None:
    known = names(exported)
    (rules,) = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.title == "alerts.yml"]
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert alerts
    for alert in alerts:
        metrics, labels = asked(alert["expr"])
        assert metrics, alert
        assert metrics <= known.keys(), alert
        for metric in metrics:
            assert labels <= known[metric], alert
        assert alert["annotations"]["summary"]
