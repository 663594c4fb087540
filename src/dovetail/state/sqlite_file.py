"""The file of the SQLite backend: a path goes in, a connection to a file that is ours and usable comes out.

WAL lets readers and one writer work side by side, and a process that is killed leaves nothing that the next one can't
put right. `synchronous=NORMAL` writes through to the disk only where the log is folded into the file: a power cut may
lose the last moments, never the file.
"""

import contextlib
import os
import sqlite3
import time

from dovetail.errors import SetupError

APPLICATION = 0x446F7665  # stands in the file: it is ours
SCHEMA_VERSION = 1
PATIENCE = 2.0  # seconds that we wait for others to let go of the file
TRUNCATE_LOG = 16 * 1024 * 1024  # bytes of SQLite's own log that stay on the disk

# Names are bytes, for SQLite's texts end at a zero. Serial numbers and wakes count on from the time, so that a file
# that replaces a lost one does not begin with the same numbers.
SCHEMA = """
CREATE TABLE entries (
    key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX entries_that_expire ON entries (expires);
CREATE TABLE logs (
    name BLOB PRIMARY KEY, id INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, size INTEGER NOT NULL,
    appended INTEGER NOT NULL, expires REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX logs_that_expire ON logs (expires);
CREATE INDEX logs_with_records ON logs (appended) WHERE first <= last;
CREATE TABLE records (
    log INTEGER NOT NULL, id INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (log, id)) WITHOUT ROWID;
CREATE TABLE wakes (id INTEGER PRIMARY KEY, origin INTEGER NOT NULL, topic BLOB);
CREATE TABLE ledger (
    serial INTEGER NOT NULL, wake INTEGER NOT NULL, held INTEGER NOT NULL, entry_bytes INTEGER NOT NULL,
    log_bytes INTEGER NOT NULL);
INSERT INTO ledger VALUES ({number}, {number}, 0, 0, 0);
PRAGMA application_id = {application};
PRAGMA user_version = {version};
"""

ANOTHER = "give another file in state (DOVETAIL_STATE)"
MOVE_AWAY = f"move it away, and a new one is made, or {ANOTHER}"
LOCAL = f"it must lie on a local disk: {ANOTHER}"
FIXES = {  # by SQLite's error code: what is wrong with the file, and what to do
    sqlite3.SQLITE_NOTADB: f"is not a file of SQLite; {ANOTHER}",
    sqlite3.SQLITE_CORRUPT: f"is damaged; {MOVE_AWAY}",
    sqlite3.SQLITE_READONLY: f"can't be written to; change its rights and those of its folder, or {ANOTHER}",
    sqlite3.SQLITE_CANTOPEN: f"can't be opened; change its rights and those of its folder, or {ANOTHER}",
    sqlite3.SQLITE_PERM: f"can't be opened; change its rights and those of its folder, or {ANOTHER}",
    sqlite3.SQLITE_BUSY: f"is locked by another program; end that, or {ANOTHER}",
    sqlite3.SQLITE_FULL: f"has no room on its disk; make room, or {ANOTHER}",
}


def code_of(failure: BaseException | None) -> int:
    """SQLite's error code without its details; 0 if the failure is none of SQLite."""
    return int(getattr(failure, "sqlite_errorcode", 0)) & 0xFF


def open_file(path: str, *, thoroughly: bool = False) -> sqlite3.Connection:
    """A connection for any thread, but one at a time. The file is made if need be; `thoroughly` reads all of it.

    Raises SetupError if that can't be.
    """
    _make(path)
    connection = None
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        _patiently(connection, path)
        if thoroughly and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise SetupError(f"state: {path} {FIXES[sqlite3.SQLITE_CORRUPT]}")
    except BaseException as failure:
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()
        if isinstance(failure, sqlite3.Error):
            wrong = FIXES.get(code_of(failure), f"can't be used ({failure}); {ANOTHER}")
            raise SetupError(f"state: {path} {wrong}") from failure
        raise
    return connection


def _make(path: str) -> None:
    """Make the file for its owner alone. Its companions get the same rights from SQLite.

    One that exists is not opened here: to close it again would end the locks of all connections of this process.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if os.path.isdir(path):
            raise SetupError(f"state: {path} is a folder; add the name of a file") from None
    except FileNotFoundError:
        raise SetupError(f"state: the folder of {path} does not exist; make it, or {ANOTHER}") from None
    except (OSError, ValueError) as failure:
        raise SetupError(f"state: {path} can't be made ({failure}); {ANOTHER}") from None


def _patiently(connection: sqlite3.Connection, path: str) -> None:
    """Prepare the file, again and again while another process does the same, or puts right what a killed one left."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _prepare(connection, path)
        except sqlite3.OperationalError as failure:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if code_of(failure) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    if connection.execute("PRAGMA journal_mode = WAL").fetchone() != ("wal",):
        raise SetupError(f"state: {path} can't be shared by processes; {LOCAL}")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {TRUNCATE_LOG}")
    if not _is_ours(connection, path):
        connection.execute("BEGIN IMMEDIATE")
        if not _is_ours(connection, path):  # nor has another process made it so, meanwhile
            number = time.time_ns() // 1000
            for statement in SCHEMA.format(number=number, application=APPLICATION, version=SCHEMA_VERSION).split(";"):
                connection.execute(statement)
        connection.execute("COMMIT")


def _is_ours(connection: sqlite3.Connection, path: str) -> bool:
    """False if it is empty. Raises SetupError if it is somebody else's."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not tables and not application:
        return False
    if application != APPLICATION:
        raise SetupError(f"state: {path} is the database of another program; {ANOTHER}")
    if version != SCHEMA_VERSION:
        raise SetupError(
            f"state: {path} was written by another version of Dovetail (its format is {version}, ours is "
            f"{SCHEMA_VERSION}); use that version, or {MOVE_AWAY}"
        )
    return True
