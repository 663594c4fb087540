"""GitHub for tests, as a process: users sign in, have a repository with an issue, and open others.

python github_program.py --redirect-uri http://127.0.0.1:8000/callback --port 9000
"""

import argparse
from typing import Any

from aiohttp import web

from identity_provider import IdentityProvider

REPOSITORY = {"full_name": "ann/hats", "private": False, "open_issues_count": 1}
ISSUES = "/api/v3/repos/ann/hats/issues"


class GitHub(IdentityProvider):
    def __init__(self, redirect_uri: str) -> None:
        super().__init__("github", redirect_uri)
        self.kind = self.kind._replace(scopes=f"{self.kind.scopes} public_repo")
        self.issues: list[dict[str, Any]] = []
        self._open("Red hats fade")

    def _open(self, title: str) -> dict[str, Any]:
        number = len(self.issues) + 1
        url = f"https://github.com/ann/hats/issues/{number}"
        self.issues.insert(0, {"number": number, "title": title, "html_url": url})
        return self.issues[0]

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/api/v3/user/repos", self._repositories)
        app.router.add_get(ISSUES, self._list)
        app.router.add_post(ISSUES, self._post)
        return app

    def _check(self, request: web.Request) -> None:
        if not self.is_good(request.headers.get("Authorization", "").removeprefix("Bearer ")):
            raise web.HTTPUnauthorized

    async def _repositories(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response([REPOSITORY])

    async def _list(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response(self.issues)

    async def _post(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.json_response(self._open((await request.json())["title"]), status=201)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redirect-uri", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    github = GitHub(given.redirect_uri)
    github.origin = f"http://127.0.0.1:{given.port}"
    web.run_app(github.app(), host="127.0.0.1", port=given.port, access_log=None, print=None, shutdown_timeout=0.1)


if __name__ == "__main__":
    main()
