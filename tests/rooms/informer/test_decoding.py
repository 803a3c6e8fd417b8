"""What an informer has decoded, whichever projections did it."""

import gc
import weakref
from types import SimpleNamespace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from declctl.decoding import Projection
from declctl.informer.source import Decoding
from tests.rooms.informer.shapes import fresh_projection, pod


def _decode(projection: Projection, number: int = 1) -> None:
    for n in range(number):
        projection.record(msgspec.json.encode(pod(f"p{n}", uid="u", resourceVersion="1")))


def _odd(projection: Projection) -> None:
    projection.record(b'{"metadata":{"name":"odd"},"spec":7}')


def _boom(obj):
    raise KeyError("x")


def test_what_every_projection_decoded_is_counted():
    """Objects, those that were decoded whole, and what the transform did; the newest fault stays known."""
    source = SimpleNamespace(projection=fresh_projection())
    decoding = Decoding(source)
    _decode(source.projection, 3)
    decoding.exchange(source.projection.with_transform(_boom))
    _decode(source.projection, 2)
    decoding.exchange(source.projection.with_transform(lambda obj: None))
    _decode(source.projection)
    decoding.exchange(fresh_projection())
    _odd(source.projection)
    figures = decoding.statistics()
    assert (figures.objects, figures.decoded_whole, figures.dropped, figures.failed) == (7, 4, 1, 2)
    assert "KeyError on p1" in figures.last_fault


def test_a_projection_is_neither_kept_for_its_figures_nor_counted_twice():
    """It may hold the transform of a generation that has ended; somebody may go back to the one before."""
    source = SimpleNamespace(projection=fresh_projection())
    decoding = Decoding(source)
    _decode(source.projection, 3)
    former = weakref.ref(source.projection)
    decoding.exchange(fresh_projection())
    gc.collect()
    assert former() is None
    assert decoding.statistics().objects == 3
    first, second = source.projection, fresh_projection()
    for projection in (second, first, second):
        _decode(source.projection)
        decoding.exchange(projection)
    assert decoding.statistics().objects == 6


@given(st.lists(st.sampled_from(["decode", "odd", "exchange", "list", "read", "look"]), max_size=40))
def test_no_count_ever_goes_back(steps):
    """Whatever happens in whatever order; and what nobody can be reading any more is counted exactly."""
    source = SimpleNamespace(projection=fresh_projection())
    decoding = Decoding(source)
    lists, seen, decoded, whole = [], (0, 0), 0, 0
    for step in steps:
        match step:
            case "decode":
                _decode(source.projection)
                decoded += 1
            case "odd":
                _odd(source.projection)
                decoded, whole = decoded + 1, whole + 1
            case "exchange":
                decoding.exchange(fresh_projection())
            case "list":
                lists.append(source.projection.items())
            case "read" if lists:
                lists[0].read(b'{"metadata":{"name":"a"}}')
                decoded += 1
            case _:
                figures = decoding.statistics()
                now = (figures.objects, figures.decoded_whole)
                assert now == (decoded, whole)
                assert now >= seen
                seen = now
    assert decoding.statistics().objects == decoded
