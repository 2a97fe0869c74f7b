-- Disposable sandboxes, seen by every process of the user: written down before they are made, kept a while after their end.
-- detail is JSON of what never changes once one is made; pool says for what one is kept ready, if it is.
-- Times are seconds since the epoch, 0 for not yet or never; who looks after one is known by its number and its birth.
CREATE TABLE disposables (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    provider TEXT NOT NULL,
    key TEXT NOT NULL,
    status TEXT NOT NULL,
    pool TEXT NOT NULL,
    keep INTEGER NOT NULL,
    detail TEXT NOT NULL,
    timeout_s REAL NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    idle_since REAL NOT NULL,
    owner_pid INTEGER NOT NULL,
    owner_birth TEXT NOT NULL,
    ended REAL NOT NULL DEFAULT 0,
    why TEXT NOT NULL DEFAULT ''
);

CREATE UNIQUE INDEX disposables_by_name ON disposables (name) WHERE name != '' AND ended = 0;
CREATE INDEX disposables_by_end ON disposables (ended, created);
