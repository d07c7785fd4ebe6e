"""Numbers as text, rounded in the terminal as on the report page."""

import math
from decimal import ROUND_HALF_UP, Decimal, localcontext

DIGITS = 12
"""Digits kept before rounding, so that sums in different orders are rounded to the same text (assets/format.js)."""


def number_text(value: float, form: str) -> str:
    """Return a number in a format, rounded as a reader of its decimal digits would round it.

    Python rounds the binary number: a share of 0.0095 is stored as slightly less and becomes 0.9%, while the page's
    script shows 1.0%. Here, both round 0.0095 up.

    Args:
        value: The number.
        form: A format with one place, for example ``{:.1%}``.
    """
    if not math.isfinite(value):
        return form.format(value)
    with localcontext(rounding=ROUND_HALF_UP):
        return form.format(Decimal(f"{value:.{DIGITS}g}"))
