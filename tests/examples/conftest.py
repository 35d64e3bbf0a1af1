"""The examples are scripts, not packages: put their folders on the path as running them does."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
for folder in (EXAMPLES, EXAMPLES / "toy"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
