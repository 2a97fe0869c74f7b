-- Watches over jobs, what happened to them, and what is still to be done about it.
-- wanted is JSON of what never changes in a watch or a job, but for where its log is; payload is JSON.
-- Times are seconds since the epoch, 0 for not yet. Numbers are never used twice: events are read from a number on.
CREATE TABLE watches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    version INTEGER NOT NULL DEFAULT 0,
    sandbox TEXT NOT NULL,
    session TEXT NOT NULL,
    wanted TEXT NOT NULL,
    interval_s REAL NOT NULL,
    job_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'completed', 'cancelled', 'exhausted')),
    last_state TEXT NOT NULL,
    last_summary TEXT NOT NULL,
    last_error TEXT NOT NULL,
    last_exit_code INTEGER,
    last_log_tail TEXT NOT NULL,
    last_checkpoint TEXT NOT NULL,
    failures INTEGER NOT NULL,
    alerted INTEGER NOT NULL,
    interrupted_at REAL NOT NULL,
    resume_attempts INTEGER NOT NULL,
    created REAL NOT NULL,
    updated REAL NOT NULL,
    checked REAL NOT NULL,
    due REAL NOT NULL
);

CREATE INDEX watches_by_due ON watches (status, due);
CREATE INDEX watches_by_session ON watches (sandbox, session);

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    watch_id INTEGER NOT NULL,
    type TEXT NOT NULL,
    summary TEXT NOT NULL,
    payload TEXT NOT NULL,
    created REAL NOT NULL
);

CREATE INDEX events_by_watch ON events (watch_id, id);

-- What a decision wants done, written with it: taken before it is done, and settled after.
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('resume', 'announce')),
    watch_id INTEGER NOT NULL,
    event_id INTEGER NOT NULL DEFAULT 0,
    channel TEXT NOT NULL DEFAULT '',
    job_id TEXT NOT NULL DEFAULT '',
    instead_of TEXT NOT NULL DEFAULT '',
    state TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'taken', 'done', 'failed')),
    attempts INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL,
    problem TEXT NOT NULL DEFAULT ''
);

CREATE INDEX outbox_open ON outbox (state, due) WHERE state IN ('pending', 'taken');
CREATE INDEX outbox_by_watch ON outbox (watch_id);

-- The one row says when the daemon was last heard of.
CREATE TABLE heartbeat (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    pid INTEGER NOT NULL,
    at REAL NOT NULL
);

CREATE TABLE jobs (
    job_id TEXT PRIMARY KEY,
    sandbox TEXT NOT NULL,
    session TEXT NOT NULL,
    wanted TEXT NOT NULL,
    via TEXT NOT NULL,
    created REAL NOT NULL,
    state TEXT NOT NULL,
    exit_code INTEGER,
    signal TEXT NOT NULL,
    ended REAL NOT NULL,
    watch_id INTEGER NOT NULL
);

CREATE INDEX jobs_by_session ON jobs (session, created);
CREATE INDEX jobs_by_created ON jobs (created);
