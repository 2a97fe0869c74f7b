-- name: machine
INSERT INTO machines (name) VALUES (:machine) ON CONFLICT DO NOTHING;

-- name: minute
INSERT INTO machine_minutes (machine, minute, shares)
SELECT id, :minute, :shares FROM machines WHERE name = :machine
ON CONFLICT DO NOTHING;

-- name: use
INSERT INTO gpu_use (hour, machine, user, job, seconds)
SELECT :hour, id, :user, :job, :seconds FROM machines
WHERE name = :machine AND (SELECT COUNT(*) FROM gpu_use WHERE hour = :hour AND machine = id) < :most
ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds;

-- name: points
SELECT name, minute, shares FROM machines JOIN machine_minutes ON machine = id
WHERE (:name = '' OR name = :name) AND minute > :after
ORDER BY id, minute;

-- name: hours
SELECT date(hour * 3600, 'unixepoch', 'localtime') AS day, name AS machine, user, job, SUM(seconds) / 3600 AS hours
FROM gpu_use JOIN machines ON machine = id
WHERE hour > :after AND (:name = '' OR name = :name)
GROUP BY day, name, user, job ORDER BY day, name;

-- name: to_thin
SELECT id, minute, shares FROM machines JOIN machine_minutes ON machine = id
WHERE minute > thinned AND minute <= :before
ORDER BY id, minute;

-- name: drop_minutes
DELETE FROM machine_minutes
WHERE machine = :machine AND minute > (SELECT thinned FROM machines WHERE id = :machine) AND minute <= :before;

-- name: thinner
INSERT OR REPLACE INTO machine_minutes (machine, minute, shares) VALUES (:machine, :minute, :shares);

-- name: thinned
UPDATE machines SET thinned = :before WHERE id = :machine;

-- name: old_minutes
DELETE FROM machine_minutes WHERE machine IN (SELECT id FROM machines) AND minute <= :before;

-- name: by_day
INSERT INTO gpu_use (hour, machine, user, job, seconds)
SELECT first_hour, machine, user, job, SUM(seconds) FROM (
    SELECT *, (CAST(strftime('%s', hour * 3600, 'unixepoch', 'localtime', 'start of day', 'utc') AS INTEGER) + 3599) / 3600
        AS first_hour
    FROM gpu_use WHERE hour <= :before
) WHERE hour > first_hour GROUP BY first_hour, machine, user, job
ON CONFLICT DO UPDATE SET seconds = seconds + excluded.seconds;

-- name: drop_hours
DELETE FROM gpu_use WHERE hour <= :before
    AND hour * 3600 > CAST(strftime('%s', hour * 3600, 'unixepoch', 'localtime', 'start of day', 'utc') AS INTEGER) + 3599;

-- name: old_hours
DELETE FROM gpu_use WHERE hour <= :before;

-- name: old_machines
DELETE FROM machines WHERE id NOT IN (SELECT machine FROM machine_minutes WHERE machine = id LIMIT 1)
    AND id NOT IN (SELECT machine FROM gpu_use);
