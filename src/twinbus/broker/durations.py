"""Times and time spans as ISO 8601 text, the way Service Bus writes them.

Our own, because a library would leave the most of it: .NET's idea of a year, a month and for ever,
a sentence for what is refused, and a limit on digits.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from twinbus.broker.descriptions import FOREVER
from twinbus.broker.refusals import DescriptionError

_EPOCH = datetime(1970, 1, 1)  # in UTC; without a zone it prints none
# The longest time span of .NET, which is what Service Bus calls for ever.
_FOREVER = "P10675199DT2H48M5.4775807S"
_FOREVER_DAYS = 10_675_199
_PERIOD = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<weeks>\d{1,9})W)?"
    r"(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,12})H)?(?:(?P<minutes>\d{1,12})M)?"
    r"(?:(?P<seconds>\d{1,12})(?:\.(?P<fraction>\d{1,12}))?S)?)?",
    re.ASCII,
)


def moment(at_ms: int) -> str:
    """A time as ISO 8601 in UTC, to the millisecond."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds") + "Z"


def duration(value: timedelta) -> str:
    """A time span as ISO 8601."""
    sign, value = ("-", -value) if value < timedelta(0) else ("", value)
    hours, rest = divmod(value.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{value.microseconds:06d}".rstrip("0") if value.microseconds else ""
    time = (
        (f"{hours}H" if hours else "")
        + (f"{minutes}M" if minutes else "")
        + (f"{seconds}{fraction}S" if seconds or fraction else "")
    )
    if not value.days and not time:
        return "PT0S"
    return f"{sign}P{f'{value.days}D' if value.days else ''}{f'T{time}' if time else ''}"


def parse_duration(text: str, what: str) -> timedelta:
    """The time span in ISO 8601 text; a year is 365 days and a month 30, as .NET has it."""
    found = _PERIOD.fullmatch(text.strip())
    if found is None or found["time"] == "T" or text.strip().endswith("P"):
        raise DescriptionError(f"{what} must be an ISO 8601 duration; it is '{text[:40]}'")
    parts = {
        name: int(found[name] or 0)
        for name in ("years", "months", "weeks", "days", "hours", "minutes", "seconds")
    }
    days = parts["years"] * 365 + parts["months"] * 30 + parts["weeks"] * 7 + parts["days"]
    try:
        value = timedelta(
            days=days,
            hours=parts["hours"],
            minutes=parts["minutes"],
            seconds=parts["seconds"],
            microseconds=int((found["fraction"] or "").ljust(6, "0")[:6]),
        )
    except OverflowError as error:
        raise DescriptionError(f"{what} is too long: '{text[:40]}'") from error
    return -value if found["sign"] else value


def span(value: timedelta) -> str:
    return _FOREVER if value.days >= _FOREVER_DAYS else duration(value)


def parse_span(text: str, what: str) -> timedelta:
    # The Python SDK rounds the longest span on its way back, so anything of its days is for ever.
    value = parse_duration(text, what)
    return FOREVER if value.days >= _FOREVER_DAYS else value
