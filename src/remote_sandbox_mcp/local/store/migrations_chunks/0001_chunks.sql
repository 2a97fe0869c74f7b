-- Pieces of files by their hash; `used` is when one was last asked for or put, in nanoseconds.
CREATE TABLE chunks (
    key BLOB PRIMARY KEY,
    blob BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    used INTEGER NOT NULL
);

CREATE INDEX chunks_by_used ON chunks (used, bytes);

CREATE TABLE total (bytes INTEGER NOT NULL);
INSERT INTO total VALUES (0);

CREATE TRIGGER chunk_added AFTER INSERT ON chunks BEGIN
    UPDATE total SET bytes = bytes + new.bytes;
END;

CREATE TRIGGER chunk_removed AFTER DELETE ON chunks BEGIN
    UPDATE total SET bytes = bytes - old.bytes;
END;
