"""What another account of the machine can try against a federation; test_attacks_federation runs it.

Reads a JSON object from standard input and becomes that account. Prints which calls were answered, which files of the
federation lie open, and which of the secrets that it is told to look for it found.
"""

import contextlib
import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StopRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest, PullAppMessagesRequest
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

VERSION = dict(RuntimeVersionMetadata.from_local_component("flwr-serverapp").as_metadata())


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def harvest() -> bytes:
    """Return what processes show of commands and environments, and every small file that their commands name."""
    found = b""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            command = read(entry / "cmdline")
            found += command + read(entry / "environ")
            for word in command.split(b"\0"):
                path = Path(os.fsdecode(word))
                if word.startswith(b"/") and os.access(path, os.R_OK) and path.is_file():
                    found += read(path) if path.stat().st_size < 100_000 else b""
    return found


def post(client: httpx.Client, url: str, message: Any, headers: dict[str, str]) -> bool:
    content = message.SerializeToString(deterministic=True)
    kind = {"content-type": "application/protobuf"}
    return client.post(url, content=content, headers=VERSION | kind | headers).status_code == 200


def attack(place: dict[str, Any], calls: dict[str, Any]) -> list[str]:
    """Return the paths that answer."""
    headers = {"flwr-task-token": place["token"]} | place["credential"]
    trust = ssl.create_default_context(cadata=place["authority"]) if place["authority"] else False
    with httpx.Client(verify=trust, timeout=20, trust_env=False) as client:
        answered = [path for path, message in calls.items() if post(client, place["base"] + path, message, headers)]
        pages = ("/docs", "/openapi.json", "/health")
        return answered + [
            page for page in pages if client.get(place["base"] + page, headers=headers).status_code == 200
        ]


def main() -> None:
    told = json.load(sys.stdin)
    with contextlib.suppress(httpx.HTTPError):  # what a first call imports is imported while it can be read
        httpx.get("https://127.0.0.1:1", trust_env=False)
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    seen = harvest()
    runtime = {"/v1/runtime/acquire-task": AcquireTaskRequest()}
    server = {
        **runtime,
        "/v1/runtime/get-nodes": GetNodesRequest(),
        "/v1/runtime/pull-messages": PullAppMessagesRequest(),
        "/v1/control/list-nodes": ListNodesRequest(),
        "/v1/control/list-runs": ListRunsRequest(),
        "/v1/control/register-node": RegisterNodeRequest(public_key=bytes.fromhex(told["key"])),
        "/v1/control/stop-run": StopRunRequest(run_id=told["run"]),
    }
    readable = []
    for folder in map(Path, told["folders"]):
        inside = folder.rglob("*") if os.access(folder, os.R_OK | os.X_OK) else ()
        readable += [str(path) for path in (folder, *inside) if os.access(path, os.R_OK)]
    found = {
        "server": attack(told["server"], server),
        "site": attack(told["site"], runtime),
        "readable": readable,
        "secrets": [secret for secret in told["secrets"] if secret.encode() in seen],
        "account": os.getuid(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
