-- What a running job was reported for, what its session was shown of it last (state and job), and what that session, or
-- its next one (home), is to be told: taken before it is told, so that nothing is told twice.
ALTER TABLE watches ADD COLUMN idle_since REAL NOT NULL DEFAULT 0;
ALTER TABLE watches ADD COLUMN told TEXT NOT NULL DEFAULT '';
ALTER TABLE watches ADD COLUMN shown TEXT NOT NULL DEFAULT '';

CREATE TABLE wakes (
    event_id INTEGER PRIMARY KEY,
    watch_id INTEGER NOT NULL,
    home TEXT NOT NULL,
    seat TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'taken', 'told', 'shown'))
);

CREATE INDEX wakes_waiting ON wakes (home) WHERE state = 'waiting';
