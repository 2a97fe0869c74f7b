-- Commands that were run in sandboxes, written down as they start: each is found again after its server was killed, and
-- every server of the user shows them. place tells machines of the same name apart; state is running, ended or gone.
-- is_listed: it outlasted the call that started it, so it is shown with the background jobs. Times as above.
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    sandbox TEXT NOT NULL,
    place TEXT NOT NULL,
    command TEXT NOT NULL,
    created REAL NOT NULL,
    state TEXT NOT NULL,
    is_listed INTEGER NOT NULL,
    exit_code INTEGER,
    outcome TEXT NOT NULL,
    seconds REAL NOT NULL,
    tail TEXT NOT NULL
);

CREATE INDEX runs_by_place ON runs (place, created);
