-- Jobs that wait for a machine with free GPUs, or for other jobs to end well. What is run is in a file for each of them.
-- state: waiting, or how it ended without a start: refused, stopped. tried: the machine on which a start was begun.
-- wanted is JSON of what is shown of it. Times are seconds since the epoch, 0 for not yet.
CREATE TABLE waiting (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    configuration TEXT NOT NULL,
    wanted TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    tried TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    ended REAL NOT NULL DEFAULT 0
);

CREATE INDEX waiting_open ON waiting (state, priority, created);
