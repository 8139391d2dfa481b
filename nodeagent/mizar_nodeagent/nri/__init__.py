"""The node agent's NRI plugin: NRI's wire protocol, and the connection to the container runtime."""
