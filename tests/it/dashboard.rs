//! The dashboard.

mod accounts;
mod connections;
mod deployments;
mod integrations;
mod keys;
mod overview;
mod pages;
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
