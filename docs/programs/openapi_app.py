from fastapi import FastAPI, HTTPException

from dovetail import OpenApi

app = FastAPI(title="Library", version="1.0.0")
BOOKS = {"dune": 1965}


@app.get("/books/{title}", operation_id="year_of")
def year_of(title: str) -> int:
    """Tell when a book appeared."""
    if title not in BOOKS:
        raise HTTPException(404, f"There is no book {title}")
    return BOOKS[title]


server = OpenApi.from_app(app)

if __name__ == "__main__":
    server.run()
