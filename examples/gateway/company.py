"""The HTTP API of a company: what you have already. This one is small, and keeps everything in memory."""

import os
from typing import Annotated

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel

TOKEN = os.environ.get("COMPANY_TOKEN", "token-of-the-gateway")
CUSTOMERS = {1: "Ada Lovelace", 2: "Grace Hopper"}
STOCK = {"hat": 12, "coat": 3}


class Order(BaseModel):
    customer: int
    article: str
    pieces: int = 1


ORDERS = {1: Order(customer=1, article="hat", pieces=2)}


def check(authorization: Annotated[str, Header(include_in_schema=False)] = "") -> None:
    if authorization != f"Bearer {TOKEN}":
        raise HTTPException(401, "Who are you?")


app = FastAPI(title="Company", version="1.0.0", dependencies=[Depends(check)])


@app.get("/customers", tags=["customers"], operation_id="find_customers")
def find_customers(name: str) -> dict[int, str]:
    """Find customers by a part of their name; gives names by number."""
    return {number: each for number, each in CUSTOMERS.items() if name.lower() in each.lower()}


@app.post("/customers", tags=["customers"], operation_id="add_customer", status_code=201)
def add_customer(name: str) -> int:
    """Add a customer; gives its number."""
    CUSTOMERS[number := max(CUSTOMERS) + 1] = name
    return number


@app.get("/orders", tags=["orders"], operation_id="list_orders")
def list_orders(customer: int) -> dict[int, Order]:
    """List the orders of a customer, by number."""
    return {number: order for number, order in ORDERS.items() if order.customer == customer}


@app.post("/orders", tags=["orders"], operation_id="place_order", status_code=201)
def place_order(order: Order) -> int:
    """Place an order, if there is enough in stock; gives its number."""
    if STOCK.get(order.article, 0) < order.pieces:
        raise HTTPException(409, f"There are {STOCK.get(order.article, 0)} of {order.article}")
    STOCK[order.article] -= order.pieces
    ORDERS[number := max(ORDERS) + 1] = order
    return number


@app.delete("/orders/{number}", tags=["orders"], operation_id="cancel_order", status_code=204)
def cancel_order(number: int) -> None:
    """Cancel an order. Nothing brings it back."""
    if ORDERS.pop(number, None) is None:
        raise HTTPException(404, f"There is no order {number}")


@app.get("/stock/{article}", tags=["stock"], operation_id="look_into_stock")
def look_into_stock(article: str) -> int:
    """Tell how many of an article are in stock."""
    return STOCK.get(article, 0)


@app.put("/stock/{article}", tags=["stock"], operation_id="count_stock")
def count_stock(article: str, pieces: int) -> None:
    """Correct how many of an article are in stock."""
    STOCK[article] = pieces
