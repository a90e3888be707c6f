"""Who may come in: tokens, claims and their end, loopback, TLS. Keys stay out of sight."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError
from harness.brokers import BrokerProcess, check_stores
from harness.raw import Raw, kilobyte_message, parse_connection_string

from twinbus.amqp.incoming import Delivery, LinkDetached
from twinbus.amqp.link_endpoint import RECEIVER, SENDER, Link
from twinbus.amqp.message import (
    Message,
    Properties,
    application_properties,
    with_application_properties,
)
from twinbus.amqp.types import encode
from twinbus.auth.access_rules import AccessRule, Claim
from twinbus.broker.config import NamespaceConfig
from twinbus.broker.descriptions import QueueDescription
from twinbus.broker.server import Broker, BrokerConfig

QUEUES: dict[str, dict[str, Any]] = {"orders": {}}
ROOT_KEY, SEND_KEY, LISTEN_KEY, OTHER_KEY = ("cm9vdA==", "c2VuZA==", "bGlzdGVu", "b3RoZXI=")
ROOT = "RootManageSharedAccessKey"


def sas(resource: str, rule: str, key: str, expires_in_s: float = 3_600) -> str:
    expiry = int(time.time() + expires_in_s)
    signed = f"{quote_plus(resource)}\n{expiry}".encode()
    digest = base64.b64encode(hmac.new(key.encode(), signed, hashlib.sha256).digest()).decode()
    return (
        f"SharedAccessSignature sr={quote_plus(resource)}&sig={quote_plus(digest)}"
        f"&se={expiry}&skn={rule}"
    )


class House:
    """A broker in this process, with queues that have rules of their own."""

    def __init__(self, folder: Path) -> None:
        config = BrokerConfig([NamespaceConfig("contoso", 0, 0)], folder, key=ROOT_KEY)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._broker = Broker(config)
        self._call(self._broker.start())
        self.connection_string = self._broker.connection_strings()["contoso"]
        self._call(self._create())

    def _call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _create(self) -> None:
        namespace = self._broker.hosts[0].namespace
        rules = {
            "orders": (
                AccessRule("sender", SEND_KEY, SEND_KEY, frozenset({Claim.SEND})),
                AccessRule("listener", LISTEN_KEY, LISTEN_KEY, frozenset({Claim.LISTEN})),
            ),
            "other": (AccessRule("other", OTHER_KEY, OTHER_KEY, frozenset(Claim)),),
        }
        for path, each in rules.items():
            created = self._loop.create_future()
            description = QueueDescription(access_rules=each)
            namespace.directory.create_queue(
                path, description, self._broker.clock(), created.set_result
            )
            assert await created is None

    def close(self) -> None:
        self._call(self._broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    house = House(folder)
    yield house
    house.close()
    check_stores(folder)


class Guest(Raw):
    """A client that has shown no token yet."""

    def _authorize(self, parts: dict[str, str]) -> None:
        self.socket.settimeout(20)
        self._requests = self.attach(SENDER, "$cbs")
        self._answers = self.attach(RECEIVER, "$cbs")
        self._answers.grant(100)

    def put(self, path: str, token: str) -> tuple[int, str]:
        return self.ask(
            self._requests,
            {"operation": "put-token", "type": "jwt", "name": f"sb://localhost/{path}"},
            token,
            ("status-code", "status-description"),
        )

    def ask(
        self, link: Link, values: dict[str, Any], body: Any, names: tuple[str, str]
    ) -> tuple[int, str]:
        properties = Properties(message_id=uuid.uuid4(), reply_to="load")
        message = with_application_properties(properties.encoded(), values)
        link.send(message + b"\x00\x53\x77" + encode(body), b"ask", settled=True)
        event = self.wait(lambda event: isinstance(event, Delivery))
        assert isinstance(event, Delivery)
        assert event.payload is not None
        answer = application_properties(Message.parse(event.payload).bare)
        return int(answer[names[0]]), str(answer[names[1]])

    def manage(self, path: str, operation: str, body: dict[str, Any]) -> tuple[int, str]:
        replies = self.attach(RECEIVER, f"{path}/$management")
        replies.grant(10)
        link = self.attach(SENDER, f"{path}/$management")
        values = {"operation": f"com.microsoft:{operation}"}
        return self.ask(link, values, body, ("statusCode", "statusDescription"))


@pytest.fixture
def guest(house: House) -> Iterator[Guest]:
    guest = Guest(house.connection_string)
    yield guest
    guest.socket.close()


SEND_HERE = sas("sb://localhost/orders", "sender", SEND_KEY)
LISTEN_HERE = sas("sb://localhost/orders", "listener", LISTEN_KEY)
ROOT_TOKEN = sas("sb://localhost/", ROOT, ROOT_KEY)


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (sas("sb://localhost/orders", ROOT, "d3Jvbmc="), "not signed with a key"),
        (sas("sb://localhost/orders", "nobody", ROOT_KEY), "no rule 'nobody'"),
        (sas("sb://localhost/orders", ROOT, ROOT_KEY, -5), "has expired"),
        (sas("sb://localhost/other", ROOT, ROOT_KEY), "for 'other', not for 'orders'"),
        (sas("sb://localhost/orders", "other", OTHER_KEY), "no rule 'other'"),
        (sas("sb://localhost/", "sender", SEND_KEY), "no rule 'sender'"),
        (sas("sb://localhost/ord", ROOT, ROOT_KEY), "for 'ord', not for 'orders'"),
    ],
    ids=["key", "rule", "expired", "audience", "other's rule", "namespace", "prefix"],
)
def test_a_token_that_does_not_fit_is_refused(
    guest: Guest, caplog: pytest.LogCaptureFixture, token: str, reason: str
) -> None:
    with caplog.at_level(logging.DEBUG):
        status, text = guest.put("orders", token)
    assert status == 401
    assert reason in text
    signature = token.split("sig=")[1].split("&")[0]
    for secret in (ROOT_KEY, SEND_KEY, LISTEN_KEY, OTHER_KEY, signature):
        assert secret not in text
        assert secret not in caplog.text
    with pytest.raises(ConnectionError, match="amqp:unauthorized-access"):
        guest.attach(SENDER, "orders")


@pytest.mark.parametrize(
    ("token", "role", "claim"), [(SEND_HERE, RECEIVER, "Listen"), (LISTEN_HERE, SENDER, "Send")]
)
def test_a_link_needs_the_claim_for_what_it_does(
    guest: Guest, token: str, role: bool, claim: str
) -> None:
    assert guest.put("orders", token)[0] == 202
    guest.attach(not role, "orders")
    with pytest.raises(ConnectionError, match=f"'{claim}' claim is required for 'orders'"):
        guest.attach(role, "orders")


def test_a_token_for_one_queue_opens_no_other(guest: Guest) -> None:
    assert guest.put("orders", SEND_HERE)[0] == 202
    with pytest.raises(ConnectionError, match="amqp:unauthorized-access"):
        guest.attach(SENDER, "other")


def test_a_token_for_the_namespace_opens_every_queue(guest: Guest) -> None:
    assert guest.put("", ROOT_TOKEN)[0] == 202
    for queue in ("orders", "other"):
        guest.attach(SENDER, queue)
        guest.attach(RECEIVER, f"{queue}/$DeadLetterQueue")


def test_without_rights_one_does_not_learn_what_exists(guest: Guest) -> None:
    for queue in ("orders", "no-such-queue"):
        with pytest.raises(ConnectionError, match="amqp:unauthorized-access"):
            guest.attach(SENDER, queue)


@pytest.mark.parametrize(
    ("token", "operation", "body", "status"),
    [
        (SEND_HERE, "peek-message", {"from-sequence-number": 1, "message-count": 1}, 401),
        (LISTEN_HERE, "peek-message", {"from-sequence-number": 1, "message-count": 1}, 204),
        (SEND_HERE, "cancel-scheduled-message", {"sequence-numbers": [99]}, 404),
        (LISTEN_HERE, "cancel-scheduled-message", {"sequence-numbers": [99]}, 401),
        (LISTEN_HERE, "schedule-message", {"messages": []}, 401),
        (SEND_HERE, "renew-lock", {"lock-tokens": [uuid.uuid4()]}, 401),
        (
            SEND_HERE,
            "update-disposition",
            {"disposition-status": "completed", "lock-tokens": [uuid.uuid4()]},
            401,
        ),
    ],
)
def test_a_request_needs_the_claim_for_what_it_asks(
    guest: Guest, token: str, operation: str, body: dict[str, Any], status: int
) -> None:
    assert guest.put("orders", token)[0] == 202
    answer, text = guest.manage("orders", operation, body)
    assert answer == status, text
    if status == 401:
        assert "claim is required for 'orders" in text


def test_an_expired_token_ends_its_links(guest: Guest) -> None:
    assert guest.put("orders", sas("sb://localhost/orders", "sender", SEND_KEY, 3))[0] == 202
    guest.attach(SENDER, "orders")
    with pytest.raises(ConnectionError, match="amqp:unauthorized-access"):
        guest.wait(lambda event: isinstance(event, LinkDetached))


def test_a_token_put_in_time_keeps_its_links(guest: Guest) -> None:
    assert guest.put("orders", sas("sb://localhost/orders", "sender", SEND_KEY, 3))[0] == 202
    link = guest.attach(SENDER, "orders")
    assert guest.put("orders", SEND_HERE)[0] == 202
    guest.socket.settimeout(6)
    with pytest.raises(TimeoutError):
        guest.wait(lambda event: isinstance(event, LinkDetached))
    guest.socket.settimeout(20)
    link.send(kilobyte_message(1), b"t", settled=False)
    guest.step()


def test_the_sdk_calls_a_wrong_key_an_authentication_error(house: House) -> None:
    wrong = house.connection_string.replace(ROOT_KEY, "d3Jvbmc=")
    client = ServiceBusClient.from_connection_string(wrong, retry_total=0)
    with client, pytest.raises(ServiceBusAuthenticationError) as caught:
        client.get_queue_sender("orders").__enter__()
    assert ROOT_KEY not in str(caught.value)
    assert "d3Jvbmc=" not in str(caught.value)


# ---------------------------------------------------------------- processes and TLS


def test_the_key_is_in_neither_the_log_nor_the_process_list(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, QUEUES, extra=("--verbose",))
    broker.start()
    key = parse_connection_string(broker.connection_string)["SharedAccessKey"]
    raw = Raw(broker.connection_string)
    raw.send("orders", iter([kilobyte_message(1)]), 1)
    raw.close()
    wrong = Raw(broker.connection_string.replace(key, "d3Jvbmc="))
    with pytest.raises(ConnectionError):
        wrong.attach(SENDER, "orders")
    wrong.socket.close()
    command = Path(f"/proc/{broker.pid}/cmdline").read_bytes()
    assert broker.stop() == 0
    assert key.encode() not in command
    assert key not in broker.log()
    assert "not signed with a key of the rule" in broker.log()


def over_tls(broker: BrokerProcess, **options: Any) -> ServiceBusClient:
    secure = broker.connection_string.replace("UseDevelopmentEmulator=true", "").rstrip(";")
    # Without the emulator's flag the SDK knows one port, 5671, unless it is given another so.
    return ServiceBusClient.from_connection_string(
        secure,
        retry_total=0,
        transport_type=TransportType.Amqp,
        custom_endpoint_address=f"sb://localhost:{broker.port}",
        **options,
    )


def check_tls(broker: BrokerProcess, certificate: Path) -> None:
    with over_tls(broker, connection_verify=str(certificate)) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("secret"))
        with client.get_queue_receiver("orders") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=10)
            assert str(message) == "secret"
            receiver.complete_message(message)


def test_tls_with_the_brokers_own_certificate(broker: BrokerProcess) -> None:
    check_tls(broker, broker.folder / "data" / "certificate.pem")


def test_tls_with_a_certificate_that_the_user_brings(broker: BrokerProcess, tmp_path: Path) -> None:
    mine = broker.folder / "data"
    files = (str(mine / "certificate.pem"), str(mine / "certificate-key.pem"))
    options = ("--tls-cert", files[0], "--tls-key", files[1])
    second = BrokerProcess(tmp_path, QUEUES, extra=options)
    second.start()
    assert not (tmp_path / "data" / "certificate.pem").exists()
    check_tls(second, mine / "certificate.pem")
    assert second.stop() == 0


def test_a_certificate_that_nobody_vouches_for_is_refused_by_the_client(
    broker: BrokerProcess,
) -> None:
    with over_tls(broker) as client, pytest.raises(ServiceBusError):
        client.get_queue_sender("orders").__enter__()
