"""The experiments import their siblings: put their folder on the path as running one does."""

import sys
from pathlib import Path

EFFECTS = Path(__file__).parents[3] / "examples" / "effects"
if str(EFFECTS) not in sys.path:
    sys.path.insert(0, str(EFFECTS))
