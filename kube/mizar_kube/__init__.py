"""Talking to the API server: client, informer, events, work queue. What the processes share."""
