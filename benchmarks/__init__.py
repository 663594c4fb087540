"""The benchmarks: speed, memory, start of Dovetail beside its peers and a bare floor, in one run. See __main__.py."""
