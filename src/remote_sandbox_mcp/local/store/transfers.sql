-- name: add
INSERT INTO transfers (id, wanted, status, pid, log_file, created, started, updated)
VALUES (:id, :wanted, :status, :pid, :log_file, :created, :started, :updated);

-- name: get
SELECT * FROM transfers WHERE id = :id;

-- name: latest
SELECT * FROM transfers ORDER BY created DESC, rowid DESC LIMIT :limit;

-- name: unfinished
SELECT * FROM transfers WHERE status IN ('queued', 'running')
    AND json_extract(wanted, '$.configuration') = :configuration
ORDER BY created, rowid;

-- name: take
UPDATE transfers
SET status = 'running', pid = :pid, started = CASE started WHEN 0 THEN :now ELSE started END, updated = :now
WHERE id = :id AND status IN ('queued', 'running');

-- name: note
UPDATE transfers SET headway = :headway, updated = :now
WHERE id = :id AND pid = :pid AND status = 'running';

-- name: wish
SELECT cancel_requested FROM transfers WHERE id = :id;

-- name: ask_to_cancel
UPDATE transfers SET cancel_requested = 1, updated = :now
WHERE id = :id AND status IN ('queued', 'running');

-- name: end
UPDATE transfers
SET status = :status, outcome = :outcome, error = :error, code = :code,
    headway = COALESCE(:headway, headway), updated = :now, ended = :now
WHERE id = :id AND status IN ('queued', 'running');

-- name: untouched_since
SELECT * FROM transfers WHERE updated < :before ORDER BY updated LIMIT 100;

-- name: remove
DELETE FROM transfers WHERE id = :id;
