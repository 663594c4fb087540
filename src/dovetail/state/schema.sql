-- Tables of the SQLite state backend. Names are bytes, for SQLite's texts end at a zero. Serial numbers and wakes count on
-- from the time (:now), so that a file that replaces a lost one does not begin with the same numbers.
CREATE TABLE numbers (serial INTEGER, wake INTEGER);
INSERT INTO numbers VALUES (:now, :now);
CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB, version INTEGER, expires REAL) WITHOUT ROWID;
CREATE INDEX entries_that_expire ON entries (expires);
CREATE TABLE logs (name BLOB PRIMARY KEY, id INTEGER, last INTEGER, expires REAL) WITHOUT ROWID;
CREATE INDEX logs_that_expire ON logs (expires);
CREATE TABLE records (serial INTEGER PRIMARY KEY, log INTEGER, id INTEGER, data BLOB);
CREATE UNIQUE INDEX records_of_a_log ON records (log, id);
CREATE TRIGGER log_goes AFTER DELETE ON logs BEGIN DELETE FROM records WHERE log = OLD.id; END;
CREATE TABLE wakes (id INTEGER PRIMARY KEY, topic BLOB);
