BEGIN TRANSACTION;
CREATE TABLE daemon_meta (
                key TEXT PRIMARY KEY,
                value TEXT NOT NULL,
                updated_ts INTEGER NOT NULL
            );
INSERT INTO "daemon_meta" VALUES('heartbeat','{"ts":1700000000}',1700000000);
CREATE TABLE transfer_tasks (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                direction TEXT NOT NULL,
                sandbox_name TEXT NOT NULL,
                local_path TEXT NOT NULL,
                remote_path TEXT NOT NULL,
                delete_extras INTEGER NOT NULL DEFAULT 0,
                excludes_json TEXT NOT NULL DEFAULT '[]',
                exclude_file TEXT NOT NULL DEFAULT '',
                status TEXT NOT NULL DEFAULT 'queued',
                pid INTEGER NOT NULL DEFAULT 0,
                log_file TEXT NOT NULL DEFAULT '',
                started_ts INTEGER NOT NULL DEFAULT 0,
                finished_ts INTEGER NOT NULL DEFAULT 0,
                last_error TEXT NOT NULL DEFAULT '',
                result_json TEXT NOT NULL DEFAULT '{}',
                progress_json TEXT NOT NULL DEFAULT '{}',
                created_ts INTEGER NOT NULL,
                updated_ts INTEGER NOT NULL
            );
INSERT INTO "transfer_tasks" VALUES(1,'local_to_remote','gpu1','/home/me/project','project',0,'[]','','completed',0,'{state}/transfers/transfer-1.log',0,0,'','{"uploaded_files":2,"synced_type":"directory"}','{}',1795020426,1795020426);
INSERT INTO "transfer_tasks" VALUES(2,'local_to_remote','gpu1','/home/me/project','project',0,'[]','','running',0,'{state}/transfers/transfer-2.log',0,0,'','{}','{}',1795020426,1795020426);
CREATE TABLE watch_events (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                watch_id INTEGER NOT NULL,
                event_type TEXT NOT NULL,
                summary TEXT NOT NULL,
                payload_json TEXT NOT NULL,
                created_ts INTEGER NOT NULL,
                FOREIGN KEY(watch_id) REFERENCES watches(id)
            );
INSERT INTO "watch_events" VALUES(1,1,'completed','ended with 0','{"watch":{"id":1,"run_id":"build","name":"","sandbox_name":"gpu1","tmux_session":"build","log_file":"/home/me/.codex_logs/build.log","checkpoint_path":"","resume_attempts":0,"max_resume_attempts":3,"auto_resume":false,"status":"completed","last_state":"completed"},"summary":"ended with 0","log_tail":"","checkpoint_text":"","suggested_codex_prompt":"Inspect the remote sandbox long-running task and decide how to resume it.\nRun id: build\nWatch id: 1\nSandbox: gpu1\ntmux session: build\nlog file: /home/me/.codex_logs/build.log\nCurrent event: completed\nSummary: ended with 0\nOriginal launch command: python build.py"}',1795020426);
INSERT INTO "watch_events" VALUES(2,2,'completed','ended with 3','{"watch":{"id":2,"run_id":"tests","name":"","sandbox_name":"gpu1","tmux_session":"tests","log_file":"/home/me/.codex_logs/tests.log","checkpoint_path":"","resume_attempts":0,"max_resume_attempts":3,"auto_resume":false,"status":"completed","last_state":"completed"},"summary":"ended with 3","log_tail":"","checkpoint_text":"","suggested_codex_prompt":"Inspect the remote sandbox long-running task and decide how to resume it.\nRun id: tests\nWatch id: 2\nSandbox: gpu1\ntmux session: tests\nlog file: /home/me/.codex_logs/tests.log\nCurrent event: completed\nSummary: ended with 3\nOriginal launch command: python tests.py"}',1795020426);
INSERT INTO "watch_events" VALUES(3,6,'interrupted','gone','{"watch":{"id":6,"run_id":"sweep","name":"","sandbox_name":"lab/gpu","tmux_session":"sweep","log_file":"/home/me/.codex_logs/sweep.log","checkpoint_path":"/home/me/step","resume_attempts":1,"max_resume_attempts":3,"auto_resume":true,"status":"active","last_state":"interrupted"},"summary":"gone","log_tail":"","checkpoint_text":"","suggested_codex_prompt":"Inspect the remote sandbox long-running task and decide how to resume it.\nRun id: sweep\nWatch id: 6\nSandbox: lab/gpu\ntmux session: sweep\nlog file: /home/me/.codex_logs/sweep.log\nCurrent event: interrupted\nSummary: gone\nCheckpoint path: /home/me/step\nSuggested resume command: python train.py --resume\nOriginal launch command: python sweep.py"}',1795020426);
CREATE TABLE watches (
                id INTEGER PRIMARY KEY AUTOINCREMENT,
                run_id TEXT NOT NULL DEFAULT '',
                name TEXT NOT NULL DEFAULT '',
                sandbox_name TEXT NOT NULL,
                tmux_session TEXT NOT NULL,
                log_file TEXT NOT NULL,
                cwd TEXT NOT NULL DEFAULT '',
                launch_command TEXT NOT NULL DEFAULT '',
                resume_command TEXT NOT NULL DEFAULT '',
                resume_plan_json TEXT NOT NULL DEFAULT '{}',
                checkpoint_path TEXT NOT NULL DEFAULT '',
                checkpoint_format TEXT NOT NULL DEFAULT 'text',
                checkpoint_command TEXT NOT NULL DEFAULT '',
                interval_s INTEGER NOT NULL DEFAULT 60,
                max_log_lines INTEGER NOT NULL DEFAULT 80,
                status TEXT NOT NULL DEFAULT 'active',
                last_state TEXT NOT NULL DEFAULT '',
                last_summary TEXT NOT NULL DEFAULT '',
                last_error TEXT NOT NULL DEFAULT '',
                last_exit_code INTEGER,
                last_log_digest TEXT NOT NULL DEFAULT '',
                last_log_tail TEXT NOT NULL DEFAULT '',
                last_checkpoint_text TEXT NOT NULL DEFAULT '',
                last_checkpoint_digest TEXT NOT NULL DEFAULT '',
                checkpoint_updated_ts INTEGER NOT NULL DEFAULT 0,
                webhook_url TEXT NOT NULL DEFAULT '',
                event_command TEXT NOT NULL DEFAULT '',
                auto_resume INTEGER NOT NULL DEFAULT 0,
                resume_attempts INTEGER NOT NULL DEFAULT 0,
                max_resume_attempts INTEGER NOT NULL DEFAULT 1,
                alert_after_failures INTEGER NOT NULL DEFAULT 2,
                consecutive_ssh_failures INTEGER NOT NULL DEFAULT 0,
                ssh_alert_sent INTEGER NOT NULL DEFAULT 0,
                notify_local INTEGER NOT NULL DEFAULT 1,
                resume_delay_s INTEGER NOT NULL DEFAULT 300,
                interrupted_ts INTEGER NOT NULL DEFAULT 0,
                resume_due_ts INTEGER NOT NULL DEFAULT 0,
                metadata_json TEXT NOT NULL DEFAULT '{}',
                created_ts INTEGER NOT NULL,
                updated_ts INTEGER NOT NULL,
                last_checked_ts INTEGER NOT NULL DEFAULT 0,
                next_check_ts INTEGER NOT NULL DEFAULT 0,
                last_event_ts INTEGER NOT NULL DEFAULT 0
            );
