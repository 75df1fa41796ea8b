"""The product's own bytes as a Flower message, both ways; a refusal travels as its code and nothing else."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from fedmlh.federated.messages import Reason, Rejected

_RECORD, _BYTES, _CODE = "fedmlh", "message", "refused"

#: Error codes beyond Flower's own, for replies that the server refused.
REFUSALS = {Reason.TOO_LARGE: 9001, Reason.MALFORMED: 9002, Reason.LATE: 9003}

#: Reason and detail for a reply that did not come.
_ERRORS = {
    REFUSALS[Reason.TOO_LARGE]: (Reason.TOO_LARGE, "the reply is larger than any update can be"),
    REFUSALS[Reason.MALFORMED]: (Reason.MALFORMED, "not a message of fedmlh"),
    REFUSALS[Reason.LATE]: (Reason.LATE, "the reply did not come whole"),
    ErrorCode.NODE_UNAVAILABLE: (Reason.ABSENT, "the site lost its connection"),
    ErrorCode.CLIENT_APP_CRASHED: (Reason.FAILED, "the site's process ended before it answered"),
    ErrorCode.MESSAGE_UNAVAILABLE: (Reason.LATE, "the message expired before it was answered"),
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: (Reason.LATE, "the reply expired"),
}


def wrap(message: bytes) -> RecordDict:
    """Return content with an encoded message; as an array, since Flower sends arrays in pieces."""
    return RecordDict({_RECORD: ArrayRecord({_BYTES: Array("bytes", (len(message),), "fedmlh", message)})})


def wrap_refusal(reason: Reason) -> RecordDict:
    """Return content that says why there is no message: a word of a fixed list, so that no data can leak."""
    return RecordDict({_RECORD: ConfigRecord({_CODE: reason.value})})


def unwrap(message: Message) -> bytes | Rejected:
    """Return the encoded message, or why there is none; anything else is malformed."""
    if message.has_error():
        code = message.error.code
        return Rejected(*_ERRORS.get(code, (Reason.FAILED, f"the site's process failed (Flower's code {code})")))
    record = message.content.get(_RECORD)
    if isinstance(record, ConfigRecord):
        code = record.get(_CODE)
        known = isinstance(code, str) and code in set(Reason)
        return Rejected(Reason(code) if known else Reason.FAILED, "refused by the site; its own log says more")
    if isinstance(record, ArrayRecord) and _BYTES in record:
        return bytes(record[_BYTES].data)
    return Rejected(Reason.MALFORMED, "not a message of fedmlh")
