"""Queries the kubelet: its podresources API, its checkpoint file and its registration socket."""
