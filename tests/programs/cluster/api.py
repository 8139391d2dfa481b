"""A small client of the API server, for waiting: quicker than starting kubectl each time."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass, field
from typing import Any

from cluster.credentials import Credentials

TIMEOUT = 5.0
PHYSICAL_RESOURCE = "nvidia.com/gpu"


@dataclass
class Api:
    """The API server behind 127.0.0.1:`port`, as the administrator."""

    port: int
    credentials: Credentials
    _context: ssl.SSLContext = field(init=False)

    def __post_init__(self) -> None:
        self._context = ssl.create_default_context(cafile=str(self.credentials.ca.cert))
        admin = self.credentials.admin
        self._context.load_cert_chain(admin.cert, admin.key)

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the answer. Raises OSError if the API server cannot be reached."""
        return self._ask("GET", path)

    def create(self, path: str, obj: dict[str, Any]) -> bool:
        """Create an object in this collection. Returns whether it exists now."""
        status, _ = self._ask("POST", path, json.dumps(obj))
        return status in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT)

    def _ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=TIMEOUT, context=self._context
        )
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except http.client.HTTPException as error:
            raise ConnectionError(f"the API server's answer makes no sense: {error!r}") from error
        finally:
            connection.close()

    def ready(self) -> bool:
        """Whether the API server says that it is ready."""
        status, body = self.get("/readyz")
        return status == 200 and body == "ok"

    def object(self, path: str) -> dict[str, Any] | None:
        """The object at this path, or None if there is none."""
        status, body = self.get(path)
        return json.loads(body) if status == 200 else None

    def node_ready(self, name: str, cards: int, uses_dra: bool = False) -> bool:
        """Whether the node is registered and Ready, and has this many nvidia.com/gpu, or this many
        devices in ResourceSlices where it `uses_dra`."""
        status = (self.object(f"/api/v1/nodes/{name}") or {}).get("status", {})
        has = int(status.get("allocatable", {}).get(PHYSICAL_RESOURCE, 0))
        if uses_dra:
            has = self._devices(name)
        conditions = status.get("conditions", [])
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
        return ready and has >= cards

    def _devices(self, node: str) -> int:
        """How many devices the node has in ResourceSlices."""
        path = f"/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3D{node}"
        slices = (self.object(path) or {}).get("items", [])
        return sum(len(one["spec"].get("devices", [])) for one in slices)
