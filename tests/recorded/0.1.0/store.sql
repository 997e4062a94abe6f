BEGIN TRANSACTION;
CREATE TABLE events (
            seq INTEGER PRIMARY KEY,
            run INTEGER NOT NULL,
            at REAL NOT NULL,
            kind TEXT NOT NULL,
            data TEXT NOT NULL
        );
INSERT INTO "events" VALUES(1,1,1.79501604811675190926e+09,'flow','{"run": "here-3o4lx", "title": "2 trainers apart, 2 rounds of averaging", "on": "local", "framework": "none", "because": "train.py imports no framework that Pumasi knows"}');
INSERT INTO "events" VALUES(2,1,1.79501604811792659756e+09,'planned','{"run": "here-3o4lx", "task": "train-1-0", "on": "local", "placement": {"desk": 1}, "unplaced": false, "chief": "desk", "framework": "none", "because": "train.py imports no framework that Pumasi knows", "python": "/home/kim/.venv/bin/python", "gpus": {}, "see_gpus": "own", "packages": ""}');
INSERT INTO "events" VALUES(3,1,1.79501604811792659756e+09,'starting','{"task": "train-1-0", "numbers": [0, 1], "attempt": 0}');
INSERT INTO "events" VALUES(4,1,1.79501604811870765689e+09,'planned','{"run": "here-3o4lx", "task": "train-1-1", "on": "local", "placement": {"desk": 1}, "unplaced": false, "chief": "desk", "framework": "none", "because": "train.py imports no framework that Pumasi knows", "python": "/home/kim/.venv/bin/python", "gpus": {}, "see_gpus": "own", "packages": ""}');
INSERT INTO "events" VALUES(5,1,1.79501604811870765689e+09,'starting','{"task": "train-1-1", "numbers": [1, 1], "attempt": 0}');
INSERT INTO "events" VALUES(6,1,1.79501604818172693254e+09,'running','{"task": "train-1-1", "numbers": [1, 1], "attempt": 0, "ranks": [{"rank": 0, "node": "desk", "pid": 8708, "role": "worker"}]}');
INSERT INTO "events" VALUES(7,1,1.79501604818852901457e+09,'running','{"task": "train-1-0", "numbers": [0, 1], "attempt": 0, "ranks": [{"rank": 0, "node": "desk", "pid": 8709, "role": "worker"}]}');
INSERT INTO "events" VALUES(8,1,1.79501604935109591483e+09,'rank ended','{"task": "train-1-0", "numbers": [0, 1], "attempt": 0, "rank": 0, "code": 0, "signal": null}');
INSERT INTO "events" VALUES(9,1,1.7950160493716797829e+09,'task ended','{"verdict": "done", "reason": "Done.", "hint": "", "rank": null, "node": null, "code": null, "signal": null, "tail": [], "metrics": {"loss": 0.5}, "cause": "done", "task": "train-1-0"}');
INSERT INTO "events" VALUES(10,1,1.79501604937201261519e+09,'rank ended','{"task": "train-1-1", "numbers": [1, 1], "attempt": 0, "rank": 0, "code": 0, "signal": null}');
INSERT INTO "events" VALUES(11,1,1.79501604938477373127e+09,'task ended','{"verdict": "done", "reason": "Done.", "hint": "", "rank": null, "node": null, "code": null, "signal": null, "tail": [], "metrics": {"loss": 0.5}, "cause": "done", "task": "train-1-1"}');
INSERT INTO "events" VALUES(12,1,1.79501604938692593577e+09,'planned','{"run": "here-3o4lx", "task": "average-1", "on": "local", "placement": {"desk": 1}, "unplaced": false, "chief": "desk", "framework": "none", "because": "train.py imports no framework that Pumasi knows", "python": "/home/kim/.venv/bin/python", "gpus": {}, "see_gpus": "own", "packages": ""}');
INSERT INTO "events" VALUES(13,1,1.79501604938692593577e+09,'starting','{"task": "average-1", "numbers": [2, 1], "attempt": 0}');
INSERT INTO "events" VALUES(14,1,1.79501604942671132082e+09,'running','{"task": "average-1", "numbers": [2, 1], "attempt": 0, "ranks": [{"rank": 0, "node": "desk", "pid": 8713, "role": "worker"}]}');
INSERT INTO "events" VALUES(15,1,1.79501604954289221763e+09,'rank ended','{"task": "average-1", "numbers": [2, 1], "attempt": 0, "rank": 0, "code": 0, "signal": null}');
INSERT INTO "events" VALUES(16,1,1.79501604956468343732e+09,'task ended','{"verdict": "done", "reason": "Done.", "hint": "", "rank": null, "node": null, "code": null, "signal": null, "tail": [], "metrics": {}, "cause": "done", "task": "average-1"}');
INSERT INTO "events" VALUES(17,1,1.79501604956617617607e+09,'planned','{"run": "here-3o4lx", "task": "train-2-0", "on": "local", "placement": {"desk": 1}, "unplaced": false, "chief": "desk", "framework": "none", "because": "train.py imports no framework that Pumasi knows", "python": "/home/kim/.venv/bin/python", "gpus": {}, "see_gpus": "own", "packages": ""}');
INSERT INTO "events" VALUES(18,1,1.79501604956617617607e+09,'starting','{"task": "train-2-0", "numbers": [3, 1], "attempt": 0}');
INSERT INTO "events" VALUES(19,1,1.79501604956710982324e+09,'planned','{"run": "here-3o4lx", "task": "train-2-1", "on": "local", "placement": {"desk": 1}, "unplaced": false, "chief": "desk", "framework": "none", "because": "train.py imports no framework that Pumasi knows", "python": "/home/kim/.venv/bin/python", "gpus": {}, "see_gpus": "own", "packages": ""}');
INSERT INTO "events" VALUES(20,1,1.79501604956710982324e+09,'starting','{"task": "train-2-1", "numbers": [4, 1], "attempt": 0}');
INSERT INTO "events" VALUES(21,1,1.79501604960718750951e+09,'running','{"task": "train-2-0", "numbers": [3, 1], "attempt": 0, "ranks": [{"rank": 0, "node": "desk", "pid": 8717, "role": "worker"}]}');
INSERT INTO "events" VALUES(22,1,1.79501604961614561082e+09,'running','{"task": "train-2-1", "numbers": [4, 1], "attempt": 0, "ranks": [{"rank": 0, "node": "desk", "pid": 8718, "role": "worker"}]}');
CREATE TABLE last_metrics (
            run INTEGER NOT NULL,
            rank INTEGER NOT NULL,
            name TEXT NOT NULL,
            attempt INTEGER NOT NULL,
            value REAL,
            PRIMARY KEY (run, rank, name)
        ) WITHOUT ROWID;
