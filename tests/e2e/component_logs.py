"""What Mizar's programs logged while a test ran and what their pods are like after it, for the
report of its failure."""

import json
from datetime import datetime
from pathlib import Path

from cluster.cluster import Cluster, Done
from cluster.errors import ClusterError, CommandFailed
from e2e.components import SYSTEM
from support.logs import Line

MOST_LINES = 25
"""Lines that are shown of each container, its last."""
LONGEST_LINE = 240
"""Characters that are shown of a line."""
NODES = (
    "{range .items[*]}{.metadata.name}{range .status.conditions[*]} {.type}={.status}{end}"
    '{"\\n"}{end}'
)
"""The nodes' conditions, in kubectl's JSONPath: one line for each node."""
LEFT_OUT = ("answered", "planned")
"""Events that are left out, since they say less than the lines around them: a call that was
answered, a plan that was made."""


def recent(cluster: Cluster, since: float) -> str:
    """The last lines that Mizar's containers logged since then (seconds since the epoch), read from
    the nodes' disks, so that neither API server nor kubelet need to answer. Empty for a cluster
    that does not exist any more: what fails while the run's last test is torn down is reported
    after the cluster was removed."""
    try:
        nodes = cluster.nodes
    except ClusterError:
        return ""
    files = [
        file
        for node in nodes
        for file in sorted(node.path("/var/log/pods").glob("mizar-system_mizar-*/*/*.log"))
    ]
    return "\n".join(text for file in files if (text := _section(file, since)))


def state(cluster: Cluster) -> str:
    """Mizar's pods, their last events and the nodes' conditions, as the API server has them; or its
    error."""
    here = f"--namespace={SYSTEM}"
    asked = (
        ("nodes", f"--output=jsonpath={NODES}"),
        ("pods", here, "--output=wide"),
        ("events", here, "--sort-by=.lastTimestamp"),
    )
    try:
        done = [cluster.kubectl("get", *one, check=False, timeout=30) for one in asked]
    except CommandFailed as error:
        return str(error)
    return "\n".join(line[:LONGEST_LINE] for one in done for line in _last_lines(one))


def _last_lines(done: Done) -> list[str]:
    return f"{done.stdout}{done.stderr}".splitlines()[-MOST_LINES:]


def _section(file: Path, since: float) -> str:
    found = [one for one in _logged(file) if _time(one) >= since and one["event"] not in LEFT_OUT]
    if not found:
        return ""
    pod = file.parent.parent.name.split("_")[1]
    return "\n".join([f"{pod}, {file.name}:", *(_short(one) for one in found[-MOST_LINES:])])


def _logged(file: Path) -> list[Line]:
    """The container's lines; the runtime puts time, stream and a tag before each. The file may be
    removed or written meanwhile, so that the last line may be cut."""
    try:
        rows = [row.split(" ", 3) for row in file.read_text(errors="replace").splitlines()]
    except OSError:
        return []
    found = (_parsed(row[3]) for row in rows if len(row) == 4 and row[2] == "F")
    return [one for one in found if "timestamp" in one and "event" in one]


def _parsed(text: str) -> Line:
    """The line's keys; none for what a library in C wrote, and for a part of a line."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _time(line: Line) -> float:
    return datetime.fromisoformat(str(line["timestamp"])).timestamp()


def _short(line: Line) -> str:
    at = str(line["timestamp"]).partition("T")[2]
    known = ("timestamp", "level", "logger", "event")
    rest = json.dumps({key: line[key] for key in line if key not in known}, ensure_ascii=False)
    return f"  {at} {line['event']} {rest}"[:LONGEST_LINE]
