//! Invoices: fetches all of them once, and then the ones that the account's events name.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use syncline_sdk::{Error, Paging, Result, Writer, checkpoint, http, run, sync};

#[derive(Serialize, Deserialize)]
struct Invoice {
    id: String,
    /// Seconds since 1970.
    created: i64,
    customer: String,
    customer_email: Option<String>,
    description: Option<String>,
    status: Option<String>,
    currency: String,
    /// Amounts are in the currency's smallest unit.
    subtotal: i64,
    total: i64,
    amount_due: i64,
    amount_paid: i64,
}

/// The checkpoint.
#[derive(Serialize, Deserialize)]
struct Place {
    /// Events since this time are not processed yet. Seconds since 1970.
    cursor: String,
    /// Id of the last saved invoice, while all invoices are being fetched.
    after: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    data: EventData,
}

#[derive(Deserialize)]
struct EventData {
    object: EventObject,
}

#[derive(Deserialize)]
struct EventObject {
    object: String,
    /// An upcoming invoice has none.
    id: Option<String>,
}

/// How long Stripe stores events (30 days), minus one day.
const EVENTS_KEPT_SECONDS: u64 = 29 * 24 * 3_600;

/// How far back events are processed again, because clocks differ and events can be listed late. Fetching an
/// invoice twice does no harm.
const OVERLAP_SECONDS: u64 = 300;

/// Saves all invoices, and then follows the account's events.
#[sync]
pub fn invoices() -> Result {
    let now = run::now_ms() / 1_000;
    let cursor = now.saturating_sub(OVERLAP_SECONDS).to_string();
    match checkpoint::get::<Place>()? {
        None => fetch_all(Place { cursor, after: None }),
        Some(place) if place.since()? + EVENTS_KEPT_SECONDS < now => fetch_all(Place { cursor, after: None }),
        Some(place) if place.after.is_some() => fetch_all(place),
        Some(place) => follow_events(&place, cursor),
    }
}

impl Place {
    fn since(&self) -> Result<u64> {
        let message =
            || format!("the checkpoint's cursor `{}` is not a time in seconds; reset the sync", self.cursor);
        self.cursor.parse().map_err(|_| Error::new("invalid-checkpoint", message()))
    }
}

fn pages() -> Paging {
    Paging::last_id("starting_after").items("/data").more("/has_more")
}

/// Sets a checkpoint after each page, so that an interrupted run is resumed by the next one.
fn fetch_all(mut place: Place) -> Result {
    let mut invoices = Writer::new("Invoice");
    let request = http::get("/v1/invoices").query("limit", 100);
    for page in request.pages::<Invoice>(pages().start(place.after.take())) {
        let page = page?;
        place.after = page.next.clone();
        invoices.save_all(page)?;
        invoices.checkpoint(&place)?;
        if run::cancelled() {
            break;
        }
    }
    invoices.checkpoint(&place)?;
    invoices.finish()?;
    Ok(())
}

