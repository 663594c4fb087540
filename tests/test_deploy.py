"""What Kubernetes reads in docs/deploy: judged by its own schemas, by the options of a server, and by a server."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions, latest_version

import prometheus
from documented import ROOT
from dovetail import HttpApp, Server
from dovetail.cli.doctor import OK, check_metrics, check_variables
from dovetail.transports.http.options import HttpOptions
from http_serving import listening

DEPLOY = ROOT / "docs" / "deploy"
RESOURCES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
MONITOR = yaml.safe_load((DEPLOY / "podmonitor.yaml").read_text())
BY_KIND = {(each["kind"], each["metadata"]["name"]): each for each in RESOURCES}
POD = BY_KIND["Deployment", "greeter"]["spec"]["template"]
(WORKER,) = POD["spec"]["containers"]
VERSIONS = (all_versions()[0], latest_version())


def pods() -> Iterator[dict[str, Any]]:
    for kind, name in BY_KIND:
        if kind in ("Deployment", "StatefulSet"):
            yield BY_KIND[kind, name]["spec"]["template"]["spec"]


def environment() -> dict[str, str]:
    """The variables of a worker, as Kubernetes puts them together."""
    found: dict[str, str] = {}
    for source in WORKER["envFrom"]:
        found |= BY_KIND["ConfigMap", source["configMapRef"]["name"]]["data"]
    for variable in WORKER["env"]:
        reference = variable["valueFrom"]["secretKeyRef"]
        found[variable["name"]] = BY_KIND["Secret", reference["name"]]["stringData"][reference["key"]]
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_resource_is_one_of_kubernetes(resource: dict[str, Any], version: str) -> None:
    """Strictly: a field that the version does not know fails."""
    kubernetes_validate.validate(resource, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(resource | {"dovetail": {}}, version, strict=True)


def test_all_variables_are_known_and_possible() -> None:
    given = environment()
    assert [note for note in [*check_variables(given), *check_metrics(given)] if note.level != OK] == []
    secrets = {variable["name"] for variable in WORKER["env"]}
    assert secrets == {"DOVETAIL_STATE", "DOVETAIL_SECRET", "DOVETAIL_METRICS_TOKEN"}


def test_the_end_of_a_pod_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    options = HttpOptions.from_keywords({}, running=True)
    assert options.drain_delay + options.drain_timeout < POD["spec"]["terminationGracePeriodSeconds"]
    assert WORKER["ports"] == [{"name": "http", "containerPort": options.port}]


def test_pods_have_no_more_rights_than_they_need() -> None:
    """Those of the Pod security standard "restricted", and nothing to write to but volumes."""
    for pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"].keys() == {"requests", "limits"}
    template = Path(ROOT / "src/dovetail/cli/templates/Dockerfile.txt").read_text()
    assert re.findall(r"^USER (.*)$", template, re.MULTILINE) == [str(POD["spec"]["securityContext"]["runAsUser"])]


def test_the_monitor_finds_the_pods_their_port_and_the_token() -> None:
    spec = MONITOR["spec"]
    assert spec["selector"]["matchLabels"].items() <= POD["metadata"]["labels"].items()
    (endpoint,) = spec["podMetricsEndpoints"]
    assert endpoint["port"] in {port["name"] for port in WORKER["ports"]}
    token = endpoint["authorization"]["credentials"]
    assert token["key"] in BY_KIND["Secret", token["name"]]["stringData"]
    (job,) = [each["replacement"] for each in endpoint["relabelings"] if each["targetLabel"] == "job"]
    assert set(re.findall(r'job="(\w+)"', (ROOT / "docs" / "grafana" / "alerts.yaml").read_text())) == {job}
    assert f"```yaml\n{(DEPLOY / 'podmonitor.yaml').read_text()}```" in (ROOT / "docs" / "observability.md").read_text()


def test_prometheus_understands_the_jobs_of_the_documentation(tmp_path: Path) -> None:
    """But for the discovery of Pods, which Debian's Prometheus does not have."""
    prometheus.demand()
    page = (ROOT / "docs" / "observability.md").read_text()
    jobs = re.findall(r"^```yaml\n(scrape_configs:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(jobs) == 2
    for number, job in enumerate(jobs):
        job = job.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
        (tmp_path / f"{number}.yml").write_text(job)
        prometheus.promtool("check", "config", "--syntax-only", tmp_path / f"{number}.yml")


async def test_what_kubernetes_and_prometheus_ask_for_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the address of a Pod: its `Host` is none of `allowed_hosts`."""
    for name, value in (
        environment() | {"DOVETAIL_STATE": "", "DOVETAIL_PORT": "0", "DOVETAIL_DRAIN_DELAY": "0"}
    ).items():
        monkeypatch.setenv(name, value)
    options = HttpOptions.from_keywords({}, running=True)
    host = {"Host": "10.1.2.3:8000"}
    app = HttpApp(Server("greeter", version="1.0.0").engine, options, bound_to=options.host)
    async with (
        listening(app, options) as url,
        aiohttp.ClientSession(url.replace("0.0.0.0", "127.0.0.1"), headers=host) as http,
    ):
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert (await http.get(WORKER[probe]["httpGet"]["path"])).status == 200
        assert (await http.post("/mcp", json={})).status == 403
        assert (await http.get("/metrics")).status == 401
        scrape = await http.get("/metrics", headers={"Authorization": f"Bearer {options.metrics_token}"})
        assert (scrape.status, scrape.content_type) == (200, "text/plain")
        assert "\ndovetail_workers 1.0\n" in await scrape.text()
