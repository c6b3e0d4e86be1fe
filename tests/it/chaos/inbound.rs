//! A provider that sends webhooks all the time, to any host, until each is acknowledged.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::Rng;
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::readers::{Follower, LiveHosts};
use super::{Chaos, SETTLE_TIMEOUT};
use crate::support::webhook_scene::{SECRET, connect, hex_hmac, set_secret, signed, webhook_path};
use crate::support::{Api, Bundle, Connection, eventually};

/// The connection that the webhooks concern.
const EVENTS: &str = "events";
const REPOSITORY: &str = "acme/shop";
/// A provider gives up a request after this time, and sends it again.
const TIMEOUT: Duration = Duration::from_secs(3);
const PAUSE_MS: std::ops::Range<u64> = 250..750;

/// The webhooks of a provider. They are numbered, and sent in this order.
pub struct Deliveries {
    pub connection: Connection,
    path: String,
    acknowledged: AtomicU64,
    /// Held while a webhook is sent.
    sending: Mutex<()>,
}

impl Deliveries {
    /// Deploys the functions that handle the webhooks, and connects the account.
    pub async fn prepare(api: &Api) -> Arc<Self> {
        api.deploy(&Bundle::guest("webhooks")).await;
        set_secret(api, "webhooks", SECRET).await;
        let connection = connect(api, EVENTS, json!({ "repository": REPOSITORY })).await;
        let path = webhook_path(api, "webhooks").await;
        Arc::new(Self { connection, path, acknowledged: AtomicU64::new(0), sending: Mutex::new(()) })
    }

    /// The number of webhooks that a host has acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Lets the provider send nothing as long as the result exists.
    pub async fn pause(&self) -> MutexGuard<'_, ()> {
        tokio::time::timeout(SETTLE_TIMEOUT, self.sending.lock()).await.expect("a host accepts the webhook")
    }

    /// Sends one webhook after the other until `stop`.
    pub async fn send(self: Arc<Self>, live_hosts: LiveHosts, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let sending = self.sending.lock().await;
            let number = self.acknowledged();
            // Providers sometimes repeat a webhook that was acknowledged.
            let copies = 1 + u32::from(number.is_multiple_of(5));
            for _copy in 0..copies {
                self.send_until_acknowledged(&live_hosts, number).await;
            }
            self.acknowledged.store(number + 1, Ordering::SeqCst);
            drop(sending);
            let pause = rand::rng().random_range(PAUSE_MS);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn send_until_acknowledged(&self, live_hosts: &LiveHosts, number: u64) {
        let id = delivery_id(number);
        let body = json!({ "ref": format!("refs/heads/{id}"), "repository": { "full_name": REPOSITORY } });
        let body = body.to_string();
        let signature = format!("sha256={}", hex_hmac(SECRET, &body));
        loop {
            if let Some(api) = live_hosts.any() {
                let request = signed(&api, &self.path, "push", &id, &body, &signature).try_send();
                if let Ok(Ok(answer)) = tokio::time::timeout(TIMEOUT, request).await
                    && answer.status == 200
                {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
}

fn delivery_id(number: u64) -> String {
    format!("delivery-{number}")
}

impl Chaos {
    /// Checks that each acknowledged webhook was processed, saved, reported and forwarded once. The provider is paused.
    pub async fn check_inbound(&self, reader: &Follower) {
        let db = &self.site.db;
        let open = "SELECT count(*) FROM inbound_webhooks WHERE state IN ('received', 'processing')";
        eventually("every inbound webhook is processed", async || (db.number(open).await == 0).then_some(()))
            .await;
        let sent = self.deliveries.acknowledged();
        let states = "SELECT state || ' ' || count(*) FROM inbound_webhooks GROUP BY state ORDER BY 1";
        assert_eq!(db.texts(states).await, [format!("processed {sent}")]);
        let forwarded = "SELECT count(*) || ' ' || count(DISTINCT headers ->> 'x-github-delivery')
                         FROM outbound_webhook_deliveries WHERE type = 'forward'";
        assert_eq!(db.texts(forwarded).await, [format!("{sent} {sent}")], "webhooks are forwarded once");
        // A report without counts says that a lost attempt may have saved records.
        let reported = "SELECT concat_ws(' ', coalesce(sum(added), 0), coalesce(sum(updated), 0),
                            count(*) FILTER (WHERE added + updated = 0))
                        FROM (
                            SELECT (body::json -> 'responseResults' ->> 'added')::bigint AS added,
                                   (body::json -> 'responseResults' ->> 'updated')::bigint AS updated
                            FROM outbound_webhook_deliveries
                            WHERE type = 'sync' AND body::json ->> 'syncType' = 'WEBHOOK'
                                AND body::json ->> 'model' = 'Note'
                        ) AS reports";
        let reported: Vec<String> = db.texts(reported).await;
        let reported: Vec<u64> =
            reported[0].split(' ').map(|count| count.parse().expect("a number")).collect();
        let [added, updated, uncounted] = reported[..] else { panic!("three numbers: {reported:?}") };
        assert!(
            added <= sent && added + uncounted >= sent && updated == 0,
            "of {sent} saved records, {added} are reported with and at most {uncounted} without counts; updated: {updated}"
        );

        let connection = self.deliveries.connection.through(&self.hosts[0]);
        let notes = connection.all(&[("model", "Note"), ("limit", "500")]).await;
        assert_eq!(notes.len() as u64, sent, "each webhook is saved once");
        self.wait_for_reader(reader, &notes).await;
        let progress = reader.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        assert!(
            (0..sent).all(|number| progress.live().contains_key(&*delivery_id(number))),
            "each acknowledged webhook is saved"
        );
    }
}
