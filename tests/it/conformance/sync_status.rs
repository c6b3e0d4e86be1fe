//! Statements about the status of syncs.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, get};
use crate::support::{Request, Stage, query, save};

const QUERY: (u16, &str) = (400, "invalid_query_params");

const MEMBERS: [(&str, Kind); 13] = [
    ("id", Kind::Uuid),
    ("connection_id", Kind::Text),
    ("name", Kind::Text),
    ("variant", Kind::Text),
    ("type", Kind::Text),
    ("status", Kind::Text),
    ("frequency", Kind::Text),
    ("finishedAt", Kind::Time),
    ("nextScheduledSyncAt", Kind::Time),
    ("latestResult", Kind::Object),
    ("latestExecutionStatus", Kind::Text),
    ("recordCount", Kind::Object),
    ("checkpoint", Kind::Object),
];

#[tokio::test]
async fn sync_status() {
    let stage = Stage::hostile().await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    other.wait_until_idle().await;
    stage.merge_metadata(json!({ "steps": 3, "pause_ms": 0 })).await;
    stage.run("steps").await;
    let mut section = Section::new("Status of syncs");
    members(&mut section, &stage).await;
    states(&mut section, &stage).await;
    selection(&mut section, &stage).await;
    section.finish();
}

fn status(stage: &Stage, parameters: &[(&str, &str)]) -> Request {
    let parameters = [&[("provider_config_key", "hostile")], parameters].concat();
    get(&stage.host, &format!("/sync/status?{}", query(&parameters)))
}

async fn members(section: &mut Section, stage: &Stage) {
    let answer = status(stage, &[("syncs", "steps"), ("connection_id", "customer-1")]);
    let answer = section.returns("`GET /sync/status`", answer, 200).await;
    section.members("The body", &body(&answer), &[("syncs", Kind::List)]);
    let one = body(&answer)["syncs"][0].clone();
    section.only_members("A sync status", &one, &MEMBERS);
    section.equal("`connection_id` is the connection", &one["connection_id"], "customer-1");
    section.equal("`name` is the sync's name", &one["name"], "steps");
    section.equal("`variant` of the default variant is `base`", &one["variant"], "base");
    section.equal("`status` after a successful run is `SUCCESS`", &one["status"], "SUCCESS");
    section.equal(
        "`latestExecutionStatus` after a successful run is `SUCCESS`",
        &one["latestExecutionStatus"],
        "SUCCESS",
    );
    section.equal("`frequency` is the active frequency", &one["frequency"], "every 1 hour");
    section.equal("`checkpoint` has the key `cursor`", &one["checkpoint"], json!({ "cursor": "3" }));
    let result = json!({ "Step": { "added": 3, "updated": 0, "deleted": 0 } });
    section.equal(
        "`latestResult` has the counts of the latest run for each model",
        &one["latestResult"],
        result,
    );
    section.equal(
        "`recordCount` has the number of records of each model",
        &one["recordCount"],
        json!({ "Step": 3 }),
    );
    let time = |name: &str| {
        chrono::DateTime::parse_from_rfc3339(one[name].as_str().unwrap_or_default()).unwrap_or_default()
    };
    let minutes = (time("nextScheduledSyncAt") - time("finishedAt")).num_minutes();
    section.holds(
        "`nextScheduledSyncAt` is the next time of the schedule",
        (55..=61).contains(&minutes),
        &minutes,
    );
    section.holds(
        "`type` is `INITIAL` or `INCREMENTAL`",
        ["INITIAL", "INCREMENTAL"].map(Value::from).contains(&one["type"]),
        &one["type"],
    );
    let bare = body(&status(stage, &[("syncs", "commit-raw"), ("connection_id", "customer-1")]).send().await);
    section.equal("`checkpoint` of a sync without one is null", &bare["syncs"][0]["checkpoint"], Value::Null);
}

