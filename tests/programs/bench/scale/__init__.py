"""A large cluster that is not there: nodes and pods without kubelets, on a real API server."""
