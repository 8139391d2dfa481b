"""An API server that keeps objects and their versions, for code that reads and writes a few."""

import copy
from dataclasses import dataclass, field
from typing import Any

import jsonpatch

from unit.kube.fake_api import Answer, Asked, status

Object = dict[str, Any]


@dataclass
class Objects:
    """Objects by path, and the paths of all writes."""

    stored: dict[str, Object] = field(default_factory=dict)
    version: int = 0
    writes: list[str] = field(default_factory=list)

    def put(self, path: str, obj: Object) -> None:
        """Store a new version of an object."""
        self.version += 1
        stored = copy.deepcopy(obj)
        stored.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        self.stored[path] = stored

    def __call__(self, asked: Asked) -> Answer:
        found = self.stored.get(asked.path)
        if asked.method == "POST":
            return self._create(asked)
        if found is None:
            items = [one for path, one in self.stored.items() if path.startswith(asked.path + "/")]
            if items or "limit" in asked.query:
                meta = {"resourceVersion": str(self.version)}
                return Answer({"metadata": meta, "items": items})
            return Answer(status(404, "NotFound"), 404)
        if asked.method == "PUT":
            return self._replace(asked, found)
        if asked.method == "PATCH":
            return self._patch(asked, found)
        return Answer(found)

    def _create(self, asked: Asked) -> Answer:
        path = f"{asked.path}/{asked.body['metadata']['name']}"
        if path in self.stored:
            return Answer(status(409, "AlreadyExists"), 409)
        return self._write(path, asked.body)

    def _replace(self, asked: Asked, found: Object) -> Answer:
        wanted = asked.body["metadata"].get("resourceVersion")
        if wanted and wanted != found["metadata"]["resourceVersion"]:
            return Answer(status(409, "Conflict"), 409)
        return self._write(asked.path, asked.body)

    def _patch(self, asked: Asked, found: Object) -> Answer:
        try:
            return self._write(asked.path, jsonpatch.apply_patch(found, asked.body))
        except jsonpatch.JsonPatchTestFailed:
            return Answer(status(422, "Invalid"), 422)

    def _write(self, path: str, obj: Object) -> Answer:
        self.put(path, obj)
        self.writes.append(path)
        return Answer(self.stored[path])
