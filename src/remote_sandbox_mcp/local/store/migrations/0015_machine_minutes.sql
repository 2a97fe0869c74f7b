-- How busy each machine was: a row for each minute of the last day, then one for each quarter of an hour, for 90 days.
-- minute is minutes since the epoch; shares has a byte for the CPUs, the memory and each GPU (250: all of it, 255: unknown).
-- Rows of a machine up to the minute `thinned` have been thinned.
CREATE TABLE machines (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    thinned INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE machine_minutes (
    machine INTEGER NOT NULL,
    minute INTEGER NOT NULL,
    shares BLOB NOT NULL,
    PRIMARY KEY (machine, minute)
) WITHOUT ROWID;

-- Seconds for which GPUs were used, by hours since the epoch; after a week all of a day are under its first hour.
CREATE TABLE gpu_use (
    hour INTEGER NOT NULL,
    machine INTEGER NOT NULL,
    user TEXT NOT NULL,
    job TEXT NOT NULL,
    seconds REAL NOT NULL,
    PRIMARY KEY (hour, machine, user, job)
) WITHOUT ROWID;
