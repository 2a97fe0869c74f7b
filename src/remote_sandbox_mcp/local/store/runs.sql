-- name: add
INSERT OR REPLACE INTO runs
    (run_id, sandbox, place, command, created, state, is_listed, exit_code, outcome, seconds, tail, configuration)
VALUES (
    :run_id, :sandbox, :place, :command, :created, :state, :is_listed, :exit_code, :outcome, :seconds, :tail,
    :configuration
);

-- name: note
UPDATE runs SET state = :state, is_listed = MAX(is_listed, :is_listed), exit_code = :exit_code, outcome = :outcome,
    seconds = :seconds, tail = CASE :tail WHEN '' THEN tail ELSE :tail END
WHERE run_id = :run_id AND state != 'ended';

-- name: get
SELECT * FROM runs WHERE run_id = :run_id;

-- name: latest
SELECT * FROM runs WHERE place = :place AND (:configuration = '' OR configuration = :configuration)
ORDER BY created DESC, rowid DESC LIMIT :limit;

-- name: background
SELECT * FROM runs WHERE place = :place AND (is_listed OR state = 'running') AND created >= :since
ORDER BY created DESC, rowid DESC LIMIT :limit;

-- name: remove
DELETE FROM runs WHERE run_id = :run_id;

-- name: forget
DELETE FROM runs WHERE place = :place;

-- name: forget_texts
UPDATE runs SET command = '', tail = '' WHERE configuration = :configuration;

-- name: prune
DELETE FROM runs WHERE created < :before OR (
    place = :place AND state != 'running' AND created < (
        SELECT created FROM runs WHERE place = :place ORDER BY created DESC LIMIT 1 OFFSET :most
    )
);