INSERT INTO "last_metrics" VALUES(1,0,'loss',0,0.5);
INSERT INTO "last_metrics" VALUES(1,1,'loss',0,0.5);
CREATE TABLE metrics (
            seq INTEGER PRIMARY KEY,
            run INTEGER NOT NULL,
            at REAL NOT NULL,
            attempt INTEGER NOT NULL,
            rank INTEGER NOT NULL,
            step INTEGER,
            epoch INTEGER,
            name TEXT NOT NULL,
            value REAL
        );
INSERT INTO "metrics" VALUES(1,1,1.79501604933786320685e+09,0,1,NULL,NULL,'loss',0.5);
INSERT INTO "metrics" VALUES(2,1,1.79501604935091495511e+09,0,0,NULL,NULL,'loss',0.5);
CREATE TABLE runs (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            state TEXT NOT NULL,
            spec TEXT NOT NULL,
            created REAL NOT NULL,
            started REAL,
            ended REAL,
            attempt INTEGER NOT NULL,
            pid INTEGER,
            placement TEXT NOT NULL,
            framework TEXT NOT NULL,
            ranks INTEGER NOT NULL,
            outcome TEXT,
            exit_code INTEGER,
            detached INTEGER NOT NULL
        , user TEXT NOT NULL DEFAULT '', host TEXT NOT NULL DEFAULT '', started_here INTEGER NOT NULL DEFAULT 1);
INSERT INTO "runs" VALUES(1,'here-3o4lx','running','{"command": ["train.py", "{model}.npz", "{index}", "{round}", "{init}"], "name": "here", "workdir": "/home/kim/films", "python": "/home/kim/.venv/bin/python", "requirements": null, "setup": [], "on": "local", "slots": 2, "gpu": "auto", "per_node": false, "framework": "auto", "ps": 0, "evaluator": false, "strategy": "average", "split": null, "copy": null, "rounds": 2, "init": null, "evaluate": null, "min_models": null, "best": false, "save": null, "see_gpus": "auto", "slot_as_node": false, "shim": true, "restarts": 0, "timeout": null, "start_timeout": 600.0, "silence": 30.0, "grace": 15.0, "wait": true, "env": {}, "nodes": null, "namespace": null, "image": "python:3.12-slim", "cpus": null, "memory": null, "gpu_resource": "nvidia.com/gpu", "max_per_node": null, "node_selector": {}, "tolerations": [], "env_from_secret": [], "mounts": [], "volume": null, "priority_class": null, "labels": {}, "annotations": {}, "patches": [], "topology": [], "as_image_user": false, "keep": 604800.0}',1.79501604811354756353e+09,1.79501604818172693254e+09,NULL,0,8698,'{}','none',0,NULL,NULL,0,'kim','desk',1);
CREATE TABLE tasks (
            run INTEGER NOT NULL,
            name TEXT NOT NULL,
            fields TEXT NOT NULL,
            UNIQUE (run, name)
        );
INSERT INTO "tasks" VALUES(1,'train-1-0','{"state": "ended", "attempt": 0, "restarts": 0, "outcome": {"verdict": "done", "reason": "Done.", "hint": "", "rank": null, "node": null, "code": null, "signal": null, "tail": [], "metrics": {"loss": 0.5}, "cause": "done"}, "placement": {"desk": 1}, "ranks": 1, "first": 0}');
INSERT INTO "tasks" VALUES(1,'train-1-1','{"state": "ended", "attempt": 0, "restarts": 0, "outcome": {"verdict": "done", "reason": "Done.", "hint": "", "rank": null, "node": null, "code": null, "signal": null, "tail": [], "metrics": {"loss": 0.5}, "cause": "done"}, "placement": {"desk": 1}, "ranks": 1, "first": 1}');
INSERT INTO "tasks" VALUES(1,'average-1','{"state": "ended", "attempt": 0, "restarts": 0, "outcome": {"verdict": "done", "reason": "Done.", "hint": "", "rank": null, "node": null, "code": null, "signal": null, "tail": [], "metrics": {}, "cause": "done"}, "placement": {"desk": 1}, "ranks": 1, "first": 2}');
INSERT INTO "tasks" VALUES(1,'train-2-0','{"state": "running", "attempt": 0, "restarts": 0, "outcome": null, "placement": {"desk": 1}, "ranks": 1, "first": 3}');
INSERT INTO "tasks" VALUES(1,'train-2-1','{"state": "running", "attempt": 0, "restarts": 0, "outcome": null, "placement": {"desk": 1}, "ranks": 1, "first": 4}');
CREATE INDEX events_of_run ON events (run);
CREATE INDEX metrics_of_run ON metrics (run);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('runs',1);
COMMIT;
PRAGMA user_version = 3;