async fn states(section: &mut Section, stage: &Stage) {
    stage.commit(json!([save(&json!([{ "id": "a" }]))])).await;
    stage.set_metadata(json!({ "steps": 0, "end": "fail" })).await;
    let failed = stage.run("commit-raw").await;
    section.equal("The status after a failed run is `ERROR`", &failed["status"], "ERROR");
    section.equal(
        "`latestExecutionStatus` after a failed run is `STOPPED`",
        &failed["latestExecutionStatus"],
        "STOPPED",
    );
    section.equal("Records of earlier runs stay", &failed["recordCount"], json!({ "Item": 1 }));
    stage.set_metadata(json!({ "steps": 0, "end": "wait-until-cancelled" })).await;
    let before = failed["finishedAt"].clone();
    stage.trigger("commit-raw").await;
    stage.wait_until_running("commit-raw").await;
    let running = stage.status("commit-raw").await;
    section.equal("The status during a run is `RUNNING`", &running["status"], "RUNNING");
    section.equal(
        "`latestExecutionStatus` during a run is `RUNNING`",
        &running["latestExecutionStatus"],
        "RUNNING",
    );
    let next = &running["nextScheduledSyncAt"];
    section.holds("`nextScheduledSyncAt` is given during a run", next.is_string(), next);
    stage.set_metadata(json!({ "steps": 0 })).await;
    let reset = json!({
        "provider_config_key": "hostile", "connection_id": "customer-1", "syncs": ["commit-raw"],
        "opts": { "reset": true },
    });
    stage.host.post("/sync/trigger", &reset).await.expect(200);
    let after = stage.wait_for_finish_after("commit-raw", before.as_str()).await;
    section.equal("`reset` cancels a run in progress and runs again", &after["status"], "SUCCESS");
    stage.control("pause", "commit-raw").await.expect(200);
    let paused = stage.status("commit-raw").await;
    section.equal("The status of a paused sync is `PAUSED`", &paused["status"], "PAUSED");
    section.equal(
        "`nextScheduledSyncAt` of a paused sync is null",
        &paused["nextScheduledSyncAt"],
        Value::Null,
    );
}

async fn selection(section: &mut Section, stage: &Stage) {
    let names = async |parameters: &[(&str, &str)]| {
        let found = body(&status(stage, parameters).send().await)["syncs"].clone();
        let name = |one: &Value| json!([one["connection_id"], one["name"]]);
        found.as_array().into_iter().flatten().map(name).collect::<Vec<_>>()
    };
    let (first, second) = ("customer-1", "customer-2");
    for (statement, syncs, connection, expected) in [
        ("`*` selects all syncs", "*", Some(first), json!([[first, "commit-raw"], [first, "steps"]])),
        ("A name selects one sync", "steps", Some(first), json!([[first, "steps"]])),
        (
            "Names are separated by commas",
            "steps,commit-raw",
            Some(first),
            json!([[first, "commit-raw"], [first, "steps"]]),
        ),
        ("`name::base` selects the base variant", "steps::base", Some(first), json!([[first, "steps"]])),
        (
            "Without `connection_id`, all connections are selected",
            "steps",
            None,
            json!([[first, "steps"], [second, "steps"]]),
        ),
    ] {
        let mut parameters = vec![("syncs", syncs)];
        parameters.extend(connection.map(|connection| ("connection_id", connection)));
        let mut found = names(&parameters).await;
        found.sort_by_key(Value::to_string);
        section.equal(statement, &json!(found), expected);
    }
    let host = &stage.host;
    let without_key = get(host, "/sync/status?syncs=*");
    section
        .rejects_at("A request without `provider_config_key`", without_key, QUERY, "provider_config_key")
        .await;
    let without_syncs = get(host, "/sync/status?provider_config_key=hostile");
    section.rejects_at("A request without `syncs`", without_syncs, QUERY, "syncs").await;
    section.rejects_at("An empty `syncs`", status(stage, &[("syncs", "")]), QUERY, "syncs").await;
    section.rejects_at("A malformed name", status(stage, &[("syncs", "no name")]), QUERY, "syncs").await;
    let unknown = status(stage, &[("syncs", "*"), ("connection", "x")]);
    section.rejects_at("An unknown parameter", unknown, QUERY, "connection").await;
    let malformed = status(stage, &[("syncs", "*"), ("connection_id", "")]);
    section.rejects_at("An empty `connection_id`", malformed, QUERY, "connection_id").await;
    let unknown = status(stage, &[("syncs", "*"), ("connection_id", "unknown")]);
    section.rejects("An unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = get(host, "/sync/status?provider_config_key=unknown&syncs=*");
    section.rejects("An unknown integration", unknown, 404, "unknown_integration").await;
    section.rejects("An unknown sync", status(stage, &[("syncs", "leaps")]), 404, "unknown_sync").await;
    section
        .rejects("An unknown variant", status(stage, &[("syncs", "steps::second")]), 404, "unknown_variant")
        .await;
}
