//! What must hold after each round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::readers::{Follower, position_of};
use super::{Chaos, FULL, SETTLE_TIMEOUT, STEPS, VARIANT};
use crate::support::{METADATA_KEY, assert_settled, cursor_of, eventually, text};

impl Chaos {
    /// Waits until both syncs have succeeded with the latest metadata. Skips the waiting time of retries.
    pub async fn settle(&self) {
        let began = Instant::now();
        loop {
            let open =
                "SELECT count(*) FROM schedules WHERE run_id IS NOT NULL OR unreported_since IS NOT NULL
                            OR due_at <= now() + interval '1 minute'";
            if self.site.db.number(open).await == 0 {
                return;
            }
            self.site.db
                .execute(
                    "UPDATE schedules SET due_at = now()
                     WHERE run_id IS NULL AND (due_reason = 'retry' OR unreported_since IS NOT NULL) AND due_at > now();
                     NOTIFY syncline, 'due'",
                )
                .await;
            assert!(began.elapsed() < SETTLE_TIMEOUT, "a sync is stuck: {}", self.describe().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn describe(&self) -> String {
        let schedules = "SELECT sync_name || ' run ' || coalesce(run_id::text, '-') || ' due ' || coalesce(due_at::text, '-')
                             || ' failures ' || failures FROM schedules";
        let runs = "SELECT function_name || ' ' || state || ' ' || coalesce(error_message, '') FROM runs
                    ORDER BY started_at DESC LIMIT 10";
        format!("{:#?}\n{:#?}", self.site.db.texts(schedules).await, self.site.db.texts(runs).await)
    }

    /// Checks that everything is as if nothing had happened.
    pub async fn check(&mut self) {
        self.check_accounts().await;
        let deliveries = Arc::clone(&self.deliveries);
        let _no_webhooks = deliveries.pause().await;
        assert_settled(&self.site.db).await;
        let (full, steps) = (self.full.through(&self.hosts[0]), self.steps.through(&self.hosts[0]));
        let salt = self.provider.salt.to_string();
        let stored = full.all(&[("model", "Number"), ("limit", "500"), ("filter", "added,updated")]).await;
        let numbers: BTreeSet<u64> =
            stored.iter().map(|record| record["value"].as_u64().expect("the record has a value")).collect();
        assert_eq!((stored.len(), &numbers), (self.provider.numbers.len(), &self.provider.numbers));
        assert!(stored.iter().all(|record| record["salt"] == *salt), "all records have their last content");
        let counted = full.status("numbers").await["recordCount"].clone();
        assert_eq!(counted, json!({ "Number": self.provider.numbers.len() }));

        let made = steps.all(&[("model", "Step"), ("limit", "500")]).await;
        let ids: Vec<&str> = made.iter().map(|record| text(&record["id"])).collect();
        let expected: Vec<String> = (0..self.provider.steps).map(|step| format!("step-{step}")).collect();
        assert_eq!(ids, expected, "each step exists once, in order");
        assert!(
            made.iter().all(|step| step[METADATA_KEY]["last_action"] == "ADDED"),
            "no record was saved twice"
        );

        self.check_wild().await;
        let [full_reader, steps_reader, notes_reader] = &self.followers;
        self.wait_for_reader(full_reader, &stored).await;
        self.wait_for_reader(steps_reader, &made).await;
        self.check_inbound(notes_reader).await;
        self.check_webhooks().await;
    }

    /// Checks the connection whose cache was emptied and whose variants came and went: it has the provider's records.
    async fn check_wild(&self) {
        let wild = self.wild.through(&self.hosts[0]);
        let made = format!("SELECT count(*) FROM schedules WHERE variant = '{VARIANT}'");
        let variants = [("base", true), (VARIANT, self.site.db.number(&made).await == 1)];
        for (variant, exists) in variants {
            let parameters =
                [("model", "Number"), ("variant", variant), ("limit", "500"), ("filter", "added,updated")];
            let stored = wild.all(&parameters).await;
            let numbers: BTreeSet<u64> = stored
                .iter()
                .map(|record| record["value"].as_u64().expect("the record has a value"))
                .collect();
            let expected = if exists { self.provider.numbers.clone() } else { BTreeSet::new() };
            assert_eq!((stored.len(), &numbers), (expected.len(), &expected), "variant {variant}");
            let salt = self.provider.salt.to_string();
            assert!(
                stored.iter().all(|record| record["salt"] == *salt),
                "all records have their last content"
            );
            if let Some(since) = self.emptied_since.filter(|_| variant == "base") {
                let first_seen = |record: &Value| -> DateTime<Utc> {
                    text(&record[METADATA_KEY]["first_seen_at"]).parse().expect("a time")
                };
                let all_are_new = stored.iter().all(|record| first_seen(record) >= since);
                assert!(
                    all_are_new,
                    "the cache was not emptied since {since}, although a host accepted the request"
                );
            }
        }
    }

    /// Checks that the reader ends with exactly the stored records, and has read no content twice.
    pub async fn wait_for_reader(&self, follower: &Follower, stored: &[Value]) {
        let last = stored.iter().map(|record| position_of(cursor_of(record))).max().unwrap_or_default();
        let began = Instant::now();
        while follower.lock().unwrap_or_else(PoisonError::into_inner).position < last {
            assert!(began.elapsed() < SETTLE_TIMEOUT, "the reader makes no progress");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let progress = follower.lock().unwrap_or_else(PoisonError::into_inner);
        let stored: BTreeMap<&str, Value> = stored
            .iter()
            .map(|record| {
                let mut content = record.clone();
                content.as_object_mut().expect("it is an object").remove(METADATA_KEY);
                (text(&record["id"]), content)
            })
            .collect();
        let stored: BTreeMap<&str, &Value> = stored.iter().map(|(id, content)| (*id, content)).collect();
        assert_eq!(progress.live(), stored, "the reader has missed nothing");
        let twice: Vec<_> = progress.contents.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "the reader received twice: {twice:?}");
    }

    /// Checks that each success was reported under one id, and that the reports add up to every change once.
    async fn check_webhooks(&self) {
        let reported = "SELECT count(*) FROM outbound_webhook_deliveries WHERE body::json ->> 'type' = 'sync'
                        AND body::json ->> 'success' = 'true' AND body::json ->> 'syncName' <> 'commit-raw'
                        AND body::json ->> 'syncType' <> 'WEBHOOK'";
        let successes = "SELECT count(*) FROM runs WHERE kind = 'sync' AND state = 'success' AND function_name <> 'commit-raw'";
        assert_eq!(self.site.db.number(reported).await, self.site.db.number(successes).await);
        let sums = |connection: &str| {
            let sum = |name: &str| {
                format!("coalesce(sum((body::json -> 'responseResults' ->> '{name}')::bigint), 0)")
            };
            let all = ["added", "updated", "deleted"].map(sum).join(" || ' ' || ");
            format!(
                "SELECT {all} FROM outbound_webhook_deliveries
                 WHERE body::json ->> 'success' = 'true' AND body::json ->> 'connectionId' = '{connection}'
                     AND body::json ->> 'syncName' <> 'commit-raw'"
            )
        };
        let [added, updated, deleted] = self.provider.reported;
        assert_eq!(self.site.db.texts(&sums(FULL)).await, [format!("{added} {updated} {deleted}")]);
        assert_eq!(self.site.db.texts(&sums(STEPS)).await, [format!("{} 0 0", self.provider.steps)]);
    }

    /// Checks at the end of a sequence that the receiver got everything. Skips the waiting time for the deliveries of dead
    /// hosts.
    pub async fn check_every_delivery(&self) {
        let db = &self.site.db;
        db.execute("UPDATE outbound_webhook_deliveries SET next_attempt_at = now() WHERE state = 'pending'")
            .await;
        let pending = "SELECT count(*) FROM outbound_webhook_deliveries WHERE state = 'pending'";
        eventually("every webhook is delivered", async || (db.number(pending).await == 0).then_some(()))
            .await;
        let failed = "SELECT count(*) FROM outbound_webhook_deliveries WHERE state <> 'delivered'";
        assert_eq!(db.number(failed).await, 0, "no delivery is given up");
        let received: BTreeSet<String> =
            self.site.receiver.webhooks().iter().map(|webhook| webhook.id().to_owned()).collect();
        let sent = db.texts("SELECT message_id::text FROM outbound_webhook_deliveries").await;
        let missing: Vec<&String> = sent.iter().filter(|id| !received.contains(*id)).collect();
        assert!(missing.is_empty(), "webhooks that were not received: {missing:?}");
    }
}
