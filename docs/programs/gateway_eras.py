from pathlib import Path

from dovetail import Proxy, Server

HERE = Path(__file__).parent
server = Server("gateway", version="1.0.0")

# Three servers, each in a process of its own. The versions make them speak as servers that know no other do.
library = Proxy(HERE / "resources.py", name="library", protocol_version="2024-11-05")
notes = Proxy(HERE / "asking.py", name="notes", protocol_version="2025-11-25")
travel = Proxy(HERE / "asking_forms.py", name="travel", protocol_version="2026-07-28")

server.mount(library, namespace="library")
server.mount(notes, namespace="notes")  # it asks in the middle of a call
server.mount(travel, namespace="travel")  # it asks by the result of a call, which is made again with the answers

if __name__ == "__main__":
    server.run(transport="http")
