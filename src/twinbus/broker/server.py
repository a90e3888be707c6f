"""The broker as a process: data folder, keys, namespaces on their ports, a clean end."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from twinbus.auth.access_rules import ROOT_RULE, new_key, root_rule
from twinbus.broker.admin import Page, admin_app
from twinbus.broker.committer import committing
from twinbus.broker.config import ConfigError, NamespaceConfig, SubscriptionConfig
from twinbus.broker.directory import Directory
from twinbus.broker.host import Host, SteadyClock
from twinbus.broker.metrics import metrics_page
from twinbus.broker.namespace import Namespace
from twinbus.broker.queue import Done
from twinbus.broker.refusals import EntityExistsError
from twinbus.broker.served import ServedRecords
from twinbus.broker.store import Store, alone_in
from twinbus.broker.trouble import Trouble, no_faults
from twinbus.errors import TwinbusError
from twinbus.ledger import Keeper, Ledger, LedgerError
from twinbus.processes import write_private
from twinbus.serving.certificate import self_signed, server_context
from twinbus.serving.http import HttpFactory
from twinbus.serving.port import Address, listening_socket
from twinbus.serving.websocket import web_app

log = logging.getLogger("twinbus.broker")


class BrokerError(TwinbusError):
    """The broker cannot start; the text says why and what to do."""


@dataclass
class BrokerConfig:
    """One process."""

    namespaces: list[NamespaceConfig]
    data: Path
    host: str = "127.0.0.1"
    key: str | None = field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    idle_link_s: float = 600.0
    faults: bool = False
    ledger: str | None = None
    open_store: Callable[[Path], Store] = Store


class Broker:
    """All namespaces of one process."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.clock = SteadyClock()
        self.hosts: list[Host] = []
        self.admin_ports: list[int] = []
        self._factories: list[HttpFactory] = []
        self._servers: list[asyncio.Server] = []
        self._troubles: list[Trouble] = []
        self._locks = ExitStack()
        self._ledger = None if config.ledger is None else _ledger(config.ledger)

    async def start(self) -> None:
        """Open everything; if one part cannot, close what was opened and say why."""
        try:
            if self.config.tls_certificate is None:
                self_signed(self._folder(self.config.data))  # so that users find it to trust it
            for namespace in self.config.namespaces:
                await self._start(namespace)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, config: NamespaceConfig) -> None:
        folder = self._folder(self.config.data / config.name)
        self._locks.enter_context(alone_in(folder))
        key = config.key or self.config.key or _kept_key(folder)
        namespace = Namespace(
            config.name, self.config.open_store(folder / "messages.db"), [root_rule(key)]
        )
        namespace.idle_link_ms = int(self.config.idle_link_s * 1000)
        if self._ledger is not None:
            namespace.books = ServedRecords(self._ledger, namespace)
        host = Host(namespace, Address(self.config.host, config.port), self.clock, self._tls)
        pages: dict[str, Page] = {"metrics": partial(metrics_page, host)}
        pages["$faults"] = no_faults
        if self.config.faults:
            trouble = Trouble(host)
            pages["$faults"] = trouble.page
            self._troubles.append(trouble)
        management = admin_app(namespace, self.clock, pages)
        factory = HttpFactory(web_app(host.port, management), host.budget)
        self._factories.append(factory)
        await host.start(factory)
        self.hosts.append(host)
        await self._declare(host, config)
        sock = listening_socket(Address(self.config.host, config.admin_port))
        self.admin_ports.append(sock.getsockname()[1])
        self._servers.append(await asyncio.get_running_loop().create_server(factory, sock=sock))

    @staticmethod
    def _folder(folder: Path) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BrokerError(
                f"the data folder {folder} cannot be used: {error.strerror}; name another"
            ) from error
        return folder

    async def _declare(self, host: Host, config: NamespaceConfig) -> None:
        """Create what is declared and not there, those that others forward to first."""
        directory = host.namespace.directory
        _check_kinds(directory, config)
        forwarding = [path for path in config.in_order() if config.queues[path].targets]
        await self._create(
            *(
                partial(directory.create_queue, path, description)
                for path, description in config.queues.items()
                if path not in forwarding
            ),
            *(
                partial(directory.create_topic, path, t.description)
                for path, t in config.topics.items()
            ),
        )
        for path in forwarding:
            await self._create(partial(directory.create_queue, path, config.queues[path]))
        for path, topic in config.topics.items():
            for name, subscription in topic.subscriptions.items():
                await self._subscribe(directory, path, name, subscription)

    async def _subscribe(
        self, directory: Directory, topic: str, name: str, config: SubscriptionConfig
    ) -> None:
        first = config.rules[0] if config.rules else None
        created = await self._create(
            partial(directory.create_subscription, topic, name, config.description, first)
        )
        if created:
            await self._create(
                *(partial(directory.create_rule, topic, name, rule) for rule in config.rules[1:])
            )

    async def _create(self, *creations: Callable[[int, Done], None]) -> int:
        """Wait for all of these to be on disk; answers how many were not there before."""
        waiting = []
        for create in creations:
            with suppress(EntityExistsError):  # it is there from an earlier run, with its messages
                waiting.append(committing(partial(create, self.clock())))
        await asyncio.gather(*waiting)
        return len(waiting)

    def _tls(self) -> ssl.SSLContext:
        certificate, key = self.config.tls_certificate, self.config.tls_key
        if certificate is None or key is None:
            certificate, key = self_signed(self.config.data)
        return server_context(certificate, key)

    async def stop(self) -> None:
        """Close the ports, finish what is being written, close the files."""
        for trouble in self._troubles:
            trouble.close()
        for server in self._servers:
            server.close()
        for factory in self._factories:
            await factory.stop()
        for host in self.hosts:
            await host.stop()
            with suppress(LedgerError):  # it says so itself when it is closed
                host.namespace.books.post(self.clock())
        if self._ledger is not None:
            await asyncio.to_thread(self._ledger.close)
        self._locks.close()

    def connection_strings(self) -> dict[str, str]:
        """How to reach each namespace, with the key of its root rule."""
        name = "localhost" if self.config.host in ("127.0.0.1", "0.0.0.0") else self.config.host  # noqa: S104 (compared, not bound)
        return {
            host.namespace.name: (
                f"Endpoint=sb://{name}:{host.port.address.port};SharedAccessKeyName={ROOT_RULE};"
                f"SharedAccessKey={host.namespace.directory.rules[0].primary_key};"
                "UseDevelopmentEmulator=true"
            )
            for host in self.hosts
        }


