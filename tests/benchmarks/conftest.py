"""The driver of the benchmarks is imported as `python -m harness` does it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
