"""What the demo, the end-to-end tests and the benchmarks share: waiting, reading and building objects."""
