"""The plugin does what declctl promises of every plugin."""

from declctl.testing.conformance import conformance

test_conformance = conformance("changelog")
