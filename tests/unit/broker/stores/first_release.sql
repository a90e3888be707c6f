-- A store as the first release left it, its faults included. Made by that release's code.
PRAGMA application_id = 1415007810;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE about (created_ms INTEGER NOT NULL);
INSERT INTO "about" VALUES(1795061810000);
CREATE TABLE body (id INTEGER PRIMARY KEY, holders INTEGER NOT NULL, bare BLOB NOT NULL);
INSERT INTO "body" VALUES(1,2,X'005373C0150DA106736861726564404040404040404040404040005375A00E626F6479206F6620736861726564');
INSERT INTO "body" VALUES(3,1,X'005373C0120DA1036C6F77404040404040404040404040005375A00B626F6479206F66206C6F77');
INSERT INTO "body" VALUES(4,1,X'005373C0150DA1066C65616B6564404040404040404040404040005375A00E626F6479206F66206C65616B6564');
INSERT INTO "body" VALUES(5,4,X'005373C0180DA1096F66206E6F626F6479404040404040404040404040005375A011626F6479206F66206F66206E6F626F6479');
CREATE TABLE entity (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL, kind TEXT NOT NULL, description TEXT NOT NULL,
    created_ms INTEGER NOT NULL, updated_ms INTEGER NOT NULL, accessed_ms INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL DEFAULT 0, active INTEGER NOT NULL DEFAULT 0,
    deferred INTEGER NOT NULL DEFAULT 0, scheduled INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0, pings INTEGER NOT NULL DEFAULT 0
);
INSERT INTO "entity" VALUES(3,'q','queue','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": false, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null}',1700000000000,1700000000000,1700000000000,4,2,1,0,151,0);
INSERT INTO "entity" VALUES(4,'q/$deadletterqueue','dead','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": false, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null}',1700000000000,1700000000000,1700000000000,1,1,0,0,41,0);
INSERT INTO "entity" VALUES(5,'q/$transfer/$deadletterqueue','transfer','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": false, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(6,'sessions','queue','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": true, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "lock_duration": 60000.0, "requires_session": true, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null}',1700000000000,1700000000000,1700000000000,1,1,0,0,60,0);
INSERT INTO "entity" VALUES(7,'sessions/$deadletterqueue','dead','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": true, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "lock_duration": 60000.0, "requires_session": true, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(8,'sessions/$transfer/$deadletterqueue','transfer','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": true, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "lock_duration": 60000.0, "requires_session": true, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(9,'t','topic','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": false, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "support_ordering": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(10,'t/$deadletterqueue','dead','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": false, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "support_ordering": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(11,'t/$transfer/$deadletterqueue','transfer','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "max_size_mb": 1024, "requires_duplicate_detection": false, "duplicate_window": 600000.0, "enable_partitioning": false, "enable_express": false, "access_rules": [], "support_ordering": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(12,'t/Subscriptions/one','subscription','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 1, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,4,2,0,0,96,0);
INSERT INTO "entity" VALUES(13,'t/Subscriptions/one/$deadletterqueue','dead','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 1, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,2,2,0,0,80,0);
INSERT INTO "entity" VALUES(14,'t/Subscriptions/one/$transfer/$deadletterqueue','transfer','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 1, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(15,'t/Subscriptions/other','subscription','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,4,4,0,0,176,0);
INSERT INTO "entity" VALUES(16,'t/Subscriptions/other/$deadletterqueue','dead','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(17,'t/Subscriptions/other/$transfer/$deadletterqueue','transfer','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(18,'t/Subscriptions/third','subscription','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,2,2,0,0,90,0);
INSERT INTO "entity" VALUES(19,'t/Subscriptions/third/$deadletterqueue','dead','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
INSERT INTO "entity" VALUES(20,'t/Subscriptions/third/$transfer/$deadletterqueue','transfer','{"default_ttl": null, "auto_delete_on_idle": null, "enable_batched_operations": true, "status": "Active", "user_metadata": null, "lock_duration": 60000.0, "requires_session": false, "dead_lettering_on_expiration": false, "max_delivery_count": 10, "forward_to": null, "forward_dead_letters_to": null, "dead_lettering_on_filter_errors": true}',1700000000000,1700000000000,1700000000000,0,0,0,0,0,0);
CREATE TABLE message (
    id INTEGER PRIMARY KEY, state INTEGER NOT NULL DEFAULT 0,
    delivery_count INTEGER NOT NULL DEFAULT 0, enqueued_ms INTEGER NOT NULL, expires_ms INTEGER,
    due_ms INTEGER, session TEXT, ttl_ms INTEGER, flags INTEGER NOT NULL DEFAULT 0,
    size INTEGER NOT NULL, hops INTEGER NOT NULL DEFAULT 0,
    origin_sequence INTEGER, dead_source TEXT, delivery_annotations BLOB, annotations BLOB,
    body INTEGER, bare BLOB
);
INSERT INTO "message" VALUES(3298534883329,0,1,1700000000000,NULL,NULL,NULL,NULL,0,43,0,NULL,NULL,NULL,NULL,NULL,X'005373C0140DA1057265616479404040404040404040404040005375A00D626F6479206F66207265616479');
INSERT INTO "message" VALUES(3298534883330,0,0,1700000000000,NULL,NULL,NULL,NULL,0,59,0,NULL,NULL,NULL,NULL,NULL,X'005373C01C0DA10D6C6F636B6564206265666F7265404040404040404040404040005375A015626F6479206F66206C6F636B6564206265666F7265');
INSERT INTO "message" VALUES(3298534883331,1,1,1700000000000,NULL,NULL,NULL,NULL,0,49,0,NULL,NULL,NULL,NULL,NULL,X'005373C0170DA1086465666572726564404040404040404040404040005375A010626F6479206F66206465666572726564');
INSERT INTO "message" VALUES(4398046511105,0,1,1700000000000,NULL,NULL,NULL,NULL,0,41,0,4,'q',NULL,NULL,NULL,X'005373C0130DA10464656164404040404040404040404040005374C13A04A110446561644C6574746572526561736F6EA103776879A11A446561644C65747465724572726F724465736372697074696F6EA10474657874005375A00C626F6479206F662064656164');
INSERT INTO "message" VALUES(6597069766657,0,0,1700000000000,NULL,NULL,'s1',NULL,0,60,0,NULL,NULL,NULL,NULL,NULL,X'005373C01E0DA10C696E20612073657373696F6E404040404040404040A10273314040005375A014626F6479206F6620696E20612073657373696F6E');
INSERT INTO "message" VALUES(13194139533313,0,0,1700000000000,NULL,NULL,NULL,NULL,0,45,0,NULL,NULL,NULL,NULL,1,NULL);
INSERT INTO "message" VALUES(13194139533316,0,0,1700000000000,NULL,NULL,NULL,NULL,0,51,0,NULL,NULL,NULL,NULL,5,NULL);
INSERT INTO "message" VALUES(14293651161089,0,1,1700000000000,NULL,NULL,NULL,NULL,0,41,0,2,'t/Subscriptions/one',NULL,NULL,NULL,X'005373C0130DA1046C6F7374404040404040404040404040005374C18304A110446561644C6574746572526561736F6EA1184D617844656C6976657279436F756E744578636565646564A11A446561644C65747465724572726F724465736372697074696F6EA1384D65737361676520636F756C64206E6F7420626520636F6E73756D656420616674657220312064656C697665727920617474656D7074732E005375A00C626F6479206F66206C6F7374');
INSERT INTO "message" VALUES(14293651161090,0,1,1700000000000,NULL,NULL,NULL,NULL,0,39,0,3,'t/Subscriptions/one',NULL,NULL,NULL,X'005373C0120DA1036C6F77404040404040404040404040005374C18304A110446561644C6574746572526561736F6EA1184D617844656C6976657279436F756E744578636565646564A11A446561644C65747465724572726F724465736372697074696F6EA1384D65737361676520636F756C64206E6F7420626520636F6E73756D656420616674657220312064656C697665727920617474656D7074732E005375A00B626F6479206F66206C6F77');
INSERT INTO "message" VALUES(16492674416641,0,0,1700000000000,NULL,NULL,NULL,NULL,0,45,0,NULL,NULL,NULL,NULL,1,NULL);
INSERT INTO "message" VALUES(16492674416642,0,0,1700000000000,NULL,NULL,NULL,NULL,0,41,0,NULL,NULL,NULL,NULL,2,NULL);
INSERT INTO "message" VALUES(16492674416643,0,0,1700000000000,NULL,NULL,NULL,NULL,0,39,0,NULL,NULL,NULL,NULL,3,NULL);
INSERT INTO "message" VALUES(16492674416644,0,0,1700000000000,NULL,NULL,NULL,NULL,0,51,0,NULL,NULL,NULL,NULL,5,NULL);
INSERT INTO "message" VALUES(19791209299969,0,0,1700000000000,NULL,NULL,NULL,NULL,0,39,0,NULL,NULL,NULL,NULL,3,NULL);
INSERT INTO "message" VALUES(19791209299970,0,0,1700000000000,NULL,NULL,NULL,NULL,0,51,0,NULL,NULL,NULL,NULL,5,NULL);
INSERT INTO "message" VALUES(42880953483265,0,0,1700000000000,NULL,NULL,NULL,NULL,0,51,0,NULL,NULL,NULL,NULL,5,NULL);
CREATE TABLE rule (
    entity INTEGER NOT NULL, name TEXT NOT NULL COLLATE NOCASE, definition TEXT NOT NULL,
    created_ms INTEGER NOT NULL, PRIMARY KEY (entity, name)
) WITHOUT ROWID;
INSERT INTO "rule" VALUES(12,'$Default','{"name": "$Default", "filter": {"type": "true"}, "action": null}',1700000000000);
INSERT INTO "rule" VALUES(15,'$Default','{"name": "$Default", "filter": {"type": "true"}, "action": null}',1700000000000);
INSERT INTO "rule" VALUES(15,'sql','{"name": "sql", "filter": {"type": "sql", "expression": "x = 1", "parameters": {}}, "action": null}',1700000000000);
INSERT INTO "rule" VALUES(18,'$Default','{"name": "$Default", "filter": {"type": "true"}, "action": null}',1700000000000);
CREATE TABLE seen (
    entity INTEGER NOT NULL, message_id TEXT NOT NULL, at_ms INTEGER NOT NULL,
    PRIMARY KEY (entity, message_id)
) WITHOUT ROWID;
INSERT INTO "seen" VALUES(6,'in a session',1700000000000);
CREATE TABLE session (
    entity INTEGER NOT NULL, id TEXT NOT NULL, state BLOB, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (entity, id)
) WITHOUT ROWID;
INSERT INTO "session" VALUES(6,'s1',X'7374617465',1700000000000);
INSERT INTO "session" VALUES(42,'s9',X'6C656674206F766572',1700000000000);
CREATE UNIQUE INDEX entity_path ON entity (lower(path));
CREATE INDEX message_expiry ON message (expires_ms) WHERE expires_ms IS NOT NULL;
CREATE INDEX message_due ON message (due_ms) WHERE state = 2;
CREATE INDEX message_session ON message (id >> 40, session, id) WHERE session IS NOT NULL;
CREATE INDEX seen_at ON seen (entity, at_ms);
COMMIT;
