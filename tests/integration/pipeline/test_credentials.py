"""A connection string is used, and is found nowhere: plans, progress, errors, checkpoint, event
log, the UI and its REST, Java's log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from harness.brokers import KEY, BrokerProcess
from tests.unit.pipeline.backlogs import plain

from twinbus.auth.credentials import Secret
from twinbus.sdk.links import Links

pytestmark = pytest.mark.timeout(420)
WAYS = ("option", "environment", "provider")
QUEUES: dict[str, dict[str, Any]] = {f"{name}-{way}": {} for name in ("from", "to") for way in WAYS}

# A process of its own: the session of the other tests has neither a UI nor an event log.
SCRIPT = """
import json, os, sys, time, urllib.request, uuid
from pathlib import Path
from twinbus.spark.engine import spark_session
from twinbus.spark.source import ServiceBusSource

folder = Path(sys.argv[1])
connection = os.environ["BUS"]
os.environ.pop("PASSED", None)
conf = {
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.host": "127.0.0.1",
    "spark.eventLog.enabled": "true", "spark.eventLog.dir": (folder / "events").as_uri(),
    "spark.eventLog.rolling.enabled": "false",
}
(folder / "events").mkdir()
spark = spark_session("secrets", master="local[2,4]", conf=conf, short_run=True,
                      log=folder / "java.txt")
spark.sparkContext.setLogLevel("INFO")
spark.dataSource.register(ServiceBusSource)

WAYS = {
    "option": {"connection": connection},
    "environment": {"connectionEnv": "BUS"},
    "provider": {"connectionProvider": "vault:ask"},
}
seen = {}
for way, given in WAYS.items():
    settle = {"settle" + name[0].upper() + name[1:]: value for name, value in given.items()}
    frame = (spark.readStream.format("servicebus").options(**given)
             .option("queues", "from-" + way).load().select("entity", "lock_token", "message"))
    query = (frame.writeStream.format("servicebus").options(**given).options(**settle)
             .option("entity", "to-" + way).queryName(way)
             .option("checkpointLocation", str(folder / "checkpoint" / way)).start())
    end = time.monotonic() + 120
    while not any(each["numInputRows"] for each in query.recentProgress):
        assert time.monotonic() < end and query.isActive, query.exception()
        time.sleep(0.1)
    batch = spark.read.format("servicebus").options(**given).option("queues", "from-" + way).load()
    for name, explained in (("stream", query._jsq.explainInternal(True)),
                            ("batch", batch._jdf.queryExecution().toString())):
        seen[f"explain {name} {way}"] = explained
    rows = spark.createDataFrame([("x",)], "body string")
    rows.write.format("servicebus").mode("append").options(**given).option(
        "entity", "to-" + way).save()
    try:
        rows.write.format("servicebus").mode("append").options(**given).option(
            "entity", "nowhere").save()
    except Exception as error:
        seen["error " + way] = str(error)
    query.stop()
    seen["progress " + way] = json.dumps([json.loads(each.json) for each in query.recentProgress]
                                         ) + str(query.lastProgress) + repr(query.status)

try:
    failing = (spark.readStream.format("servicebus").options(**WAYS["option"])
               .option("queues", "from-option").load().select("message")
               .writeStream.format("servicebus").options(**WAYS["option"])
               .option("checkpointLocation", str(folder / "checkpoint" / "failing")).start())
    failing.awaitTermination(60)
except Exception as error:
    seen["failing query"] = str(error) + repr(error)

base = spark.sparkContext.uiWebUrl
app = spark.sparkContext.applicationId
def page(path):
    with urllib.request.urlopen(base + path, timeout=30) as answer:
        return answer.read().decode()
paths = ["/environment/", "/SQL/", "/StreamingQuery/", "/jobs/", "/stages/", "/executors/"]
rest = f"/api/v1/applications/{app}"
paths += [rest + each for each in ("/environment", "/sql?details=true&length=1000", "/jobs",
                                   "/stages?details=true")]
for path in paths:
    seen["ui " + path] = page(path)
for each in json.loads(seen["ui " + rest + "/sql?details=true&length=1000"]):
    path = f"/SQL/execution/?id={each['id']}"
    seen["ui " + path] = page(path)
for query in json.loads(seen["ui " + rest + "/jobs"]):
    path = f"/jobs/job/?id={query['jobId']}"
    seen["ui " + path] = page(path)
spark.stop()
for file in folder.rglob("*"):
    if file.is_file() and file.suffix not in (".json", ".py", ".pyc"):
        seen["file " + str(file.relative_to(folder))] = file.read_text(errors="replace")
(folder / "seen.json").write_text(json.dumps(seen))
"""
VAULT = '''
import os

def ask(options):
    """What a secret provider of the user's does."""
    return os.environ["VAULT"]
'''


@pytest.fixture(scope="module")
def seen(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Everything that a session with queries, a UI and an event log has shown."""
    folder = tmp_path_factory.mktemp("seen")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "vault.py").write_text(VAULT)
    secret, links = Secret(broker.connection_string), Links()
    for way in WAYS:
        links.sender(secret, f"from-{way}").send([plain("first")])
    links.close()
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(folder)],
        env={
            **os.environ,
            "PYTHONPATH": path,
            "BUS": broker.connection_string,
            "VAULT": broker.connection_string,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    for way in WAYS:
        home = links.receiver(secret, f"to-{way}").peek(10)
        assert len(home) == 2, way
    links.close()
    found: dict[str, str] = json.loads((folder / "seen.json").read_text())
    return {**found, "standard output": done.stdout, "standard error": done.stderr}


def test_what_was_searched_is_what_there_is(seen: dict[str, str]) -> None:
    """A search in nothing finds nothing."""
    for name in ("explain stream", "explain batch", "error", "progress"):
        for way in WAYS:
            assert seen[f"{name} {way}"]
    assert any(name.startswith("file events/") for name in seen)
    assert any(name.startswith("file checkpoint/option/offsets/") for name in seen)
    assert "servicebus" in "".join(text for name, text in seen.items() if "/SQL/" in name)
    assert "where to?" in seen["failing query"]
    assert "could not be found" in seen["error option"]
    assert seen["file java.txt"]


def test_the_key_is_nowhere(seen: dict[str, str]) -> None:
    assert [name for name, text in seen.items() if KEY in text] == []


def test_nor_is_what_the_key_is_part_of(seen: dict[str, str]) -> None:
    assert [name for name, text in seen.items() if "SharedAccessKey=" in text] == []


def test_a_secret_shows_nothing_of_itself() -> None:
    secret = Secret("Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey=hidden")
    assert "hidden" not in f"{secret} {secret!r} {[secret]} {vars(type(secret))}"
