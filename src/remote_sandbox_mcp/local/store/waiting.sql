-- name: add
INSERT OR IGNORE INTO waiting (job_id, session, configuration, wanted, priority, created, reason)
VALUES (:job_id, :session, :configuration, :wanted, :priority, :created, :reason);

-- name: open
SELECT * FROM waiting WHERE state = 'waiting' ORDER BY priority DESC, created, id;

-- name: ended
SELECT * FROM waiting WHERE state <> 'waiting' ORDER BY id DESC LIMIT :limit;

-- name: find
SELECT * FROM waiting WHERE session = :session ORDER BY state = 'waiting' DESC, id DESC LIMIT 1;

-- name: get
SELECT * FROM waiting WHERE job_id = :job_id;

-- name: try
UPDATE waiting SET tried = :place WHERE job_id = :job_id AND state = 'waiting' AND tried IN ('', :place);

-- name: give_up
UPDATE waiting SET tried = '' WHERE job_id = :job_id;

-- name: explain
UPDATE waiting SET reason = :reason WHERE job_id = :job_id AND reason <> :reason;

-- name: end
UPDATE waiting SET state = :state, reason = :reason, ended = :now
WHERE job_id = :job_id AND state = 'waiting' AND (tried = '' OR :state = 'refused');

-- name: raise
UPDATE waiting SET priority = :priority WHERE job_id = :job_id AND state = 'waiting';

-- name: remove
DELETE FROM waiting WHERE job_id = :job_id;

-- name: by_configuration
SELECT configuration, COUNT(*), MAX(id), TOTAL(priority) FROM waiting WHERE state = 'waiting' GROUP BY configuration;

-- name: freed
SELECT sandbox, MAX(ended) AS ended FROM jobs WHERE ended > :since GROUP BY sandbox;

-- name: prune
DELETE FROM waiting WHERE state <> 'waiting' AND ended < :before;
