"""Make what the service needs on the primary: a queue, a topic, two subscriptions with filters."""

import os

from azure.core.exceptions import ResourceExistsError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleFilter
from pair import trusted

KINDS = {"hot": "kind = 'hot'", "cold": "kind = 'cold'"}


def main() -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        os.environ["TWINBUS_PRIMARY"], **trusted()
    ) as admin:
        try:
            # An order that was sent twice, because an answer was lost, is made once.
            admin.create_queue("orders", requires_duplicate_detection=True)
            admin.create_topic("drinks")
            for name, condition in KINDS.items():
                admin.create_subscription("drinks", name)
                admin.delete_rule("drinks", name, "$Default")
                admin.create_rule("drinks", name, "kind", filter=SqlRuleFilter(condition))
        except ResourceExistsError:
            print("it was there already")
    print("the shop is set up")


if __name__ == "__main__":
    main()
