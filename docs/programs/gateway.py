import sys
from pathlib import Path

from dovetail import ArgTransform, Proxy, Server, ToolTransform

HERE = Path(__file__).parent
SERVERS = {
    "mcpServers": {
        "reader": {"command": sys.executable, "args": [str(HERE / "asking_models.py")]},
        "archive": {"url": "http://127.0.0.1:9/mcp"},  # nothing is there
    }
}
server = Server("desk", version="1.0.0")

dates = Proxy(HERE / "readme.py", name="dates", timeout=10)
words = {"start": ArgTransform(name="arrival"), "end": ArgTransform(name="departure")}
nights = ToolTransform(name="nights", arguments=words)
server.mount(dates, namespace="hotel", only=["days_*"], transforms={"days_between": nights})

proxies = Proxy.from_config(SERVERS, allow=["sampling"])
for name, proxy in proxies.items():
    server.mount(proxy, namespace=name)


@server.tool
def problems() -> dict[str, str]:
    """Tell which servers can't be reached, and why."""
    return {name: proxy.problem for name, proxy in proxies.items() if proxy.problem}


if __name__ == "__main__":
    server.run()
