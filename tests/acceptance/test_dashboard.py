"""The dashboard through a whole outage, in a real browser: Chromium, real brokers, a real syphon.

With TWINBUS_SCREENSHOT it keeps a picture of the outage there: `make screenshot`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from playwright.sync_api import Browser, Page, expect
from tests.browsers import chromium, faults_of, ground, is_wider_than_the_window

from twinbus import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from twinbus.ledger import Ledger
from twinbus.local import connections
from twinbus.paired.events import Diverted

TWINBUS = str(Path(sys.executable).with_name("twinbus"))
ANY_PORTS = ("--port", "0", "--admin-port", "0", "--dashboard-port", "0")
ENVIRONMENT = {name: text for name, text in os.environ.items() if not name.startswith("TWINBUS_")}
SEEN_S = 60_000  # milliseconds; a busy machine is slow, and this only bounds a failure
PHONE = {"width": 360, "height": 740}
PICTURE = {"width": 1280, "height": 900}


def called(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TWINBUS, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def run(folder: Path, *arguments: str) -> str:
    done = called(folder, *arguments)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """With a pair that is up."""
    run(tmp_path, "up", *ANY_PORTS, "--faults", "--queue", "orders", "--queue", "payments")
    yield tmp_path
    logs = [path.read_text() for path in (tmp_path / ".twinbus" / "run").glob("*.log")]
    run(tmp_path, "down")
    assert "Traceback" not in "".join(logs), logs


def parts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(folder, "status", "--json"))["parts"]
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=SEEN_S)
    with chromium() as found:
        yield found


class Traffic:
    """An application: a paired sender and a receiver for each queue, all with a ledger."""

    def __init__(self, folder: Path) -> None:
        local = connections.read(folder / ".twinbus")
        self.ledger = Ledger(local.ledger, client="shop", flush_interval_s=1)
        make = MessagingFactory.from_connection_string
        self.primary = make(local.primary, retry_total=0, ledger=self.ledger)
        self.secondary = make(local.secondary, retry_total=0, ledger=self.ledger)
        self.manager = NamespaceManager.from_connection_string(
            local.secondary, connection_verify=local.certificate
        )
        self.diverted_at = 0.0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Traffic:
        options = SendAvailabilityPairedNamespaceOptions(
            self.manager,
            self.secondary,
            backlog_queue_count=2,
            failover_interval=timedelta(seconds=1),
            ping_primary_interval=timedelta(seconds=1),
            operation_timeout=timedelta(seconds=10),
        )
        self.primary.pair_namespace(options)
        self.primary.add_listener(self._hear)
        for queue in ("orders", "payments"):
            for job in (self._send, self._receive):
                self._threads.append(threading.Thread(target=job, args=(queue,)))
        for thread in self._threads:
            thread.start()
        return self

    def _hear(self, event: Any) -> None:
        if isinstance(event, Diverted):
            self.diverted_at = event.at

    def _send(self, queue: str) -> None:
        number = 0
        with self.primary.get_queue_sender(queue) as sender:
            while not self._ended.wait(0.1):
                number += 1
                message = ServiceBusMessage("one coffee", message_id=f"{queue}-{number:05}")
                with suppress(AzureError):  # a suspect raises; the next one is another message
                    sender.send_messages(message)

    def _receive(self, queue: str) -> None:
        while not self._ended.is_set():
            with (
                suppress(AzureError),
                self.primary.get_queue_receiver(queue) as receiver,
            ):
                while not self._ended.is_set():
                    for message in receiver.receive_messages(50, max_wait_time=1):
                        receiver.complete_message(message)
            self._ended.wait(0.5)

    def waiting_id(self) -> str:
        """The id of a message in the backlog."""
        for number in range(2):
            path = f"localhost/x-servicebus-transfer/{number}"
            with self.secondary.get_queue_receiver(path) as receiver:
                for message in receiver.peek_messages(1):
                    return str(message.message_id)
        raise AssertionError("nothing waits")

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(30)
        for each in (self.primary, self.secondary, self.manager):
            each.close()
        self.ledger.close()


@contextmanager
def opened(browser: Browser, url: str, **settings: Any) -> Iterator[Page]:
    """A page on which nothing may go wrong unsaid."""
    context = browser.new_context(**settings)
    page = context.new_page()
    page.set_default_timeout(SEEN_S)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    # While a namespace is down nothing is said either: it is the server that asks.
    assert not said


def row(page: Page, table: str, name: str) -> Any:
    return page.locator(f"#{table} tbody tr").filter(has=page.get_by_role("rowheader", name=name))


def state(page: Page, entity: str) -> Any:
    return row(page, "entities", entity).locator(".state")


def waiting(page: Page) -> int:
    text = page.locator("#figures div", has_text="Waiting").locator("b").inner_text()
    return int(text.replace(",", "")) if text[0].isdigit() else -1


def until(condition: Callable[[], bool], within_s: float = SEEN_S / 1000) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.1)


# ---------------------------------------------------------------- an outage


@pytest.mark.timeout(420)
def test_an_outage_from_beginning_to_end(folder: Path, browser: Browser) -> None:
    url = parts(folder)["dashboard"]["url"]
    with Traffic(folder) as traffic, opened(browser, url, viewport=PICTURE) as page:
        assert "token" not in page.url
        expect(state(page, "orders")).to_have_text("healthy")
        expect(page.get_by_role("heading", level=1)).to_have_text("All is well")

        page.get_by_label("Kind").select_option("unreachable")
        page.get_by_label("Entity", exact=True).select_option("orders")
        page.get_by_label("Seconds").fill("300")
        page.get_by_role("button", name="Start the fault").click()

        expect(state(page, "orders")).to_have_text("diverted")
        late_s = time.time() - traffic.diverted_at
        print(f"the state was seen {late_s:.1f} s after it changed")
        assert late_s < 10
        expect(state(page, "payments")).to_have_text("healthy")
        expect(page.get_by_role("heading", level=1)).to_have_text("orders is out")
        until(lambda: waiting(page) > 20)
        expect(row(page, "destinations", "orders")).to_be_visible()
        expect(row(page, "outages", "orders")).to_contain_text("not yet")
        expect(row(page, "bill", "into the backlog")).to_be_visible()
        expect(row(page, "entities", "orders")).to_contain_text("failed")
        expect(page.locator("#announcer")).to_contain_text("orders is diverted")
        chosen = traffic.waiting_id()
        keep_picture(page)
        assert not faults_of(page)

        page.get_by_role("button", name="Clear unreachable of orders").click()
        expect(state(page, "orders")).to_have_text("coming home")
        most = waiting(page)
        bring_home(folder)
        until(lambda: waiting(page) == 0)
        print(f"the backlog rose to {most} and fell to 0")
        expect(state(page, "orders")).to_have_text("healthy")
        expect(row(page, "outages", "orders")).not_to_contain_text("not yet")
        expect(row(page, "bill", "sent home")).to_be_visible()
        expect(page.get_by_role("heading", level=1)).to_have_text("All is well")

        follow(page, chosen)


def bring_home(folder: Path) -> None:
    """Spark gives its Python workers ten seconds to start, which on a crowded machine may not be
    enough; the syphon says so, and is run again. Anything else that it says is a failure."""
    for _ in range(3):
        done = called(folder, "syphon", "--once")
        if "Python worker failed to connect back" not in done.stderr:
            break
    assert done.returncode == 0, (done.stdout, done.stderr)


def keep_picture(page: Page) -> None:
    where = os.environ.get("TWINBUS_SCREENSHOT")
    if where:
        page.wait_for_timeout(12_000)  # so that the charts have something to show
        page.screenshot(path=where, full_page=True)


def follow(page: Page, message_id: str) -> None:
    """The journey of one message, found by its id."""
    page.get_by_role("link", name="Journey").click()
    page.get_by_label("Message id").fill(message_id)
    names = page.locator("#journey-steps .step-name b")
    wanted = Counter(["Diverted", "Taken", "Sent home", "Settled", "Received", "Settled"])

    def found() -> bool:
        page.get_by_role("button", name="Find it").click()
        expect(page.locator("#journey-said")).not_to_contain_text("Looking")
        return not wanted - Counter(names.all_inner_texts())

    until(found, within_s=120)  # a receiver that lost its link settles when the lock is over
    told = names.all_inner_texts()
    print("the journey:", ", ".join(told))
    # That it was sent home is written when the primary has said yes, and a receiver may be quicker.
    for later in ("Sent home", "Received"):
        assert told.index("Diverted") < told.index("Taken") < told.index(later)
    assert page.url.endswith(f"/journey?id={message_id}")
    expect(page.locator("#journey-steps")).to_contain_text("for orders")
    assert not faults_of(page)
    page.reload()
    expect(names).to_have_text(told)


@pytest.mark.timeout(240)
def test_a_namespace_that_is_killed_is_seen_to_go_and_to_come_back(
    folder: Path, browser: Browser
) -> None:
    before = parts(folder)
    with opened(browser, before["dashboard"]["url"]) as page:
        card = page.get_by_role("article", name="primary namespace")
        expect(card.locator(".state")).to_have_text("up")
        os.kill(before["primary"]["pid"], signal.SIGKILL)
        expect(card.locator(".state")).to_have_text("down")
        expect(card).to_contain_text("nobody listens")
        expect(page.get_by_role("heading", level=1)).to_have_text("The primary is down")
        run(folder, "up")
        expect(card.locator(".state")).to_have_text("up")
        expect(page.get_by_role("heading", level=1)).to_have_text("All is well")


@pytest.mark.timeout(240)
def test_what_cannot_be_read_or_is_old_is_seen_and_since_when(
    folder: Path, browser: Browser
) -> None:
    """What is told of an address that answers oddly is in tests/integration/test_watching.py."""

    def unreadable(route: Any) -> None:
        answer = route.fetch()
        told = answer.json()
        told["namespaces"][0].update(
            state="unreadable", since=told["at"] - 75, error="it is a router", messages=0
        )
        told["failing"] = [
            {"what": "ledger", "entity": "l", "since": "2026-11-19T03:00:00Z", "error": "E: torn"}
        ]
        route.fulfill(response=answer, json=told)

    with opened(browser, parts(folder)["dashboard"]["url"]) as page:
        card = page.get_by_role("article", name="primary namespace")
        expect(card.locator(".state")).to_have_text("up")
        page.route("**/api/now", unreadable)
        expect(card.locator(".state")).to_have_text("unreadable")
        expect(card).to_contain_text("not readable for")
        expect(card).to_contain_text("1 min 15 s")
        expect(card).to_contain_text("it is a router")
        expect(page.locator("#notice")).to_contain_text("ledger of l fails since")
        page.unroute("**/api/now")
        expect(card.locator(".state")).to_have_text("up")
        page.route("**/api/now", lambda route: route.fulfill(body="nonsense"))
        heading = page.get_by_role("heading", level=1)
        expect(heading).to_have_text("What is shown is old")
        page.unroute("**/api/now")
        expect(heading).to_have_text("All is well")


# ---------------------------------------------------------------- for everybody


@pytest.mark.timeout(240)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_fit_a_phone_and_can_be_used_by_ear_and_by_keyboard(
    folder: Path, browser: Browser, scheme: Any
) -> None:
    url = parts(folder)["dashboard"]["url"]
    with opened(browser, url, viewport=PHONE, color_scheme=scheme) as page:
        for address in ("/", "/journey"):
            page.goto(url.split("?")[0].rstrip("/") + address)
            page.wait_for_timeout(2_000)
            assert not is_wider_than_the_window(page)
            assert not faults_of(page)
            shade = [int(part) for part in re.findall(r"\d+", str(ground(page)))]
            assert (sum(shade) > 384) == (scheme == "light")
        page.goto(url.split("?")[0])
        page.wait_for_timeout(1_500)
        walk(page)


def walk(page: Page) -> None:
    """By the key alone: first the way past the menu, and every stop can be seen."""
    page.keyboard.press("Tab")
    focused = "document.activeElement"
    assert page.evaluate(f"{focused}.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate(f"{focused}.closest('main') !== null")
    seen = set()
    for _ in range(25):
        assert page.evaluate(f"getComputedStyle({focused}).outlineStyle") == "solid"
        seen.add(page.evaluate(f"{focused}.id || {focused}.tagName"))
        page.keyboard.press("Tab")
        if page.evaluate(f"{focused} === document.body"):
            break
    assert {"fault-namespace", "fault-kind", "fault-entity", "fault-seconds", "BUTTON"} <= seen


@pytest.mark.timeout(240)
def test_no_key_reaches_the_browser_and_names_are_never_markup(
    tmp_path: Path, browser: Browser
) -> None:
    odd = "<img src=x onerror=alert(1)>"
    run(tmp_path, "up", *ANY_PORTS, "--queue", "orders")
    try:
        local = connections.read(tmp_path / ".twinbus")
        ledger = Ledger(local.ledger)
        host = local.primary.split("//")[1].split(";")[0]
        ledger.add("send", "normal", host, odd, message_ids=[odd])
        ledger.close()
        answers: list[str] = []
        with opened(browser, parts(tmp_path)["dashboard"]["url"]) as page:
            page.on("response", lambda answer: answers.append(_text(answer)))
            expect(row(page, "entities", odd)).to_be_visible()
            expect(page.locator("#faults-card")).to_be_hidden()
            page.goto(f"{page.url}journey?id={odd}")
            expect(page.locator("#journey-steps")).to_contain_text(f"sent to {odd}")
            assert page.locator("img").count() == 0
        keys = re.findall("SharedAccessKey=([^;]+)", f"{local.primary};{local.secondary}")
        assert len(keys) == 2
        assert answers
        assert not [text for text in answers if any(key in text for key in keys)]
    finally:
        run(tmp_path, "down")


def _text(answer: Any) -> str:
    try:
        return str(answer.text())
    except Exception:  # noqa: BLE001  the page went on before it had been read
        return ""
