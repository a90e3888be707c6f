# Generated from ../aio/factory.py by tools/unasync.py; change that file, not this one.
"""The messaging factory: a ``ServiceBusClient`` that can be paired with another.

Closing and faulting. In an application that hosts the syphon the two factories of a pair live and
die together: when one is closed or faults and the other is still open five seconds later, the other
is faulted. Without the syphon each is its owner's alone. A factory that has ended says so, and why,
on every call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from os import PathLike
from typing import Any, Self
from weakref import WeakMethod

from azure.servicebus import ServiceBusClient

from twinbus.client_errors import FactoryFaultedError, PairingError
from twinbus.failover.states import State
from twinbus.ledger import Ledger, LedgerError
from twinbus.paired.blocking.clients_blocking import QueueClient, SubscriptionClient, TopicClient
from twinbus.paired.blocking.gatherer_blocking import Gatherer
from twinbus.paired.blocking.keeper_blocking import Keeper
from twinbus.paired.blocking.link_blocking import adopt, side_of
from twinbus.paired.blocking.pairing_blocking import Pairing
from twinbus.paired.blocking.receiver_blocking import MessageReceiver, adopt_receiver
from twinbus.paired.blocking.sender_blocking import MessageSender
from twinbus.paired.blocking.setup_blocking import Trial, check_manager, prepare_backlog
from twinbus.paired.blocking.world_blocking import Signal, World, aside
from twinbus.paired.bookkeeper import books_of
from twinbus.paired.entity_path import parse_path
from twinbus.paired.events import Closed, Faulted, PairingEvent
from twinbus.paired.options import (
    PairedNamespaceOptions,
    SendAvailabilityPairedNamespaceOptions,
    use_of,
)
from twinbus.paired.syphon_process import SyphonProcess, check_syphon
from twinbus.paired.telemetry import Announcer, Listener

PARTNER_S = 5.0
# How often a partner that is still being closed is looked at.
LOOK_S = 0.2
# Closing waits this long for a pairing under way to be taken back, and for jobs in the background.
SETTLE_S = 3.0
# Two factories are engaged, paired and ended under this; held for moments, never while waiting.
_DECIDING = threading.Lock()


class MessagingFactory(ServiceBusClient):
    """Makes senders and receivers of one namespace. ``pair_namespace`` gives it a secondary.

    Takes what ``ServiceBusClient`` takes, and ``batch_flush_interval``: gather single sends that
    come within this time into one AMQP batch (off by default). ``ledger`` is a folder or URL, or a
    ``twinbus.ledger.Ledger``, into which everything that is done is recorded (off by default).
    """

    def __init__(
        self,
        fully_qualified_namespace: str,
        credential: Any,
        *,
        batch_flush_interval: timedelta | None = None,
        ledger: str | PathLike[str] | Ledger | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("uamqp_transport"):
            raise PairingError("uamqp_transport: only the SDK's own transport is known here")
        super().__init__(fully_qualified_namespace, credential, **kwargs)
        _check_flush(batch_flush_interval)
        self.pairing: Pairing | None = None
        self.batch_flush_interval = batch_flush_interval
        # Who opened it closes it: a ledger that was handed in may be shared.
        self._owns_ledger = ledger is not None and not isinstance(ledger, Ledger)
        self.ledger = _ledger(ledger)
        self.books = books_of(self.ledger, self.fully_qualified_namespace)
        self._announcer = Announcer()
        self._world = World()
        self._flushes = World()  # these have messages in their hands
        self._partner: MessagingFactory | None = None
        self._settled: Signal | None = None  # set when the pairing is there, or is taken back
        self._hosts_syphon = False
        self._ended = self._world.signal()
        self._shut_down = self._world.signal()
        self._end: str | None = None  # why every later call fails
        self._keeper: Keeper | None = None
        # Kept for the syphon alone, which is another process and needs it there.
        self._connection_string: str | None = None

    @classmethod
    def from_connection_string(cls, conn_str: str, **kwargs: Any) -> Self:
        """A factory of the namespace that the connection string names."""
        made = super().from_connection_string(conn_str, **kwargs)
        assert isinstance(made, cls)
        made._connection_string = conn_str
        return made

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    # -- pairing

    def pair_namespace(self, options: PairedNamespaceOptions) -> None:
        """Set the pair up. When this returns, all of it is ready and every sender of this factory
        is paired; else it raises, and both factories are as they were."""
        secondary = self._engage(options)
        assert isinstance(options, SendAvailabilityPairedNamespaceOptions)
        try:
            self._set_up(options, secondary)
        except BaseException:
            try:
                self._world.stop(SETTLE_S)
            finally:
                self._partner = secondary._partner = None
            raise
        finally:
            assert self._settled is not None
            self._settled.set()

    def _engage(self, options: PairedNamespaceOptions) -> MessagingFactory:
        """From here on nobody else can pair these two."""
        if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
            raise PairingError(
                f"{type(options).__name__} is no kind of pairing there is; give "
                "SendAvailabilityPairedNamespaceOptions"
            )
        secondary = options.messaging_factory
        if not isinstance(secondary, MessagingFactory):
            raise PairingError(
                "the secondary's messaging_factory must be a MessagingFactory of the same world as "
                f"the primary's, not a {type(secondary).__module__}.{type(secondary).__name__}"
            )
        same = secondary.fully_qualified_namespace.lower() == self.fully_qualified_namespace.lower()
        if secondary is self or same:
            raise PairingError(
                f"{self.fully_qualified_namespace} cannot be paired with itself; the secondary "
                "must be another namespace, best in another region"
            )
        with _DECIDING:
            self._check_free(secondary)
            self._partner, secondary._partner = secondary, self
            self._settled = secondary._settled = self._world.signal()
        return secondary

    def _check_free(self, secondary: MessagingFactory) -> None:
        self.check_open()
        secondary.check_open()
        if self._partner is not None:
            raise PairingError(
                f"the factory of {self.fully_qualified_namespace} is paired already, or just being "
                "paired; make a new factory for another pairing"
            )
        if secondary._partner is not None:
            raise PairingError(
                f"the factory of {secondary.fully_qualified_namespace} is another's secondary "
                "already; make a factory of its own for each pairing"
            )

    def _set_up(
        self, options: SendAvailabilityPairedNamespaceOptions, secondary: MessagingFactory
    ) -> None:
        def still() -> None:
            self.check_open()
            secondary.check_open()

        use_of(options).found_queues = 0
        hosts_syphon = options.enable_syphon
        check_manager(options.secondary_namespace_manager, self, secondary)
        if hosts_syphon:
            check_syphon(self, secondary)
        trial = Trial(secondary, self._world, still, receive=hosts_syphon)
        queues = prepare_backlog(
            options,
            self.fully_qualified_namespace,
            lambda path: self._managed(secondary, path),
            trial,
        )
        home, away = (side_of(each, self._world, options.classifier) for each in (self, secondary))
        pairing = Pairing(home, away, options, queues, self._announcer, self._world, self.books)
        keeper = self._keeper_of(secondary, queues) if hosts_syphon else None
        try:
            if keeper is not None:
                keeper.start(still)
            with _DECIDING:
                still()
                self.pairing, self._keeper = pairing, keeper
                self._hosts_syphon = secondary._hosts_syphon = hosts_syphon
                use_of(options).mark_healthy = WeakMethod(pairing.mark_path_healthy)
        except BaseException:
            if keeper is not None:
                keeper.stop()
            raise
        if keeper is not None:
            keeper.keep()

    def _keeper_of(self, secondary: MessagingFactory, queues: list[str]) -> Keeper:
        assert self._connection_string is not None
        assert secondary._connection_string is not None
        ledger = None if self.ledger is None else self.ledger.where
        process = SyphonProcess(
            self._connection_string, secondary._connection_string, queues, ledger
        )
        return Keeper(process, self.fully_qualified_namespace, self._announcer, self._world)

    def _managed(self, secondary: MessagingFactory, path: str) -> None:
        self.books.managed(secondary.fully_qualified_namespace, path)

    def entity_states(self) -> dict[str, State]:
        """Every queue and topic that was sent to through this pairing, and how it is."""
        return self.pairing.states() if self.pairing is not None else {}

    def add_listener(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every event; returns a function that ends this."""
        return self._announcer.add(listener)

    # -- senders and receivers

    def get_queue_sender(self, queue_name: str, **kwargs: Any) -> MessageSender:
        """A sender to a queue, paired as soon as the factory is."""
        return self._sender(super().get_queue_sender, queue_name, kwargs)

    def get_topic_sender(self, topic_name: str, **kwargs: Any) -> MessageSender:
        """A sender to a topic, paired as soon as the factory is."""
        return self._sender(super().get_topic_sender, topic_name, kwargs)

    def _sender(self, make: Callable[..., Any], path: str, kwargs: dict[str, Any]) -> MessageSender:
        self.check_open()
        flush = kwargs.pop("batch_flush_interval", self.batch_flush_interval)
        _check_flush(flush)
        sender = adopt(make(path, **kwargs), MessageSender, self._world)
        sender._factory = self
        sender._route = None
        sender._gatherer = None
        if flush:
            every_s = flush.total_seconds()
            sender._gatherer = Gatherer(
                *(sender.deliver, every_s, 262_144, self._flushes),
                lambda error: sender._judge.of(error),
            )
        return sender

    def get_queue_receiver(self, queue_name: str, **kwargs: Any) -> MessageReceiver:
        """A receiver of a queue of this namespace; it never looks at the secondary."""
        self.check_open()
        return adopt_receiver(super().get_queue_receiver(queue_name, **kwargs), self)

    def get_subscription_receiver(
        self, topic_name: str, subscription_name: str, **kwargs: Any
    ) -> MessageReceiver:
        """A receiver of a topic's subscription."""
        self.check_open()
        made = super().get_subscription_receiver(topic_name, subscription_name, **kwargs)
        return adopt_receiver(made, self)

    # -- the documents' own names

    def create_queue_client(self, path: str, **kwargs: Any) -> QueueClient:
        """A queue as one object that sends and receives."""
        self.check_open()
        return QueueClient(self, path, **kwargs)

    def create_topic_client(self, path: str, **kwargs: Any) -> TopicClient:
        """A topic as an object that sends."""
        self.check_open()
        return TopicClient(self, path, **kwargs)

    def create_subscription_client(
        self, topic_path: str, name: str, **kwargs: Any
    ) -> SubscriptionClient:
        """A subscription as an object that receives."""
        self.check_open()
        return SubscriptionClient(self, topic_path, name, **kwargs)

    def create_message_sender(self, path: str, **kwargs: Any) -> MessageSender:
        """To a queue or a topic; on the wire there is no difference."""
        return self.get_queue_sender(path, **kwargs)

    def create_message_receiver(self, path: str, **kwargs: Any) -> MessageReceiver:
        """From a queue, a ``topic/Subscriptions/name``, or the ``/$DeadLetterQueue`` of either."""
        place = parse_path(path)
        if place.sub_queue is not None:
            kwargs["sub_queue"] = place.sub_queue
        if place.subscription is None:
            return self.get_queue_receiver(place.entity, **kwargs)
        return self.get_subscription_receiver(place.entity, place.subscription, **kwargs)

    # -- the end

    @property
    def is_closed(self) -> bool:
        """Whether it was closed or has faulted."""
        return self._end is not None

    @property
    def is_healthy(self) -> bool:
        """Whether it is open and, if it hosts the syphon, the syphon runs. Entities that are out
        are no matter of this: ``entity_states`` has them."""
        return self._end is None and (self._keeper is None or self._keeper.is_running)

    def check_open(self) -> None:
        """Raise if nothing can be done with this factory any longer."""
        if self._end is not None:
            raise FactoryFaultedError(self._end)

    def close(self) -> None:
        """Close every sender and receiver. If the application hosts the syphon, the partner should
        be closed too, within 5 seconds."""
        host = self.fully_qualified_namespace
        self._finish(
            f"the factory of {host} was closed; make a new one",
            Closed(at=self._world.date(), namespace=host),
        )

    def fault(self, reason: str) -> None:
        """Close, because of ``reason``: every later call repeats it."""
        if self._end is None:
            host = self.fully_qualified_namespace
            self._finish(
                f"the factory of {host} has faulted: {reason}; make a new one",
                Faulted(at=self._world.date(), namespace=host, error=reason),
            )

    def _finish(self, why: str, event: PairingEvent) -> None:
        with _DECIDING:
            first, self._end = self._end is None, self._end or why
        try:
            if first:
                self._ended.set()
                self._announcer.announce(event)
                if self._hosts_syphon:
                    self._warn_partner()
            self._shut()
        finally:
            self._shut_down.set()

    def _shut(self) -> None:
        if self._settled is not None:
            self._settled.wait(SETTLE_S)
        if self._keeper is not None:
            self._close("the syphon", self._keeper.stop)
        if self.pairing is not None:
            self.pairing.stop()
            self._world.stop(SETTLE_S)
            self._flushes.stop()
            self.pairing.diverter.close()
        self._close("the links", super().close)
        self._flushes.stop()
        self._world.stop(SETTLE_S)
        if self.ledger is not None and self._owns_ledger:
            self._close("the ledger", aside, self.ledger.close)

    def _close(self, what: str, act: Callable[..., None], *args: Any) -> None:
        """What fails keeps nothing else from being closed."""
        host = self.fully_qualified_namespace
        self._world.attempt(f"closing {what}", host, act, *args)

    def _warn_partner(self) -> None:
        partner = self._partner
        if partner is not None and partner._end is None:
            partner._world.start("partner watch", partner._follow, self)

    def _follow(self, gone: MessagingFactory) -> None:
        """The partner has ended: end too, if nobody does it for us."""
        if self._ended.wait(PARTNER_S):
            return
        if not gone._shut_down.is_set():
            # Whoever closes the other cannot turn to this one before that is done.
            while not gone._shut_down.is_set():
                if self._ended.wait(LOOK_S):
                    return
            if self._ended.wait(PARTNER_S):
                return
        self.fault(
            f"its partner {gone.fully_qualified_namespace} ended {PARTNER_S:.0f} seconds ago "
            f"and it was still open ({gone._end})"
        )


def _ledger(where: str | PathLike[str] | Ledger | None) -> Ledger | None:
    if where is None or isinstance(where, Ledger):
        return where
    try:
        return Ledger(where)
    except LedgerError as error:
        raise PairingError(f"ledger: {error}") from error


def _check_flush(interval: timedelta | None) -> None:
    if interval is not None and not timedelta(0) <= interval <= timedelta(seconds=10):
        raise PairingError(f"batch_flush_interval is {interval}; give 0 to 10 seconds, or None")
