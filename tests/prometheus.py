"""A real Prometheus for tests, found by scripts/test_servers.py: it scrapes one target, several times a second.

Its first scrape comes five seconds after its start, which no option changes. It listens on loopback, stores in a folder
of its own, and is ended by its own id.
"""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import test_servers
import yaml

import missing
from processes import wait_until
from stores import free_port

JOB = "dovetail"
INTERVAL = "100ms"


def why_missing() -> str | None:
    """What keeps the tests with Prometheus from running, in words."""
    try:
        test_servers.prometheus()
    except test_servers.ServerMissing as problem:
        return str(problem)
    return None


def demand() -> None:
    """Skip loudly where no Prometheus can be had; in CI its absence is a failure."""
    missing.demand(why_missing())


def promtool(*words: object) -> None:
    command = [test_servers.prometheus().with_name("promtool"), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def _get(self, path: str, **parameters: str) -> Any:
        with urllib.request.urlopen(f"{self._url}{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as response:
            return json.load(response)["data"]

    @property
    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now. Raises if it is wrong."""
        try:
            return self._get("/api/v1/query", query=expression)["result"]
        except urllib.error.HTTPError as refusal:
            raise AssertionError(f"{expression}: {refusal.read().decode()}") from None

    def value(self, expression: str) -> float | None:
        """The one value that it gives; None if there is none yet."""
        found = self.query(expression)
        assert len(found) < 2, found
        return float(found[0]["value"][1]) if found else None

    def label_values(self, label: str, selector: str) -> list[str]:
        found: list[str] = self._get(f"/api/v1/label/{label}/values", **{"match[]": selector})
        return found

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]


@contextmanager
def scraping(port: int, folder: Path, rules: Path, **scrape: Any) -> Iterator[Prometheus]:
    """Scrape `/metrics` at this port; `scrape` are further options of it."""
    own, config = free_port(), folder / "prometheus.yml"
    target = {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}], **scrape}
    times = {"scrape_interval": INTERVAL, "scrape_timeout": INTERVAL, "evaluation_interval": INTERVAL}
    config.write_text(yaml.safe_dump({"global": times, "rule_files": [str(rules)], "scrape_configs": [target]}))
    command = [
        str(test_servers.prometheus()),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{own}")
        wait_until(lambda: prometheus.is_ready, (folder / "prometheus.log").read_text)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
