"""How fast, how small, how quick to start: Dovetail beside its peers and a bare floor, in one run. See __main__.py."""
