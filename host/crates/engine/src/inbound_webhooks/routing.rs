//! Matches the events of a webhook with connections. Pure: the caller provides the known connections.

use serde_json::Value;

use crate::inbound_webhooks::payload::{Payload, stored_headers};
use syncline_providers::webhook::{Route, View, Webhook};
use syncline_store::inbound_webhooks::{MatchedConnection, Subject, Waiting};
use syncline_types::ids::ConnectionPk;

/// The query parameter of a webhook URL that names a connection. It takes precedence over the payload.
const CONNECTION_PARAMETER: &str = "connection_id";
/// Maximum number of identifiers of one event that are looked up.
const MAX_SUBJECTS: usize = 200;

/// One event, with the values by which it is routed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WebhookEvent {
    pub event_type: Option<String>,
    /// The values that each rule finds. The first rule with a known connection applies.
    pub subjects: Vec<Vec<Subject>>,
}

/// The connections that the events of one webhook concern.
#[derive(Debug, Default)]
pub(crate) struct Matched {
    pub connections: Vec<Match>,
    /// The indexes of events without a known connection.
    pub leftover: Vec<i32>,
}

#[derive(Debug)]
pub(crate) struct Match {
    pub addressee: MatchedConnection,
    /// The indexes of the events that concern this connection.
    pub items: Vec<i32>,
}

/// Extracts the events of a stored webhook.
pub(crate) fn events(stored: &Waiting, webhook: &Webhook, payload: &Payload) -> Vec<WebhookEvent> {
    let headers = stored_headers(&stored.headers);
    let event = |json: &Value| {
        let view = View { headers: &headers, query: &stored.query, json };
        let whole = View { json: &payload.json, ..view };
        // The provider's own data counts only if the URL names no connection.
        let subjects = match connection_parameter(&stored.query) {
            Some(connection) => vec![named_by_url(stored, connection)],
            None => webhook.routes.iter().map(|route| subjects(stored, route, &view, &whole)).collect(),
        };
        WebhookEvent { event_type: view.first(&webhook.event_type), subjects }
    };
    payload.events(webhook).into_iter().map(event).collect()
}

fn named_by_url(stored: &Waiting, connection: String) -> Vec<Subject> {
    let named = Some(connection).filter(|value| is_storable(value));
    named.map(|value| subject(stored, "connection_id", value)).into_iter().collect()
}

/// Returns the connection that the webhook's URL names.
pub(crate) fn connection_parameter(query: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(query.as_bytes());
    pairs.find(|(name, _)| name == CONNECTION_PARAMETER).map(|(_, value)| value.into_owned())
}

/// Returns the values that a rule finds in the event. If there are none, searches the whole payload.
fn subjects(stored: &Waiting, route: &Route, event: &View<'_>, whole: &View<'_>) -> Vec<Subject> {
    let mut values = event.texts(&route.value);
    if values.is_empty() {
        values = whole.texts(&route.value);
    }
    values.dedup();
    let extracted = values.into_iter().filter_map(|value| match &route.extract {
        Some(pattern) => pattern.extract(&value).map(str::to_owned),
        None => Some(value),
    });
    let storable = extracted.filter(|value| is_storable(value)).take(MAX_SUBJECTS);
    storable.map(|value| subject(stored, route.connection.as_str(), value)).collect()
}

/// Returns whether a connection can be stored under this value. Other values need no lookup.
fn is_storable(value: &str) -> bool {
    (1..=512).contains(&value.len()) && !value.contains('\0')
}

fn subject(stored: &Waiting, name: &str, value: String) -> Subject {
    Subject { integration: stored.integration, name: name.to_owned(), value }
}

/// Assigns events to connections.
pub(crate) fn match_events<'k>(
    events: &[WebhookEvent],
    known: impl Fn(&Subject) -> &'k Vec<MatchedConnection>,
) -> Matched {
    let mut matched = Matched::default();
    for (number, event) in events.iter().enumerate() {
        let number = number as i32;
        let by_rule = event.subjects.iter().map(|rule| rule.iter().flat_map(&known).collect::<Vec<_>>());
        let Some(addressees) = by_rule.into_iter().find(|addressees| !addressees.is_empty()) else {
            matched.leftover.push(number);
            continue;
        };
        for addressee in addressees {
            matched.add(addressee, number);
        }
    }
    matched
}

impl Matched {
    fn add(&mut self, addressee: &MatchedConnection, number: i32) {
        let is_same = |known: &ConnectionPk| *known == addressee.connection;
        match self.connections.iter_mut().find(|known| is_same(&known.addressee.connection)) {
            Some(known) if known.items.last() == Some(&number) => {}
            Some(known) => known.items.push(number),
            None => self.connections.push(Match { addressee: addressee.clone(), items: vec![number] }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_types::ids::{ConnectionId, IntegrationPk};

    fn event(rules: &[&[&str]]) -> WebhookEvent {
        let subject = |value: &&str| Subject {
            integration: IntegrationPk(1),
            name: "tags.a".to_owned(),
            value: (*value).to_owned(),
        };
        let subjects = rules.iter().map(|rule| rule.iter().map(subject).collect()).collect();
        WebhookEvent { event_type: None, subjects }
    }

    #[test]
    fn each_event_goes_to_the_connections_of_its_first_matching_rule() {
        let addressee = |number: i64| MatchedConnection {
            connection: ConnectionPk(number),
            connection_id: ConnectionId::from_stored(format!("c{number}")),
            webhook_url_override: None,
        };
        let (none, one, both) = (Vec::new(), vec![addressee(1)], vec![addressee(1), addressee(2)]);
        let known = |subject: &Subject| match subject.value.as_str() {
            "one" => &one,
            "both" => &both,
            _ => &none,
        };
        let events =
            [event(&[&["nobody"], &["one"]]), event(&[&["both", "one"]]), event(&[&["nobody"]]), event(&[])];
        let matched = match_events(&events, known);
        let of: Vec<_> = matched
            .connections
            .iter()
            .map(|found| (found.addressee.connection.0, found.items.clone()))
            .collect();
        assert_eq!(of, [(1, vec![0, 1]), (2, vec![1])]);
        assert_eq!(matched.leftover, [2, 3]);
    }
}
