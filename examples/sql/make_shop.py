"""A database to try the server with: a shop with 200,000 orders."""

import random
import sqlite3
from pathlib import Path

PRODUCTS = ["hat", "scarf", "coat", "umbrella", "boots"]
SCHEMA = """
create table products (id integer primary key, name text not null, price real not null);
create table orders (id integer primary key, product integer not null references products, pieces integer not null,
    day text not null);
create index orders_by_day on orders (day);
"""


def make(path: Path, orders: int = 200_000) -> None:
    chance = random.Random(1)
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    with database:
        database.executescript(SCHEMA)
        database.executemany("insert into products (name, price) values (?, ?)", [(name, 9.5) for name in PRODUCTS])
        database.executemany(
            "insert into orders (product, pieces, day) values (?, ?, date('2026-01-01', ?))",
            ((chance.randint(1, 5), chance.randint(1, 3), f"+{number % 180} days") for number in range(orders)),
        )
    database.close()


if __name__ == "__main__":
    make(Path(__file__).with_name("shop.db"))
