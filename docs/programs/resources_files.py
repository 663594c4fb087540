from pathlib import Path

from dovetail import Server

HERE = Path(__file__).parent

server = Server("files", version="1.0.0")
server.add_directory(HERE, uri="docs://programs", include=("*.py",), exclude=("test_*",))
server.add_file(__file__, uri="files://this", title="This program")

if __name__ == "__main__":
    server.run()
