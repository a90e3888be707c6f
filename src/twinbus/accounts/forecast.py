"""What a pair will cost, from the documents' arithmetic alone. Nothing is measured here.

The documents: the syphon's receive lasts 15 minutes, so an idle backlog queue is 4 receives an
hour, for each syphon that waits at it; an entity that is out is pinged once a minute by each
factory of each client; a message that was diverted is charged for two sends and two receives.
Settling a message after a receive is an operation too, which the documents leave out; it is given
apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from twinbus.accounts.prices import Tier

POLL_MINUTES: Final = 15
PINGS_AN_HOUR: Final = 60
CHARGES_A_MESSAGE: Final = 4
SETTLEMENTS_A_MESSAGE: Final = 2
MONTH_DAYS: Final = 30


@dataclass(frozen=True, slots=True)
class ForecastPlan:
    """A month with one outage."""

    queues: int
    entities: int
    messages_per_day: int
    outage_hours: float
    factories: int = 1
    clients: int = 1
    syphons: int = 1  # that always run; 0: one is started when there is something to move


def idle_receives(plan: ForecastPlan, hours: int) -> int:
    """Each syphon waits at each backlog queue."""
    return plan.syphons * plan.queues * hours * 60 // POLL_MINUTES


def pings(plan: ForecastPlan) -> int:
    """Every entity is out for the whole outage: the worst case."""
    each = plan.entities * plan.factories * plan.clients
    return round(each * PINGS_AN_HOUR * plan.outage_hours)


def diverted_messages(plan: ForecastPlan) -> int:
    return round(plan.messages_per_day * plan.outage_hours / 24)


def forecast(plan: ForecastPlan, tier: Tier) -> dict[str, Any]:
    """The counts, and what a month of them costs on top of the traffic there is anyway."""
    diverted = diverted_messages(plan)
    idle = idle_receives(plan, 24 * MONTH_DAYS)
    # A send and a receive of each are paid for without a pair, so half of the four are extra.
    normal = plan.messages_per_day * MONTH_DAYS * 2
    extra = idle + pings(plan) + diverted * (CHARGES_A_MESSAGE - 2)
    settling = diverted * SETTLEMENTS_A_MESSAGE
    return {
        "syphon_idle_receives": {
            "per_hour": idle_receives(plan, 1),
            "per_day": idle_receives(plan, 24),
            "per_30_days": idle,
        },
        "pings": {
            "per_hour": plan.entities * plan.factories * plan.clients * PINGS_AN_HOUR,
            "in_outage": pings(plan),
        },
        "diverted_messages": {
            "messages": diverted,
            "operations_each": CHARGES_A_MESSAGE,
            "operations": diverted * CHARGES_A_MESSAGE,
            "settlements": settling,
        },
        "month": {
            "normal_operations": normal,
            "extra_operations": extra,
            "base": _amount(tier.base),
            "normal_cost": _amount(tier.charge(normal)),
            "extra_cost": _amount(tier.between(normal, normal + extra)),
            "extra_cost_with_settlements": _amount(tier.between(normal, normal + extra + settling)),
            "currency": tier.currency,
            "tier": tier.name,
        },
    }


def _amount(money: Decimal) -> float:
    return float(round(money, 4))
