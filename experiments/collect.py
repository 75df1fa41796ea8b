"""The summaries of a comparison as one small file: python experiments/collect.py COMPARE_FOLDER OUT.json"""

import json
import sys
from pathlib import Path

from script import write

from fedmlh.runs.jobs import describe_machine


def main() -> None:
    """Gather summary.json of every run in the folder, with the machine that made them."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))]
    for run in runs:
        run.pop("clients", None)
    write(target, {"machine": describe_machine("auto"), "runs": runs})


if __name__ == "__main__":
    main()
