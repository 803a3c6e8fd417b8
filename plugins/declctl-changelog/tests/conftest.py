"""The plugin's source, importable whether it is installed or not."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
