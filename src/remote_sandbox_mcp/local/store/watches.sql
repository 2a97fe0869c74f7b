-- name: add
INSERT INTO watches (
    id, version, sandbox, session, wanted, interval_s, job_id, status, last_state, last_summary, last_error,
    last_exit_code, last_log_tail, last_checkpoint, failures, alerted, interrupted_at, resume_attempts,
    created, updated, checked, due, idle_since, told
) VALUES (
    NULLIF(:id, 0), :version, :sandbox, :session, :wanted, :interval_s, :job_id, :status, :last_state, :last_summary, :last_error,
    :last_exit_code, :last_log_tail, :last_checkpoint, :failures, :alerted, :interrupted_at, :resume_attempts,
    :created, :updated, :checked, :due, :idle_since, :told
);

-- name: get
SELECT * FROM watches WHERE id = :id;

-- name: of_session
SELECT * FROM watches WHERE sandbox = :sandbox AND session = :session ORDER BY id DESC LIMIT :limit;

-- name: list
SELECT * FROM watches WHERE :status = '' OR status = :status ORDER BY id DESC LIMIT :limit;

-- name: due
SELECT * FROM watches
WHERE status = 'active' AND (due <= :now OR due > :now + interval_s)
    AND NOT EXISTS (
        SELECT 1 FROM outbox WHERE watch_id = watches.id AND kind = 'resume' AND state IN ('pending', 'taken')
    )
ORDER BY due LIMIT :limit;

-- name: next_due
SELECT MIN(due) FROM (
    SELECT due FROM watches
    WHERE status = 'active' AND NOT EXISTS (
        SELECT 1 FROM outbox WHERE watch_id = watches.id AND kind = 'resume' AND state IN ('pending', 'taken')
    )
    UNION ALL
    SELECT due FROM outbox WHERE state = 'pending'
);

-- name: change
UPDATE watches
SET version = version + 1, job_id = :job_id, status = :status, last_state = :last_state,
    last_summary = :last_summary, last_error = :last_error, last_exit_code = :last_exit_code,
    last_log_tail = :last_log_tail, last_checkpoint = :last_checkpoint, failures = :failures, alerted = :alerted,
    interrupted_at = :interrupted_at, resume_attempts = :resume_attempts, updated = :updated, checked = :checked,
    due = :due, idle_since = :idle_since, told = :told
WHERE id = :id AND version = :version;

-- name: place
UPDATE watches SET version = version + 1, wanted = :wanted, updated = :now WHERE id = :id;

-- name: cancel
UPDATE watches SET version = version + 1, status = 'cancelled', last_state = 'cancelled', updated = :now
WHERE id = :id AND status = 'active';

-- name: remove
DELETE FROM watches WHERE id = :id;

-- name: remove_events
DELETE FROM events WHERE watch_id = :id;

-- name: remove_effects
DELETE FROM outbox WHERE watch_id = :id;

-- name: counts
SELECT status, COUNT(*) FROM watches GROUP BY status;

-- name: add_event
INSERT INTO events (id, watch_id, type, summary, payload, created)
VALUES (NULLIF(:id, 0), :watch_id, :type, :summary, :payload, :created);

-- name: event
SELECT * FROM events WHERE id = :id;

-- name: events
SELECT * FROM events WHERE id > :after AND (:watch_id IS NULL OR watch_id = :watch_id) ORDER BY id LIMIT :limit;

-- name: newest_events
SELECT * FROM (
    SELECT * FROM events
    WHERE id > :after AND (:before = 0 OR id < :before) AND (:watch_id IS NULL OR watch_id = :watch_id)
    ORDER BY id DESC LIMIT :limit
) ORDER BY id;

-- name: add_effect
INSERT INTO outbox (kind, watch_id, event_id, channel, job_id, instead_of, asked_by, before, due)
VALUES (:kind, :watch_id, :event_id, :channel, :job_id, :instead_of, :asked_by, :before, :due);

-- name: open_resume
SELECT outbox.*, watches.sandbox FROM outbox JOIN watches ON watches.id = outbox.watch_id
WHERE watch_id = :watch_id AND kind = 'resume' AND state IN ('pending', 'taken') ORDER BY outbox.id LIMIT 1;

-- name: newest_resume
SELECT outbox.*, watches.sandbox FROM outbox JOIN watches ON watches.id = outbox.watch_id
WHERE watch_id = :watch_id AND kind = 'resume' ORDER BY outbox.id DESC LIMIT 1;

-- name: effect
SELECT outbox.*, watches.sandbox FROM outbox JOIN watches ON watches.id = outbox.watch_id WHERE outbox.id = :id;

-- name: pending
SELECT outbox.*, watches.sandbox FROM outbox JOIN watches ON watches.id = outbox.watch_id
WHERE state = 'pending' AND (outbox.due <= :now OR outbox.due > :now + :longest)
    AND (:sandbox = '' OR sandbox = :sandbox)
ORDER BY outbox.id LIMIT :limit;

-- name: take
UPDATE outbox SET state = 'taken', attempts = attempts + 1 WHERE id = :id AND state = 'pending';

-- name: settle
UPDATE outbox SET state = :state, problem = :problem, due = :due WHERE id = :id AND state = 'taken';

-- name: taken
SELECT id, kind FROM outbox WHERE state = 'taken';

-- name: drop_resumes
UPDATE outbox SET state = 'failed', problem = :problem
WHERE watch_id = :id AND kind = 'resume' AND state IN ('pending', 'taken');

-- name: beat
INSERT INTO heartbeat (id, pid, at) VALUES (1, :pid, :at)
ON CONFLICT (id) DO UPDATE SET pid = :pid, at = :at;

-- name: last_beat
SELECT pid, at FROM heartbeat;

-- name: prune_watches
DELETE FROM watches WHERE status <> 'active' AND updated < :before;

-- name: prune_events
DELETE FROM events WHERE created < :before OR watch_id NOT IN (SELECT id FROM watches);

-- name: prune_effects
DELETE FROM outbox
WHERE watch_id NOT IN (SELECT id FROM watches) OR (event_id <> 0 AND event_id NOT IN (SELECT id FROM events));

-- name: prune_wakes
DELETE FROM wakes WHERE event_id NOT IN (SELECT id FROM events);

-- name: add_wake
INSERT INTO wakes (event_id, watch_id, home, seat, state)
SELECT :event_id, id, :home, :seat, CASE WHEN shown = :covers THEN 'shown' ELSE 'waiting' END
FROM watches WHERE id = :watch_id;

-- name: waiting_wakes
SELECT event_id, watch_id, seat FROM wakes WHERE home = :home AND state = 'waiting' ORDER BY event_id LIMIT :limit;

-- name: move_wake
UPDATE wakes SET state = :state WHERE event_id = :event_id AND state = :before;

-- name: show_watch
UPDATE watches SET shown = :shown WHERE id = :watch_id;

-- name: show_wakes
UPDATE wakes SET state = 'shown' WHERE watch_id = :watch_id AND home = :home AND state = 'waiting';
