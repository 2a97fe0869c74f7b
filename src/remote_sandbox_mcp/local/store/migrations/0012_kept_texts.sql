-- The configuration under which a command was run: servers with another one do not read it. Empty: by an older version.
ALTER TABLE runs ADD COLUMN configuration TEXT NOT NULL DEFAULT '';

-- Texts of commands and of what they printed were kept as they were. Now no row holds a secret; what has to be run again
-- as it is, is in a file for each watch, until its end.
UPDATE runs SET command = kept(command), tail = kept(tail), outcome = kept(outcome);
UPDATE jobs SET wanted = kept_wanted(0, '', wanted);
UPDATE watches SET wanted = kept_wanted(id, status, wanted), last_summary = kept(last_summary),
    last_error = kept(last_error), last_log_tail = kept(last_log_tail), last_checkpoint = kept(last_checkpoint);
UPDATE events SET summary = kept(summary), payload = kept_json(payload);
UPDATE outbox SET problem = kept(problem);
UPDATE transfers SET error = kept(error);
UPDATE calls SET answer = kept_json(answer);
DELETE FROM history WHERE id <= (SELECT MAX(id) FROM history) - 5000;
UPDATE history SET arguments = kept_json(arguments), told = kept(told);
