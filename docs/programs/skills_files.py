from pathlib import Path

from dovetail import Server

server = Server("writing", version="1.0.0")
server.add_skills(Path(__file__).parent / "skills")

if __name__ == "__main__":
    server.run()
