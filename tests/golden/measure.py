"""Print as JSON what golden runs give, from a process whose environment was pinned before anything was imported.

python -m golden.measure ENGINE CASE [CASE ...]     in the folder tests/, with the variables of cases.PINNED
"""

import json
import sys
import tempfile
from pathlib import Path

from golden.cases import CASES, ENGINES


def main() -> None:
    """Run the named cases on the named engine."""
    engine, names = sys.argv[1], sys.argv[2:]
    found = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = ENGINES[engine](CASES[name], Path(folder) / "run")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
