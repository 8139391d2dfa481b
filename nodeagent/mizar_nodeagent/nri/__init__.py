"""The node agent as a plugin of the container runtime: NRI's wire, and its answers there."""
