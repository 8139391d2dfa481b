"""What all programs share: client of the API server, informer, events, work queue, settings,
logs."""
