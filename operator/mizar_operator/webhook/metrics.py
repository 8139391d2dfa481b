"""Prometheus metrics of the webhook."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from mizar_kube import probes

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Bounds, in seconds, of the histogram of the duration of reviews: most take less than a
millisecond; some read from the API server."""


class Metrics:
    """The metrics and their registry; one per process."""

    def __init__(self) -> None:
        self.registry = probes.registry("webhook")
        self.reviews = Counter(
            "mizar_admission_reviews_total",
            "Reviewed objects; outcome is allowed, patched, refused or failed.",
            ["resource", "operation", "outcome"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "mizar_admission_review_seconds",
            "Time to review an object.",
            ["resource"],
            buckets=BUCKETS,
            registry=self.registry,
        )
        self.expiry = Gauge(
            "mizar_webhook_certificate_expiry_timestamp_seconds",
            "When the serving certificate expires, in seconds since 1970.",
            registry=self.registry,
        )
        self.lifetime = Gauge(
            "mizar_webhook_certificate_lifetime_seconds",
            "How long the serving certificate is valid in all; 0 without one.",
            registry=self.registry,
        )
