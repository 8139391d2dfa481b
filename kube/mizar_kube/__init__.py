"""The library that all programs share: client of the API server, informer, events, work queue,
settings, logs."""

from mizar_kube import lazy_models

lazy_models.install()
