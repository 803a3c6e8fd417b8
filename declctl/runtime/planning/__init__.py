"""The comparison of a manifest with a running process, and its costs: `declctl plan`."""
