-- name: add
INSERT OR IGNORE INTO jobs
    (job_id, sandbox, session, wanted, via, created, state, exit_code, signal, ended, watch_id)
VALUES
    (:job_id, :sandbox, :session, :wanted, :via, :created, :state, :exit_code, :signal, :ended, :watch_id);

-- name: get
SELECT * FROM jobs WHERE job_id = :job_id;

-- name: find
SELECT * FROM jobs WHERE session = :session AND (:sandbox = '' OR sandbox = :sandbox)
ORDER BY created DESC, rowid DESC LIMIT 1;

-- name: list
SELECT * FROM jobs WHERE (:sandbox IS NULL OR sandbox = :sandbox) AND (:state IS NULL OR state = :state)
ORDER BY created DESC, rowid DESC LIMIT :limit;

-- name: of
SELECT * FROM jobs WHERE job_id IN (SELECT value FROM json_each(:job_ids));

-- name: apps
SELECT * FROM jobs WHERE state IN ('starting', 'running') AND json_extract(wanted, '$.app.port') IS NOT NULL
ORDER BY created DESC, rowid DESC;

-- name: started
UPDATE jobs SET wanted = :wanted, via = :via, state = CASE state WHEN 'starting' THEN :state ELSE state END
WHERE job_id = :job_id;

-- name: note
UPDATE jobs SET state = :state, exit_code = :exit_code, signal = :signal, ended = :ended
WHERE job_id = :job_id AND state NOT IN ('ended', :state);

-- name: remove
DELETE FROM jobs WHERE job_id = :job_id;

-- name: prune
DELETE FROM jobs WHERE MAX(created, ended) < :before AND state NOT IN ('starting', 'running', 'pending');
