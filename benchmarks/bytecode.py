"""Bytecode for Dovetail, as an installer makes it for the peers: a checkout has none of what was just edited.

Without it every start would compile the sources anew, and starts and memory would tell of that.
"""

import compileall
from functools import cache
from importlib.util import find_spec


@cache
def compile_dovetail() -> None:
    found = find_spec("dovetail")
    for folder in (found and found.submodule_search_locations) or ():
        compileall.compile_dir(folder, quiet=2)
