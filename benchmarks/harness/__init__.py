"""The driver of the benchmarks: builds peers, runs each in a process of its own, reads figures from outside.

`python -m harness` measures, `python -m harness.report` writes the results into docs/. PROTOCOL.md says what
server, peers and driver promise each other.
"""
