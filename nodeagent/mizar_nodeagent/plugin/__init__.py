"""The device plugins that the kubelet talks to: one server and one socket for each resource."""
