"""Formats of JSON Schema as patterns that strict parsers agree with: Python, RFC 3339, ISO 8601, PostgreSQL, Java.

llguidance's own patterns allow a second 60, 30 February of no year, a year 0 and offsets that no place has.
"""

_COMMON_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_COMMON_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]|\+14:00)"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?{_OFFSET}"
_COUNT = r"[0-9]{1,6}"
_CLOCK = rf"(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DAYS = rf"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P(?:{_DAYS}(?:T{_CLOCK})?|T{_CLOCK}|{_COUNT}W)$",
}
"""Pattern of each format that is not left to llguidance."""
