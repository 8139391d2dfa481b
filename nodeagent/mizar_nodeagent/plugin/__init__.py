"""The agent's device plugins for the kubelet: one server and one socket for each resource."""
