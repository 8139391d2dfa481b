"""Checks the containers' own accounts of memory against NVML's and /proc's lists of processes."""
