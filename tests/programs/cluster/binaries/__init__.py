"""The programs that a cluster is made of, from wherever they can be had.

    binaries = ensure(Progress())
    binaries.path("kubelet")

Each component comes from the first source that has it: a folder that the user names
($MIZAR_K8S_BIN_DIR and the like), the cache, the official release with its checksum
verified, a build from the Go modules that src/ pins. runc is Debian's. $MIZAR_KUBERNETES and
$MIZAR_CONTAINERD name another version of Kubernetes and containerd, which is built from its Go
modules.
"""

from cluster.binaries.components import ALL
from cluster.binaries.errors import SetupError
from cluster.binaries.progress import Progress
from cluster.binaries.sources import Binaries, at_hand, ensure

__all__ = ["ALL", "Binaries", "Progress", "SetupError", "at_hand", "ensure"]
