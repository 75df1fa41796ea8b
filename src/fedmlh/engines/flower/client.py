"""The ClientApp: started anew for each message, it answers from the site's folder.

What needs torch is imported once there is something to answer: a process that Flower starts only to look at the app
need not wait for it.
"""

import sys
import traceback
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmlh.engines.flower.envelope import unwrap, wrap, wrap_refusal
from fedmlh.federated.messages import Reason, Rejected

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer a broadcast with an update, or with the code of a refusal."""
    from fedmlh.deployment.site import Site

    try:
        broadcast = unwrap(message)
        if isinstance(broadcast, Rejected):
            raise broadcast
        content = wrap(Site(Path(str(context.node_config["site"]))).answer(broadcast))
    except Rejected as refusal:
        print(f"fedmlh: broadcast refused: {refusal}", file=sys.stderr)
        content = wrap_refusal(refusal.reason)
    except Exception:  # whatever it is, it is the site's own affair: the server learns only that it failed
        traceback.print_exc()
        content = wrap_refusal(Reason.FAILED)
    return Message(content, reply_to=message)
