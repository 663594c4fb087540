-- Tables of the SQLite state backend. Names are bytes, for SQLite's texts end at a zero. Serial numbers and wakes count on
-- from the time (:now), so that a file that replaces a lost one does not begin with the same numbers. 128 is what a
-- record costs besides its data.
CREATE TABLE numbers (serial INTEGER, wake INTEGER, log_bytes INTEGER);
INSERT INTO numbers VALUES (:now, :now, 0);
CREATE TABLE entries (name BLOB PRIMARY KEY, value BLOB, version INTEGER, expires REAL) WITHOUT ROWID;
CREATE INDEX entries_that_expire ON entries (expires);
CREATE TABLE logs (name BLOB PRIMARY KEY, id INTEGER, last INTEGER, expires REAL) WITHOUT ROWID;
CREATE INDEX logs_that_expire ON logs (expires);
CREATE TABLE records (serial INTEGER PRIMARY KEY, log INTEGER, id INTEGER, data BLOB);
CREATE UNIQUE INDEX records_of_a_log ON records (log, id);
CREATE TRIGGER record_comes AFTER INSERT ON records BEGIN
    UPDATE numbers SET log_bytes = log_bytes + length(NEW.data) + 128; END;
CREATE TRIGGER record_goes AFTER DELETE ON records BEGIN
    UPDATE numbers SET log_bytes = log_bytes - length(OLD.data) - 128; END;
CREATE TRIGGER log_goes AFTER DELETE ON logs BEGIN DELETE FROM records WHERE log = OLD.id; END;
CREATE TABLE wakes (id INTEGER PRIMARY KEY, topic BLOB);