def _ledger(where: str) -> Ledger:
    try:
        return Ledger(where, kept_by=Keeper.BROKER)
    except LedgerError as error:
        raise BrokerError(str(error)) from error


def _check_kinds(directory: Directory, config: NamespaceConfig) -> None:
    """Raise if something is declared that an earlier run has made of another kind."""
    there = {entity.path.lower(): entity.kind for entity in directory.entities()}
    for kind, paths in (("queue", config.queues), ("topic", config.topics)):
        for path in paths:
            known = there.get(path.lower(), kind)
            if known != kind:
                raise BrokerError(
                    f"'{path}' of '{config.name}' is declared as a {kind}, but the data folder has "
                    f"a {known} of that name; rename or delete one of them"
                )


def check_tls(certificate: Path | None, key: Path | None) -> None:
    """Raise unless TLS can be served with these, before anything is started."""
    if (certificate is None) != (key is None):
        raise ConfigError("--tls-cert and --tls-key go together; give both")
    if certificate is not None and key is not None:
        try:
            server_context(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate {certificate} with the key {key} cannot be used: {error}"
            ) from error


def _kept_key(folder: Path) -> str:
    """The namespace's own key: made at its first start, readable by its owner alone."""
    path = folder / "key"
    if not path.exists():
        write_private(path, new_key())
    return path.read_text().strip()


async def run(config: BrokerConfig, ready: Callable[[Broker], None]) -> None:
    """Serve until SIGINT or SIGTERM."""
    broker = Broker(config)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await broker.start()
    # A message makes a dozen objects and no cycles: looking for cycles at every 700th object, and
    # through everything that was imported, would take a tenth of the broker's time.
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)
    # The commit's thread asks for the interpreter only to say that it is done; every sender waits
    # for that, so it must not wait the default 5 ms behind a busy loop.
    sys.setswitchinterval(0.0005)
    ready(broker)
    await stopped.wait()
    await broker.stop()
