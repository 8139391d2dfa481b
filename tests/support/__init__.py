"""What demo, end-to-end tests and benchmarks share: waiting, reading and building objects."""
