"""The bench: keys wait here until somebody works on them, and failed ones wait longer.

What a key means, and who works on it, does not belong here.
"""

from declctl.work.backoff import (
    Backoff,
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    MaxOfRateLimiter,
    RateLimiter,
    default_rate_limiter,
)

__all__ = [
    "Backoff",
    "BucketRateLimiter",
    "ItemExponentialFailureRateLimiter",
    "MaxOfRateLimiter",
    "RateLimiter",
    "default_rate_limiter",
]
