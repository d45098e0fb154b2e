"""The tables of `assay.db` and how older ones become them.

Step N of `MIGRATIONS` brings schema version N to N + 1; each runs in a transaction of its
own that also sets `PRAGMA user_version`. A published step is never edited.

Columns with names, paths and texts of users hold TEXT, or a BLOB of the same bytes where
they are not valid UTF-8. Times are seconds since the epoch. JSON is ASCII.
"""

from __future__ import annotations

from typing import Final

_VERSION_1: Final = (
    # Single facts about the store: `id`, and those of the stat cache.
    "CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE journal (
        seq INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        run TEXT,
        node TEXT,
        kind TEXT NOT NULL,
        source TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        data TEXT,
        UNIQUE (source, sequence)
    )""",
    "CREATE INDEX journal_by_run ON journal (run) WHERE run IS NOT NULL",
    """CREATE TABLE runs (
        ordinal INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        plan_name TEXT NOT NULL,
        plan_file TEXT NOT NULL,
        plan_digest TEXT NOT NULL,
        status TEXT NOT NULL,
        created_at REAL NOT NULL,
        settled_at REAL,
        owner_host TEXT NOT NULL,
        owner_boot TEXT NOT NULL,
        owner_pid INTEGER NOT NULL,
        owner_pid_start INTEGER NOT NULL,
        owner_nonce TEXT NOT NULL,
        fence INTEGER NOT NULL,
        heartbeat_at REAL NOT NULL,
        parent_attempt TEXT,
        selected INTEGER NOT NULL,
        counts TEXT NOT NULL,
        agreed_with TEXT,
        targets TEXT NOT NULL,
        params TEXT NOT NULL,
        waiting TEXT NOT NULL DEFAULT '[]'
    )""",
    "CREATE INDEX runs_unsettled ON runs (ordinal) WHERE status IN ('pending', 'running')",
    "CREATE INDEX runs_by_plan_file ON runs (plan_file)",
    "CREATE TABLE plans (digest TEXT PRIMARY KEY, data BLOB NOT NULL)",
    # An attempt's id is RUN-N, so the primary key also finds all attempts of a run.
    """CREATE TABLE attempts (
        id TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        node TEXT NOT NULL,
        action_key TEXT NOT NULL,
        number INTEGER NOT NULL,
        state TEXT NOT NULL,
        "end" TEXT,
        exit_code INTEGER,
        signal INTEGER,
        began_at REAL NOT NULL,
        settled_at REAL,
        log TEXT NOT NULL,
        temp TEXT NOT NULL,
        pid INTEGER,
        claims TEXT NOT NULL,
        before TEXT NOT NULL,
        detail TEXT NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX attempts_running ON attempts (id) WHERE state = 'running'",
    "CREATE INDEX attempts_by_node ON attempts (node, began_at)",
    # `seal` is a digest over the row: a page that rotted is never served.
    """CREATE TABLE results (
        id INTEGER PRIMARY KEY,
        address TEXT NOT NULL UNIQUE,
        action_key TEXT NOT NULL,
        node TEXT NOT NULL,
        plan_file TEXT NOT NULL,
        run TEXT NOT NULL,
        journal_seq INTEGER NOT NULL,
        recorded_at REAL NOT NULL,
        used_at REAL NOT NULL,
        serves INTEGER NOT NULL,
        expires_at REAL,
        duration_seconds REAL NOT NULL,
        log TEXT,
        seal TEXT NOT NULL,
        outputs TEXT NOT NULL,
        value TEXT,
        evidence TEXT NOT NULL,
        recipe TEXT NOT NULL
    )""",
    "CREATE INDEX results_by_node ON results (node, plan_file, used_at)",
    # Every state any result ever named for a path: outlives the results themselves.
    """CREATE TABLE recorded_outputs (
        path TEXT NOT NULL,
        plan_file TEXT NOT NULL,
        node TEXT NOT NULL,
        state TEXT NOT NULL,
        recorded_at REAL NOT NULL,
        PRIMARY KEY (path, plan_file, node, state)
    ) WITHOUT ROWID""",
    """CREATE TABLE stat_cache (
        path TEXT PRIMARY KEY,
        size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL,
        ctime_ns INTEGER NOT NULL,
        inode INTEGER NOT NULL,
        mode INTEGER NOT NULL,
        state TEXT NOT NULL
    ) WITHOUT ROWID""",
    "CREATE TABLE pins (run TEXT PRIMARY KEY, data BLOB NOT NULL)",
    """CREATE TABLE agreements (
        address TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        put_at REAL NOT NULL,
        data BLOB NOT NULL
    )""",
)

_VERSION_2: Final = (
    # Who asked the run to stop, as JSON: [by, at, around].
    "ALTER TABLE runs ADD COLUMN cancel TEXT",
    # Position of the record that tells of the begin: clocks are set back. 0: none does.
    "ALTER TABLE attempts ADD COLUMN begun_seq INTEGER NOT NULL DEFAULT 0",
    """UPDATE attempts SET begun_seq = told.seq FROM (
        SELECT seq, json_extract(data, '$.attempt') AS attempt FROM journal
        WHERE kind = 'attempt-begun'
    ) AS told WHERE told.attempt = attempts.id""",
    "DROP INDEX attempts_by_node",
    "CREATE INDEX attempts_by_node ON attempts (node, begun_seq)",
)

_VERSION_3: Final = (
    # What attempts of nodes that are not sealed did to the world. `seal` is a digest over the
    # row: one that rotted is told as unknown, never believed.
    """CREATE TABLE effects (
        attempt TEXT PRIMARY KEY,
        run TEXT NOT NULL,
        node TEXT NOT NULL,
        plan_file TEXT NOT NULL,
        is_open INTEGER NOT NULL,
        begun_seq INTEGER NOT NULL,
        settled_seq INTEGER,
        state TEXT NOT NULL,
        data TEXT NOT NULL,
        seal TEXT NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX effects_by_node ON effects (plan_file, node, begun_seq)",
    "CREATE INDEX effects_open ON effects (plan_file) WHERE is_open = 1",
    # Names of the nodes that a run with effects had selected, zlib over JSON.
    "CREATE TABLE selections (run TEXT PRIMARY KEY, data BLOB NOT NULL)",
)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (_VERSION_1, _VERSION_2, _VERSION_3)

SCHEMA_VERSION: Final = len(MIGRATIONS)

APPLICATION_ID: Final = 0x61737379
"""`PRAGMA application_id` of every assay database: "assy"."""
