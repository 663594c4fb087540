"""Secrets, by their keys and by their shapes: none may appear in a log, a metric or a span."""

import re

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAK\n-----END RSA PRIVATE KEY-----"

SECRET_KEYS = [
    *("authorization", "Authorization", "Proxy-Authorization", "cookie", "Set-Cookie", "set_cookie", "password"),
    *("PASSWORD", "db_password", "userPassword", "passwd", "passphrase", "secret", "client_secret", "clientSecret"),
    *("CLIENT-SECRET", "token", "access_token", "accessToken", "refresh_token", "id_token", "X-Auth-Token", "jwt"),
    *("csrfToken", "apikey", "api_key", "API-Key", "x-api-key", "apiKey", "private_key", "privateKey", "credential"),
    *("credentials", "aws_secret_access_key", "secretKey", "github.token", "code_verifier", "pwd", "passcode"),
    *("cookies", "passwords", "secrets", "password_hash", "secret_value", "tokenValue", "access_tokens", "apiTokens"),
    *("refresh_tokens", "id-tokens", "authTokens", "bearer", "api_keys", "accessKey", "signing_key", "session_key"),
    *("encryption-key",),
]
# a text, and the same without its secrets
TEXTS = [
    ("Authorization: Bearer abc.def", "Authorization: [redacted]"),
    ("got Bearer xxx from", "got Bearer [redacted] from"),
    ("got bearer a1-b2_c3~d4+e5/f6== from", "got bearer [redacted] from"),
    ("BASIC dXNlcjpwYXNzd29yZA==", "BASIC [redacted]"),
    ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==, next", "Basic [redacted], next"),
    (f"jwt is {JWT}, ok", "jwt is [redacted], ok"),
    ("password=hunter2", "password=[redacted]"),
    ("password = hunter2, user = u", "password = [redacted], user = u"),
    ("token: abc; x", "token: [redacted]; x"),
    ("(secret=abc) done", "(secret=[redacted]) done"),
    ("api key: abc", "api key: [redacted]"),
    ("/cb?access_token=abc&state=1", "/cb?access_token=[redacted]&state=1"),
    ("--db-password=abc run", "--db-password=[redacted] run"),
    ('{"password": "a b", "n": 1}', '{"password": "[redacted]", "n": 1}'),
    ('{"password":"a\\"b,c"}', '{"password":"[redacted]"}'),
    ("{'api_key': 'a', 'b': 2}", "{'api_key': '[redacted]', 'b': 2}"),
    ('"{\\"password\\": \\"hunter2\\"}"', '"{\\"password\\": \\"[redacted]\\"}"'),
    ('body="password=hunter2"', 'body="password=[redacted]"'),
    ('{"password": "cut off in the mid', '{"password": "[redacted]"'),
    ("credentials={'a': 'b'} x", "credentials=[redacted] x"),
    ("secrets: ['a', 'b'] x", "secrets: [redacted] x"),
    ("password=\\x\\y z", "password=[redacted] z"),
    ("token => abc", "token => [redacted]"),
    ("Cookie: a=b; c=d\nHost: x", "Cookie: [redacted]\nHost: x"),
    ("curl -H 'Cookie: a=b; c=d' http://x", "curl -H 'Cookie: [redacted]' http://x"),
    ("redis://user:pass@host:6379/0", "redis://user:[redacted]@host:6379/0"),
    ("postgres://u:p@ss:w@host/db", "postgres://u:[redacted]@host/db"),
    ("redis://:pass@host", "redis://:[redacted]@host"),
    (f"key\n{PEM}\nend", "key\n[redacted]\nend"),
    (PEM[:50], "[redacted]"),
    ("push with ghp_abcdefghijklmnopqrstuvwxyz0123456789", "push with [redacted]"),
]


def secrets_of(text: str, clean: str) -> list[str]:
    """What is left out of `clean`, where it is long enough to be found nowhere else."""
    found = re.fullmatch(re.escape(clean).replace(re.escape("[redacted]"), "(.+)"), text, re.DOTALL)
    return [] if found is None else [each for each in found.groups() if len(each) > 5]


KEYED = {key: f"keyed-{number}-secret" for number, key in enumerate(SECRET_KEYS)}
ALL_SECRETS = [*KEYED.values(), *(each for example in TEXTS for each in secrets_of(*example))]
