//! The records of one model of a connection: the list, and one record.

use std::collections::HashMap;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};
use serde_json::value::RawValue;

use super::super::addresses::environment_route;
use super::{breadcrumb, connection_name};
use crate::Dashboard;
use crate::commands::api_call;
use crate::components::{
    Tone, badge, copyable, empty, facts, filter_field, filters, heading, pager, select, snippet, table,
};
use crate::error::PageError;
use crate::form::Fields;
use crate::layout::{Section, page};
use crate::query::{Query, address};
use crate::session::Visit;
use crate::time::{ago, bytes, exact};
use crate::tree::{preview, tree};
use syncline_engine::{
    ActionSet, ConnectionRoute, Content, LastAction, RecordQuery, StoredRecord, StreamKey, cursor,
};
use syncline_types::ids::{ModelName, Variant};

const RECORDS_PER_PAGE: i64 = 50;
const MAX_IDS: usize = 100;

const ACTIONS: [(&str, &str); 4] =
    [("", "any change"), ("added", "added"), ("updated", "updated"), ("deleted", "deleted")];

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("records/model"), get(records))
        .route(environment_route!("records/record"), get(record))
}

async fn records(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Records.scope())?;
    let list = visit.url("records/model");
    let (integration, id) = connection_name(&query)?;
    let (model, variant) = model_name(&query)?;
    let connection = app.connection_cache.get(visit.environment.pk, &integration, &id).await?;
    let wanted = RecordQuery {
        model: model.clone(),
        variant: variant.clone(),
        cursor: query.optional("after").map(str::to_owned),
        modified_since: query.time("modified_after", "Modified after")?,
        actions: actions(query.text("action"))?,
        ids: ids(query.text("ids"))?,
        limit: RECORDS_PER_PAGE,
    };
    let found = app.records.read(&connection, &wanted).await?;
    let next =
        found.stream.zip(found.records.last()).filter(|_| found.has_more).map(|(stream, last)| {
            query.address(&list, "after", Some(&cursor::to_text(stream, last.position)))
        });
    let rows =
        html! { @for record in &found.records { (row(&visit, &connection, &model, &variant, record)) } };
    let title = format!("{model}{}", variant_suffix(&variant));
    let content = html! {
        (breadcrumb(&visit, &connection, Some(model.as_str())))
        (heading(&title, &html! {}))
        p { "The records in the order of their last change, the oldest change first." }
        (filters(&html! {
            @for name in ["integration", "connection", "model", "variant"] {
                input type="hidden" name=(name) value=(query.text(name));
            }
            (select("action", "Last change", &ACTIONS, query.text("action")))
            (filter_field("modified_after", "Modified after (UTC)", "datetime-local", query.text("modified_after")))
            (filter_field("ids", "Ids, separated by commas", "text", query.text("ids")))
        }))
        @if found.records.is_empty() {
            (empty("No record matches", &html! {
                p { "Change the filters. A cursor at the end of the list has no records after it." }
            }))
        } @else {
            (table("Records", &["Id", "Last change", "Modified", "Payload"], &rows))
        }
        (pager(query.first_page(&list, "after").as_deref(), next.as_deref()))
    };
    Ok(page(&app, &visit, Section::Records, &title, &content))
}

fn row(
    visit: &Visit,
    connection: &ConnectionRoute,
    model: &ModelName,
    variant: &Variant,
    record: &StoredRecord,
) -> Markup {
    let id = id_of(record).unwrap_or_default();
    let fields = [
        ("integration", connection.integration_key.as_str()),
        ("connection", connection.connection_id.as_str()),
        ("model", model.as_str()),
        ("variant", variant.as_str()),
        ("id", id.as_str()),
    ];
    html! {
        tr {
            td { a href=(address(&visit.url("records/record"), fields)) { code { (id) } } }
            td { (action_badge(record.last_action)) }
            td { (ago(record.last_modified_at)) }
            td {
                @match &record.content {
                    Content::Payload(payload) => (preview(payload)),
                    Content::Pruned { .. } => (badge(Tone::Neutral, "pruned")),
                }
            }
        }
    }
}

