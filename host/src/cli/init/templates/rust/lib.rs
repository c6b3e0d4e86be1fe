//! The @@models@@ of @@Provider@@: a sync that saves what has changed, and an action that reads one.

mod models;

use models::{@@Model@@, @@Model@@Key};
use syncline_sdk::{Paging, Result, Writer, action, checkpoint, http, run, sync};

const LIST: &str = "@@list@@";

/// Saves the @@models@@ that have changed since the last run.
#[sync]
fn @@models@@() -> Result {
    let mut list = http::get(format!("{LIST}@@query_line@@"));
    if let Some(since) = checkpoint::cursor()? {
        list = list.query("@@since@@", since);
    }
    let mut @@models@@ = Writer::new("@@Model@@");
    let mut newest = None;
    // Newest first: what changes meanwhile moves to a page that was read, and nothing else is skipped.
    for page in list.pages::<@@Model@@>(Paging::link()) {
        let page = page?;
        newest = newest.or_else(|| page.first().map(|@@model@@| @@model@@.updated_at.clone()));
        @@models@@.save_all(page)?;
        if run::cancelled() {
            return @@models@@.finish().map(drop);
        }
    }
    if let Some(newest) = newest {
        @@models@@.cursor(&newest);
    }
    @@models@@.finish().map(drop)
}

/// Reads one @@model@@.
#[action]
fn read_@@model@@(wanted: @@Model@@Key) -> Result<@@Model@@> {
    http::get(format!("{LIST}/{}", wanted.@@key@@)).send_ok()?.json()
}

syncline_sdk::export!(@@models@@, read_@@model@@);

#[cfg(test)]
mod tests {
    use syncline_sdk::serde_json::json;
    use syncline_sdk::testing::Host;

    use super::*;

    const LINE: &str = "GET @@list@@@@query_line@@";

    #[test]
    fn every_page_is_saved() {
        let host = Host::new();
        let newest = json!(@@second@@);
        let oldest = json!(@@first@@);
        let link = [("link", "</next>; rel=\"next\"")];
        let first_page = json!([newest]).to_string();
        host.answer_with(LINE, 200, &link, first_page.as_bytes());
        host.answer("GET /next", 200, &json!([oldest]));

        @@models@@().unwrap();

        assert_eq!(host.records("@@Model@@").len(), 2);
        assert_eq!(host.checkpoint(), Some(json!({ "cursor": "2026-01-02T00:00:00Z" })));
    }
}
