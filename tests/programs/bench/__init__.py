"""Benchmarks: `make bench AREA=start`; each area writes build/bench/{area}.json."""
