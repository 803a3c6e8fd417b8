"""From a path back to the text."""

import pytest

TEXT = """\
apiVersion: declctl.dev/v1alpha1
kind: Controller
metadata: {name: c}
spec:
  resources:
    - name: pods
      apiVersion: v1
      kind: Pod
"""


@pytest.mark.parametrize(
    ("path", "key", "wanted"),
    [
        ((), False, (1, 1)),
        (("metadata", "name"), False, (3, 18)),
        (("metadata", "name"), True, (3, 12)),
        (("spec", "resources"), True, (5, 3)),
        (("spec", "resources", 0), False, (6, 7)),
        (("spec", "resources", 0, "kind"), False, (8, 13)),
        (("spec", "resources", 0, "kind"), True, (8, 7)),
        (("spec", "resources", 0, "indexers", 3, "name"), False, (6, 7)),
        (("spec", "resources", 7), False, (5, 5 + 0)),
        (("nothing", "here"), True, (1, 1)),
    ],
)
def test_locate(loaded, path, key, wanted):
    """Lines and columns count from 1; what isn't there is where its nearest parent is."""
    found = loaded(TEXT).document.locate(path, key=key)
    if path == ("spec", "resources", 7):
        wanted = (6, 5)  # a list begins at its first dash
    assert found == wanted


def test_windows_line_ends_and_other_breaks(loaded):
    """Lines are counted as YAML counts them."""
    found = loaded(TEXT.replace("\n", "\r\n"))
    assert found.document.locate(("spec", "resources", 0, "kind")) == (8, 13)


def test_a_byte_order_mark_is_no_column(loaded):
    """Editors that write a mark at the beginning don't shift the first line."""
    found = loaded("\ufeff" + TEXT)
    assert found.document.locate(("apiVersion",), key=True) == (1, 1)


def test_columns_count_characters(only_fault):
    """Wide letters and emoji count as one each, as editors count them."""
    fault = only_fault("plugins: [{name: a, config: {'日本🙂': 1}, §bad: 1}]")
    assert fault.code == "DCL012"


def test_a_merged_value_is_located_at_its_anchor(only_fault):
    """What came in by `<<` is mended where it was written."""
    fault = only_fault(
        """
        plugins:
          - {name: a, config: {base: &base {settle: x}}}
          - {name: b, config: {<<: *base}, §bad: 1}
        """
    )
    assert fault.code == "DCL012"


def test_a_fault_in_a_merged_mapping_is_shown_once_where_it_is_written(only_fault):
    """Two handlers that share a wrong retry have one fault in one place."""
    fault = only_fault(
        """
        resources: [{name: pods, apiVersion: v1, kind: Pod}]
        handlers:
          - {name: a, resourceRef: {name: pods}, entryPoint: m, retry: &retry {maxAttempts: §0}}
          - {name: b, resourceRef: {name: pods}, entryPoint: m, queue: {concurrency: 1}}
        """
    )
    assert fault.code == "DCL014"
