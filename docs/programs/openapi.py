import os
from pathlib import Path

from dovetail import OpenApi, Server

server = Server("desk", version="1.0.0")
shop = OpenApi(
    Path(__file__).with_name("openapi_shop.yaml"),
    auth=os.environ.get("SHOP_KEY"),
    only=["GET *"],
    names={"listOrders": "orders"},
    timeout=10,
)
server.mount(shop, namespace="shop")

if __name__ == "__main__":
    server.run()
