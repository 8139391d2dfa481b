"""Checks the containers' own accounts against what NVML and /proc show of their processes."""
