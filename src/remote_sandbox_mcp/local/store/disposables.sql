-- name: add
-- keep is read by earlier versions only, which would otherwise end what outlives its server.
INSERT INTO disposables
    (id, name, provider, key, status, pool, keep, detail, timeout_s, created, expires, idle_since, owner_pid, owner_birth,
     configuration)
VALUES
    (:id, :name, :provider, :key, :status, :pool, :pool = '', :detail, :timeout_s, :created, :expires, :idle_since,
     :owner_pid, :owner_birth, :configuration);

-- name: get
SELECT * FROM disposables WHERE id = :id;

-- name: find
SELECT * FROM disposables WHERE (id = :name OR name = :name) AND pool = ''
    AND (:configuration = '' OR configuration IN ('', :configuration))
ORDER BY ended = 0 DESC, ended DESC, rowid DESC LIMIT 1;

-- name: living
SELECT * FROM disposables WHERE ended = 0 ORDER BY created, rowid;

-- name: count
SELECT COUNT(*) FROM disposables WHERE ended = 0 AND pool = '' AND NOT (status = 'ending' AND key = '');

-- name: clash
SELECT 1 FROM disposables WHERE ended = 0 AND (name = :name OR id = :name)
    AND (:configuration = '' OR configuration IN ('', :configuration));

-- name: ready
SELECT * FROM disposables
WHERE pool = :pool AND ended = 0 AND status = 'running' AND owner_pid = :owner_pid AND owner_birth = :owner_birth
    AND provider = :provider
ORDER BY created, rowid LIMIT 1;

-- name: take
UPDATE disposables SET pool = '', keep = 1, name = :name, timeout_s = :timeout_s, idle_since = :now WHERE id = :id;

-- name: made
UPDATE disposables SET key = :key, status = :status, detail = :detail, created = :created, expires = :expires
WHERE id = :id AND ended = 0 AND status = 'creating';

-- name: status
-- One without a key may never have been made: it is looked for a while, but its name is free at once.
UPDATE disposables SET status = :status, name = CASE WHEN :status = 'ending' AND key = '' THEN '' ELSE name END
WHERE id = :id AND ended = 0;

-- name: started
UPDATE disposables SET status = 'running', expires = :expires, idle_since = MAX(idle_since, :now)
WHERE id = :id AND ended = 0 AND status = 'pending';

-- name: ending
UPDATE disposables SET status = 'ending', key = :key WHERE id = :id AND ended = 0;

-- name: expires
UPDATE disposables SET expires = :expires WHERE id = :id AND ended = 0;

-- name: take_back
UPDATE disposables SET expires = :before WHERE id = :id AND ended = 0 AND expires = :expires;

-- name: renewed
UPDATE disposables SET expires = :expires, timeout_s = :timeout_s WHERE id = :id AND ended = 0;

-- name: touch
UPDATE disposables SET idle_since = MAX(idle_since, :at) WHERE id = :id AND ended = 0;

-- name: claim
UPDATE disposables SET owner_pid = :new_pid, owner_birth = :new_birth, status = :status, why = :why,
    name = CASE WHEN :status = 'ending' AND key = '' THEN '' ELSE name END
WHERE id = :id AND ended = 0 AND owner_pid = :owner_pid AND owner_birth = :owner_birth
    AND expires = :expires AND idle_since = :idle_since AND pool = :pool;

-- name: end
UPDATE disposables SET ended = :now, status = :status, why = :why WHERE id = :id AND ended = 0;

-- name: remove
DELETE FROM disposables WHERE id = :id;

-- name: prune
DELETE FROM disposables WHERE ended != 0 AND ended < :before;