/// Fetches the invoices that events name. The copy in an event may be older than the one in another event.
fn follow_events(place: &Place, cursor: String) -> Result {
    let mut invoices = Writer::new("Invoice");
    let mut fetched = BTreeSet::new();
    let events = http::get("/v1/events").query("limit", 100).query("created[gte]", place.since()?);
    for page in events.pages::<Event>(pages()) {
        let changed: Vec<String> = page?
            .into_iter()
            .map(|event| event.data.object)
            .filter(|object| object.object == "invoice")
            .filter_map(|object| object.id)
            .filter(|id| fetched.insert(id.clone()))
            .collect();
        let requests = changed.iter().map(|id| http::get(format!("/v1/invoices/{id}")));
        for (id, answer) in changed.iter().zip(http::send_all(requests)) {
            match answer? {
                gone if gone.status() == 404 => invoices.delete(id)?,
                answer => invoices.save(&answer.error_for_status()?.json::<Invoice>()?)?,
            }
        }
    }
    invoices.checkpoint(&Place { cursor, after: None })?;
    invoices.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use syncline_sdk::serde_json::{Value, json};
    use syncline_sdk::testing::Host;

    use super::*;

    fn invoice(id: &str, status: &str) -> Value {
        json!({
            "id": id, "created": 1, "customer": "cus_1", "customer_email": null, "description": null,
            "status": status, "currency": "eur", "subtotal": 5, "total": 5, "amount_due": 5, "amount_paid": 0,
        })
    }

    fn list(data: &[Value], has_more: bool) -> Value {
        json!({ "data": data, "has_more": has_more })
    }

    fn event(object: Value) -> Value {
        json!({ "id": "evt_1", "data": { "object": object } })
    }

    fn seconds_ago(seconds: u64) -> String {
        (run::now_ms() / 1_000 - seconds).to_string()
    }

    #[test]
    fn a_first_run_saves_all_and_then_follows_events() {
        let host = Host::for_project();
        host.answer("GET /v1/invoices?limit=100", 200, &list(&[invoice("in_1", "open")], true));
        let second = list(&[invoice("in_2", "open")], false);
        host.answer("GET /v1/invoices?limit=100&starting_after=in_1", 200, &second);
        invoices().unwrap();
        assert_eq!(host.records("Invoice").len(), 2);
        assert_eq!(host.checkpoint().unwrap()["after"], Value::Null);

        let since = host.checkpoint().unwrap()["cursor"].as_str().unwrap().to_owned();
        let events = [
            event(json!({ "object": "invoice", "id": "in_2" })),
            event(json!({ "object": "customer", "id": "cus_1" })),
            event(json!({ "object": "invoice", "id": "in_1" })),
            event(json!({ "object": "invoice" })),
            event(json!({ "object": "invoice", "id": "in_2" })),
        ];
        host.answer(&format!("GET /v1/events?limit=100&created[gte]={since}"), 200, &list(&events, false));
        host.answer("GET /v1/invoices/in_1", 404, &json!({}));
        host.answer("GET /v1/invoices/in_2", 200, &invoice("in_2", "paid"));
        invoices().unwrap();
        assert_eq!(host.records("Invoice"), [invoice("in_2", "paid")]);
        assert_eq!(host.requests().len(), 5, "each invoice is fetched once");
    }

    #[test]
    fn an_interrupted_first_run_is_resumed() {
        let host = Host::for_project();
        host.cancel();
        host.answer("GET /v1/invoices?limit=100", 200, &list(&[invoice("in_1", "open")], true));
        invoices().unwrap();
        let place = host.checkpoint().unwrap();
        assert_eq!(place["after"], "in_1");

        let second = list(&[invoice("in_2", "open")], false);
        host.answer("GET /v1/invoices?limit=100&starting_after=in_1", 200, &second);
        invoices().unwrap();
        assert_eq!(host.records("Invoice").len(), 2);
        assert_eq!(host.checkpoint(), Some(json!({ "cursor": place["cursor"], "after": null })));
    }

    #[test]
    fn a_checkpoint_older_than_stored_events_starts_over() {
        let host = Host::for_project();
        host.set_checkpoint(json!({ "cursor": seconds_ago(30 * 24 * 3_600), "after": null }));
        host.answer("GET /v1/invoices?limit=100", 200, &list(&[], false));
        invoices().unwrap();
        assert_eq!(host.requests().len(), 1);
    }

    #[test]
    fn a_failed_fetch_keeps_the_checkpoint() {
        let host = Host::for_project();
        let since = seconds_ago(600);
        host.set_checkpoint(json!({ "cursor": since, "after": null }));
        let events = [event(json!({ "object": "invoice", "id": "in_1" }))];
        host.answer(&format!("GET /v1/events?limit=100&created[gte]={since}"), 200, &list(&events, false));
        host.answer("GET /v1/invoices/in_1", 500, &json!({}));
        assert_eq!(invoices().unwrap_err().code(), "provider-http-error");
        assert_eq!(host.checkpoint().unwrap()["cursor"], since);
    }
}
