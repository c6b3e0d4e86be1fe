//! The dashboard.

mod accounts;
mod actions;
mod audit_log;
mod connections;
mod dead_letters;
mod deployments;
mod forms;
mod inbound_webhooks;
mod integrations;
mod keys;
mod outbound_webhooks;
mod overview;
mod pages;
mod records;
mod runs;
mod security;
mod settings;
mod syncs;

use crate::support::Person;

/// Opens a page of the environment `dev`, and returns its HTML.
async fn open(person: &Person, path: &str) -> String {
    person.get(&in_environment(path)).await.expect(200).text()
}

/// Submits a form of the environment `dev`. Returns the status and the HTML: of the page that follows if the host
/// accepted the form.
async fn change(person: &Person, path: &str, fields: &[(&str, &str)]) -> (u16, String) {
    let answer = person.submit("/dashboard/profile", &in_environment(path), fields).await;
    let shown = match answer.header("location") {
        Some(next) => person.get(next).await,
        None => answer,
    };
    (shown.status.as_u16(), shown.text())
}

fn in_environment(path: &str) -> String {
    format!("/dashboard/environments/dev/{path}")
}

/// The text that would run as a script if a page did not escape it.
const MARKUP: &str = "<script>alert(1)</script><img src=x onerror=alert(2)>";

/// The addresses in a page's links that begin with `prefix`, in their order.
fn links(page: &str, prefix: &str) -> Vec<String> {
    let links = page.split("href=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    let links = links.map(|(link, _)| link.replace("&amp;", "&"));
    links.filter(|link| link.starts_with(prefix)).collect()
}

/// Checks that a page is small enough for a slow network.
#[track_caller]
fn assert_small(page: &str) {
    assert!(page.len() < 150_000, "the page has {} bytes", page.len());
}
