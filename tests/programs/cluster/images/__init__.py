"""The container images that a cluster runs, as archives for `ctr images import`.

    archives = ensure_images(Progress())
    archives["localhost/mizar/operator:dev"]

They are built from the repository's Dockerfiles with Debian's buildah, without a daemon, and
kept in the cache under the hash of everything that goes into them.
"""

from cluster.images.build import ensure_images
from cluster.images.store import clone_store, prepared_store
from cluster.images.table import CUDA_SAMPLE, NODEAGENT, OPERATOR, PAUSE

__all__ = [
    "CUDA_SAMPLE",
    "NODEAGENT",
    "OPERATOR",
    "PAUSE",
    "clone_store",
    "ensure_images",
    "prepared_store",
]
