"""Calls from the server's own machine to its SuperLink: which sites may join, which run to start or stop."""

import contextlib
import ipaddress
import time
from collections.abc import Mapping
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedmlh.errors import UserError
from fedmlh.sites.agreement import split_address
from fedmlh.sites.enrolment import Enrolment
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.bundle import make_bundle
from fedmlh.sites.flower.credential import Credential

#: Seconds for which calls are repeated while the SuperLink itself fails.
BUSY = 60.0


class Control:
    """The calls that the server's own machine may make to the SuperLink."""

    def __init__(self, federation: Federation) -> None:
        host, port = split_address(federation.agreement.address)
        address = f"{host if is_loopback(host) else '127.0.0.1'}:{port}"
        self._client: Any = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=federation.agreement.authority,
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                Credential(federation.server / "credential"),
            ],
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, name: str, request: Any) -> Any:
        """Call; if the SuperLink itself fails, call again: it fails while its database is busy with a large model."""
        end = time.monotonic() + BUSY
        while True:
            try:
                return getattr(self._client, name)(request)
            except httpx.HTTPStatusError as error:
                if error.response.status_code < httpx.codes.INTERNAL_SERVER_ERROR or time.monotonic() > end:
                    raise
            time.sleep(1)

    def answers(self) -> bool:
        """Say whether a SuperLink answers that the federation's authority has signed and that knows this account."""
        try:
            self._call("ListNodes", ListNodesRequest())
        except httpx.HTTPError:
            return False
        return True

    def list_nodes(self) -> dict[bytes, tuple[int, str]]:
        """Return node and status by key."""
        nodes = self._call("ListNodes", ListNodesRequest()).nodes_info
        return {node.public_key: (node.node_id, node.status) for node in nodes if node.status != "unregistered"}

    def register(self, enrolments: Mapping[int, Enrolment]) -> dict[int, int]:
        """Let exactly these sites join; return their nodes by client_id."""
        keys = {client_id: encode_key(enrolment) for client_id, enrolment in enrolments.items()}
        known = self.list_nodes()
        for key in known.keys() - set(keys.values()):
            self._call("UnregisterNode", UnregisterNodeRequest(node_id=known[key][0]))
        return {
            client_id: known[key][0]
            if key in known
            else self._call("RegisterNode", RegisterNodeRequest(public_key=key)).node_id
            for client_id, key in keys.items()
        }

    def statuses(self, enrolments: Mapping[int, Enrolment]) -> dict[int, str]:
        """Return the connection status of each of these sites that is registered."""
        nodes = self.list_nodes()
        keys = {client_id: encode_key(enrolment) for client_id, enrolment in enrolments.items()}
        return {client_id: nodes[key][1] for client_id, key in keys.items() if key in nodes}

    def runs(self) -> dict[int, str]:
        """Return the status of each run that has not finished."""
        runs = self._call("ListRuns", ListRunsRequest()).run_dict
        return {run_id: run.status.status for run_id, run in runs.items() if run.status.status != "finished"}

    def submit(self) -> int:
        """Start the ServerApp."""
        response = self._call("StartRun", StartRunRequest(fab=fab_to_proto(make_bundle())))
        if not response.HasField("run_id"):
            raise UserError("the SuperLink did not take the run: see its log")
        return int(response.run_id)

    def stop(self, run: int) -> None:
        """End a run."""
        self._call("StopRun", StopRunRequest(run_id=run))


def find_statuses(federation: Federation) -> dict[int, str] | None:
    """Return the connection status of each enrolled site; None if no SuperLink answers."""
    if not (federation.server / "credential").exists():  # never started
        return None
    with contextlib.closing(Control(federation)) as control:
        return control.statuses(federation.enrolments()) if control.answers() else None


def encode_key(enrolment: Enrolment) -> bytes:
    """Return a site's public key as Flower keeps it."""
    return bytes(public_key_to_bytes(load_ssh_public_key(enrolment.public_key.encode())))


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine and cannot be reached from another one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
