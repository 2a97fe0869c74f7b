-- The sandbox that a client selected, for each server that it started: it comes back when the same client process starts
-- a server with the same configuration again. Processes are known by their number and their birth; an empty sandbox means
-- that the server used the configured default.
CREATE TABLE selections (
    client_pid INTEGER NOT NULL,
    client_birth TEXT NOT NULL,
    configuration TEXT NOT NULL,
    server_pid INTEGER NOT NULL,
    server_birth TEXT NOT NULL,
    sandbox TEXT NOT NULL,
    PRIMARY KEY (client_pid, client_birth, configuration, server_pid, server_birth)
);

-- The configuration under which a disposable sandbox was made: servers with another one do not see it. Empty: all do.
ALTER TABLE disposables ADD COLUMN configuration TEXT NOT NULL DEFAULT '';

DROP INDEX disposables_by_name;
CREATE UNIQUE INDEX disposables_by_name ON disposables (configuration, name) WHERE name != '' AND ended = 0;
