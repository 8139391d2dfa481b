"""A large cluster that exists only as objects: nodes and pods without kubelets, on a real API
server."""
