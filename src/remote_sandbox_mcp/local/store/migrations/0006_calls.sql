-- Calls of clients that must not be made twice, written down before they begin and once they are answered: should the
-- process die that serves them, the next one knows. call is made by us and never used again; begun is in seconds since
-- 1970; answer is the result as JSON, NULL until there is one.
CREATE TABLE calls (
    call TEXT PRIMARY KEY,
    tool TEXT NOT NULL,
    begun REAL NOT NULL,
    answer TEXT
);

CREATE INDEX calls_by_time ON calls (begun);
