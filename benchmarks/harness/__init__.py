"""The driver of the benchmarks: builds the peers, runs each in its own process, and measures the processes.

`python -m harness` measures; `python -m harness.report` writes the results into docs/. PROTOCOL.md is the
protocol of server, peers and driver.
"""
