"""The ClientApp: a new process per message, which answers from the site's folder.

Torch is imported only when there is a message to answer: a process that Flower starts just to inspect the app need not
wait for it.
"""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmlh.federated.messages import Reason, Rejected
from fedmlh.sites.flower.envelope import unwrap, wrap, wrap_refusal

app = ClientApp()


@app.train()
def answer_broadcast(message: Message, context: Context) -> Message:
    """Answer a broadcast with an update, or with the code of a refusal."""

    def answer(folder: Path, broadcast: bytes) -> bytes:
        from fedmlh.sites.site import Site

        return Site(folder).answer(broadcast)

    return _respond(message, context, answer)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Answer a model with the sums over the site's held-out points, or with the code of a refusal."""

    def answer(folder: Path, question: bytes) -> bytes:
        from fedmlh.sites.flower.evaluation import answer_question
        from fedmlh.sites.site import Site

        return answer_question(Site(folder), question)

    return _respond(message, context, answer)


def _respond(message: Message, context: Context, answer: Callable[[Path, bytes], bytes]) -> Message:
    try:
        question = unwrap(message)
        if isinstance(question, Rejected):
            raise question
        content = wrap(answer(Path(str(context.node_config["site"])), question))
    except Rejected as refusal:
        print(f"fedmlh: {message.metadata.message_type} refused: {refusal}", file=sys.stderr)
        content = wrap_refusal(refusal.reason)
    except Exception:  # the details stay at the site: the server learns only that it failed
        traceback.print_exc()
        content = wrap_refusal(Reason.FAILED)
    return Message(content, reply_to=message)