INSERT INTO "watches" VALUES(1,'build','','gpu1','build','/home/me/.codex_logs/build.log','/home/me','python build.py','','{}','','text','',300,80,'completed','completed','','',0,'','','','',0,'','',0,0,3,2,0,0,1,300,0,0,'{"run":"build"}',1795020426,1795020426,0,1795020426,1795020426);
INSERT INTO "watches" VALUES(2,'tests','','gpu1','tests','/home/me/.codex_logs/tests.log','/home/me','python tests.py','','{}','','text','',300,80,'completed','completed','','',3,'','','','',0,'','',0,0,3,2,0,0,1,300,0,0,'{"run":"tests"}',1795020426,1795020426,0,1795020426,1795020426);
INSERT INTO "watches" VALUES(3,'old','','gpu1','old','/home/me/.codex_logs/old.log','/home/me','python old.py','','{}','','text','',300,80,'cancelled','','','',NULL,'','','','',0,'','',0,0,3,2,0,0,1,300,0,0,'{"run":"old"}',1795020426,1795020426,0,1795020426,0);
INSERT INTO "watches" VALUES(4,'train','','gpu1','train','/home/me/.codex_logs/train.log','/home/me','python train.py','python train.py --resume','{}','/home/me/step','text','',300,80,'active','running','','',NULL,'','','','',0,'','',1,0,3,2,0,0,1,300,0,0,'{"run":"train"}',1795020426,1795020426,0,1795020426,0);
INSERT INTO "watches" VALUES(5,'train','','gpu1','train','/home/me/.codex_logs/train.log','/home/me','python train.py','python train.py --resume','{"resume_command":"python train.py --resume","tmux_session":"train","checkpoint_format":"text","steps":[1,2]}','/home/me/step','text','',300,80,'active','running','','',NULL,'','','','',0,'','',1,0,3,2,0,0,1,300,0,0,'{"run":"train"}',1795020426,1795020426,0,1795020426,0);
INSERT INTO "watches" VALUES(6,'sweep','','lab/gpu','sweep','/home/me/.codex_logs/sweep.log','/home/me','python sweep.py','python train.py --resume','{}','/home/me/step','text','',300,80,'active','interrupted','','',NULL,'','','','',0,'','',1,1,3,2,0,0,1,300,1700000000,0,'{"run":"sweep"}',1795020426,1795020426,0,1795020426,1795020426);
INSERT INTO "watches" VALUES(7,'codex','','lab/gpu','codex','/home/me/.codex_logs/codex.log','/home/me','python codex.py','','{}','','text','',300,80,'active','running','','',NULL,'','','','',0,'','case "$RSMCP_EVENT_TYPE" in ssh_unreachable|interrupted|resume_failed|completed|config_missing) codex exec "$RSMCP_SUGGESTED_PROMPT" ;; esac',0,0,3,2,0,0,1,300,0,0,'{"run":"codex"}',1795020426,1795020426,0,1795020426,0);
CREATE INDEX idx_watches_due
            ON watches(status, next_check_ts);
CREATE INDEX idx_watch_events_watch
            ON watch_events(watch_id, created_ts DESC);
CREATE INDEX idx_transfer_tasks_status
            ON transfer_tasks(status, id DESC);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('watches',7);
INSERT INTO "sqlite_sequence" VALUES('watch_events',3);
INSERT INTO "sqlite_sequence" VALUES('transfer_tasks',2);
COMMIT;
