"""Resource versions: which of them can be compared, and how (Kubernetes 1.35, KEP-5504)."""

import itertools

import pytest

from declctl.objects import NO_ORDER, newer_version, version_order


def test_versions_are_ordered_as_numbers_of_any_length():
    """Not as texts; Python refuses to make a number of more than 4,300 digits."""
    versions = ["1", "9", "10", "99", "100", "18446744073709551616", "9" * 5000, "1" + "0" * 5000]
    assert max(versions[::-1], key=version_order) == versions[-1]
    assert all(version_order(a) < version_order(b) for a, b in itertools.pairwise(versions))
    assert all(version_order(version) > NO_ORDER for version in versions)


@pytest.mark.parametrize("version", ["", "0", "01", "-1", "+1", " 1", "1.0", "1e3", "a", "٣", "1²"])
def test_what_is_no_number_is_opaque(version):
    """As in apimachinery's CompareResourceVersion; it is equal to nothing but what is opaque, too."""
    assert version_order(version) == NO_ORDER


@pytest.mark.parametrize(
    ("version", "other", "newer"),
    [("9", "10", "10"), ("10", "9", "10"), ("", "5", "5"), ("5", "", "5"), ("5", "b", "b"), ("a", "5", "5")],
)
def test_the_newer_of_two_versions(version, other, newer):
    """The later one where they can't be compared."""
    assert newer_version(version, other) == newer
