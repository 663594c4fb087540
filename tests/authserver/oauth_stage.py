"""What the OAuth flows of the official clients need: the protected server's process, and a program's own document."""

import datetime
import functools
import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from server_process import serving

PROGRAM = Path(__file__).parent / "oauth_program.py"
CALLBACK = "http://127.0.0.1:9/callback"  # nobody listens there: the browser of the tests only looks where it is sent
DOCUMENT = "client.json"
METADATA = {
    "client_name": "The official client",
    "redirect_uris": [CALLBACK],
    "grant_types": ["authorization_code", "refresh_token"],
    "response_types": ["code"],
    "token_endpoint_auth_method": "none",
}


class Protected(NamedTuple):
    origin: str
    document: str  # the URL of a program's own description

    @property
    def url(self) -> str:
        return f"{self.origin}/mcp"


@contextmanager
def protected_server(folder: Path) -> Iterator[Protected]:
    """In a process of its own, which has nothing to complain about."""
    log = folder / "server.log"
    certificate = _certificate(folder)
    program = [str(PROGRAM), "--trust", str(certificate)]
    with _published(folder, certificate) as document, serving(program, log) as process:
        yield Protected(process.origin, document)
    assert not process.complaints, log.read_text()


@contextmanager
def _published(folder: Path, certificate: Path) -> Iterator[str]:
    """A document that describes a program, by https, as a Client ID Metadata Document has to be."""
    page = functools.partial(_QuietPages, directory=str(folder / "published"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), page) as server:
        url = f"https://127.0.0.1:{server.server_port}/{DOCUMENT}"
        (folder / "published").mkdir()
        (folder / "published" / DOCUMENT).write_text(json.dumps({"client_id": url, **METADATA}))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield url
        finally:
            server.shutdown()
            thread.join()


class _QuietPages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def _certificate(folder: Path) -> Path:
    """For this machine, signed by itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "the tests")])
    now = datetime.datetime.now(datetime.UTC)
    this_machine = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(this_machine, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path = folder / "certificate.pem"
    path.write_bytes(secret + made.public_bytes(pem))
    return path
