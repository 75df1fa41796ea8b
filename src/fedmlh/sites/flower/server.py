"""The ServerApp: the rounds of a run over real sites, from the last checkpoint to the model."""

import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()

#: Names the federation's folder to the process that Flower starts.
FOLDER = "FEDMLH_FEDERATION"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train the federation whose SuperLink started this process; record in its folder how the run ended."""
    from fedmlh.errors import UserError
    from fedmlh.sites.federation import Federation
    from fedmlh.sites.flower.training import train_federation

    federation = Federation(Path(os.environ[FOLDER]))
    try:
        with federation.lock():
            train_federation(federation, grid)
    except UserError as problem:
        federation.write_outcome(str(problem))
    else:
        federation.write_outcome(None)
