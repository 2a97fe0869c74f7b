-- Transfers, seen by every process: each row is written by whoever runs it, and by whoever wants it to stop.
-- wanted, headway and outcome are JSON of core/transfer.py's values; times are seconds since the epoch, 0 for not yet.
CREATE TABLE transfers (
    id TEXT PRIMARY KEY,
    wanted TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('queued', 'running', 'completed', 'failed', 'cancelled')),
    headway TEXT,
    outcome TEXT,
    error TEXT NOT NULL DEFAULT '',
    code TEXT NOT NULL DEFAULT '',
    pid INTEGER NOT NULL DEFAULT 0,
    log_file TEXT NOT NULL,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    started REAL NOT NULL DEFAULT 0,
    updated REAL NOT NULL,
    ended REAL NOT NULL DEFAULT 0
);

CREATE INDEX transfers_by_created ON transfers (created);
CREATE INDEX transfers_by_updated ON transfers (updated);