async fn record(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Records.scope())?;
    let (integration, connection_id) = connection_name(&query)?;
    let (model, variant) = model_name(&query)?;
    let connection = app.connection_cache.get(visit.environment.pk, &integration, &connection_id).await?;
    let id = query.raw("id").to_owned();
    let wanted = RecordQuery {
        model: model.clone(),
        variant: variant.clone(),
        cursor: None,
        modified_since: None,
        actions: ActionSet::default(),
        ids: vec![id.clone()],
        limit: 1,
    };
    let found = app.records.read(&connection, &wanted).await?;
    let Some((stream, record)) = found.stream.zip(found.records.first()) else {
        return Err(PageError::NotFound(format!(
            "there is no record `{id}` of the model {model}; it may have been removed"
        )));
    };
    let command = api_call(
        &app.public_url,
        "/records",
        &[("Provider-Config-Key", integration.as_str()), ("Connection-Id", connection_id.as_str())],
        &[
            ("--get --data-urlencode", format!("model={model}")),
            ("--data-urlencode", format!("variant={variant}")),
            ("--data-urlencode", format!("ids={id}")),
        ],
    );
    let content = html! {
        (breadcrumb(&visit, &connection, Some(model.as_str())))
        (heading(&id, &html! {}))
        (facts(&record_facts(stream, record)))
        h2 { "Payload" }
        @match &record.content {
            Content::Payload(payload) => section.card { (tree(payload)) },
            Content::Pruned { .. } => (empty("The payload was pruned", &html! {
                p { "Only the id and the metadata are left. The next change or a full sync restores the payload." }
            })),
        }
        h2 { "Read it through the API" }
        (snippet(&command))
    };
    Ok(page(&app, &visit, Section::Records, &id, &content))
}

fn record_facts(stream: StreamKey, record: &StoredRecord) -> Vec<(&'static str, Markup)> {
    let time = |at| html! { (exact(at)) " UTC" div.muted { (ago(at)) } };
    let mut facts = vec![
        ("Last change", action_badge(record.last_action)),
        ("First seen", time(record.first_seen_at)),
        ("Last modified", time(record.last_modified_at)),
    ];
    facts.extend(record.deleted_at.map(|at| ("Deleted", time(at))));
    facts.extend(record.pruned_at.map(|at| ("Pruned", time(at))));
    if let Content::Payload(payload) = &record.content {
        facts.push(("Size", html! { (bytes(payload.len())) }));
    }
    facts.push(("Cursor", copyable(&cursor::to_text(stream, record.position))));
    facts
}

fn action_badge(action: LastAction) -> Markup {
    match action {
        LastAction::Added => badge(Tone::Good, "added"),
        LastAction::Updated => badge(Tone::Busy, "updated"),
        LastAction::Deleted => badge(Tone::Warning, "deleted"),
    }
}

/// The id of a record. A payload contains it, and its keys can repeat; the last one counts.
fn id_of(record: &StoredRecord) -> Option<String> {
    match &record.content {
        Content::Pruned { external_id } => Some(external_id.clone()),
        Content::Payload(payload) => {
            let members: HashMap<String, &RawValue> = serde_json::from_str(payload).ok()?;
            serde_json::from_str(members.get("id")?.get()).ok()
        }
    }
}

fn model_name(query: &Fields) -> Result<(ModelName, Variant), PageError> {
    let variant = query.parse_optional("variant", "Variant")?.unwrap_or_else(Variant::base);
    Ok((query.parse("model", "Model")?, variant))
}

fn variant_suffix(variant: &Variant) -> String {
    if variant.is_base() { String::new() } else { format!(", variant {variant}") }
}

fn actions(text: &str) -> Result<ActionSet, PageError> {
    let mut actions = ActionSet::default();
    match text {
        "" => {}
        "added" => actions.added = true,
        "updated" => actions.updated = true,
        "deleted" => actions.deleted = true,
        _ => return Err(PageError::invalid("Last change", "choose added, updated or deleted")),
    }
    Ok(actions)
}

/// The ids in a text. An id can contain commas, so the text as a whole counts too.
fn ids(text: &str) -> Result<Vec<String>, PageError> {
    let mut ids: Vec<String> = Vec::new();
    for id in text.split(',').map(str::trim).chain([text]) {
        if !id.is_empty() && !ids.iter().any(|known| known == id) {
            ids.push(id.to_owned());
        }
    }
    if ids.len() > MAX_IDS {
        return Err(PageError::invalid("Ids", format!("at most {MAX_IDS} ids are allowed")));
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_with_a_comma_is_found_too() {
        assert_eq!(ids("").unwrap(), [""; 0]);
        assert_eq!(ids("a").unwrap(), ["a"]);
        assert_eq!(ids("a, b").unwrap(), ["a", "b", "a, b"]);
        assert!(ids(&"x,".repeat(10)).unwrap().len() < 3);
        let many: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        assert!(ids(&many.join(",")).is_err());
    }
}
