"""The summaries of a comparison as one small file: python experiments/collect.py COMPARE_FOLDER OUT.json"""

import json
import platform
import sys
from pathlib import Path

import torch


def main() -> None:
    """Gather summary.json of every run in the folder, with what made them."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*/summary.json"))]
    for run in runs:
        run.pop("clients", None)
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    target.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
