"""Which methods of ctx the sources use, without an import."""

import pytest

from declctl.hooks.usage import methods_used

METHODS = {"apply", "apply_set", "record_event", "client"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("async def f(ctx): await ctx.apply_set([])", {"apply_set"}),
        ("def f(ctx): ctx.sync.apply({})", {"apply"}),
        ("def f(c): g(c.record_event)", {"record_event"}),
        ('def f(c): getattr(c, "record_event")()', {"record_event"}),
        ("def f(ctx): return CoreV1Api(ctx.client)", {"client"}),
        # Names that others have, too, and texts that nobody calls.
        ("frame.apply(print)\nself.client.get()", set()),
        ('"""ctx.apply_set"""  # ctx.record_event', set()),
        ("this is not Python: ctx.apply", set()),
    ],
)
def test_a_method_is_found_where_code_uses_it(source: str, found: set[str]) -> None:
    """Not in comments, nor in texts."""
    assert methods_used({"handlers.py": source.encode()}, METHODS) == found
