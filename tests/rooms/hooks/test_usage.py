"""Which methods of ctx the code of an entry point uses, without an import."""

import pytest

from declctl.hooks.bundle import Bundle
from declctl.hooks.usage import methods_used

METHODS = {"apply", "apply_set", "record_event", "client"}


def used(source: str, entry_point: str = "handlers", *, hooks: tuple[str, ...] = (), **others: str):
    """Of an entry point of handlers.py, beside other files."""
    texts = {"handlers": source, **others}
    files = {f"{name.replace('__', '/')}.py": text.encode() for name, text in texts.items()}
    return methods_used(Bundle("", files), entry_point, METHODS, hooks=hooks)


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
    assert used(source) == found


TWO = """
import helpers

def quiet(obj): print(obj)
def loud(obj, ctx): tell(obj, ctx)
def tell(obj, ctx): ctx.record_event(obj, "R", "m")
class Sets:
    def declctl_event(self, ctx): self.children(ctx)
    def children(self, ctx): ctx.apply_set([])
try:
    made = partial(loud)
except NameError:
    made = Sets()
def far(ctx): helpers.write(ctx)
def declctl_finalize(ctx): ctx.client
"""


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("handlers:quiet", set()),
        ("handlers:loud", {"record_event"}),
        ("handlers:Sets", {"apply_set"}),
        ("handlers:made", {"record_event", "apply_set"}),
        ("handlers:far", {"apply"}),
        ("handlers", METHODS),
    ],
)
def test_other_functions_of_the_module_do_not_count(entry: str, found: set[str]) -> None:
    """Two handlers of one file have rights of their own."""
    assert used(TWO, entry, helpers="def write(ctx): ctx.apply({})") == found


def test_a_hook_of_the_module_counts_if_it_is_called() -> None:
    """Such as that of a finalizer."""
    assert used(TWO, "handlers:quiet", hooks=("declctl_finalize",)) == {"client"}


def test_an_import_within_a_function_counts() -> None:
    """As those of the module."""
    source = "def f(ctx):\n    from helpers import write\n    write(ctx)\n"
    assert used(source, "handlers:f", helpers="def write(ctx): ctx.apply({})") == {"apply"}


def test_code_that_is_not_in_the_bundle_is_not_known() -> None:
    """It is installed, as a plugin is."""
    assert used("", "installed.package:f") is None
