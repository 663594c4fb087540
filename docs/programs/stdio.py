import subprocess
import sys

from dovetail import Server

server = Server("noisy", version="1.0.0")


@server.tool
def chatter() -> str:
    """Prints, reads stdin and starts a child that prints; the client sees none of it."""
    print("hello from the tool")
    subprocess.run([sys.executable, "-c", "print('hello from a child')"], check=True)
    return f"stdin holds {sys.stdin.read()!r}"


if __name__ == "__main__":
    server.run()
