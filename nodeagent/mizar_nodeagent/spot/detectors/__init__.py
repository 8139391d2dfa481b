"""Detectors, one for each source, report when owners of cards come, go, work or become idle."""
