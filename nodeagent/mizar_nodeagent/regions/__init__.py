"""The two files that a container shares with the agent, its limits and its usage, as mapped by the
shim (shim/include/mizar_regions.h)."""
