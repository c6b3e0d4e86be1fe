//! Statements about the frequency of one connection's sync.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, post, put, with, without};
use crate::support::{Request, Stage};

const BODY: (u16, &str) = (400, "invalid_body");
const PATH: &str = "/sync/update-connection-frequency";

fn to(frequency: impl Into<Value>) -> Value {
    json!({
        "provider_config_key": "hostile", "connection_id": "customer-1", "sync_name": "steps",
        "frequency": frequency.into(),
    })
}

#[tokio::test]
async fn frequencies() {
    let stage = Stage::hostile().await;
    let mut section = Section::new("Frequencies of syncs");
    let set = |body: &Value| -> Request { put(&stage.host, PATH, body) };
    let answer =
        section.returns("`PUT /sync/update-connection-frequency`", set(&to("every 5 minutes")), 200).await;
    section.only_members("The body", &body(&answer), &[("frequency", Kind::Text)]);
    section.equal("`frequency` is the active frequency", &body(&answer)["frequency"], "every 5 minutes");
    let status = stage.status("steps").await;
    section.equal("The status shows the frequency", &status["frequency"], "every 5 minutes");
    let next =
        chrono::DateTime::parse_from_rfc3339(status["nextScheduledSyncAt"].as_str().unwrap_or_default());
    let seconds = (next.unwrap_or_default().to_utc() - chrono::Utc::now()).num_seconds();
    section.holds("The next run follows the new frequency", (200..=320).contains(&seconds), &seconds);
    section.equal(
        "The frequency of other syncs stays",
        &stage.status("commit-raw").await["frequency"],
        "every 1 hour",
    );

    for (given, active) in [
        ("every 30 seconds", "every 30 seconds"),
        ("every 1 minute", "every 1 minute"),
        ("every 2 hours", "every 2 hours"),
        ("every half hour", "every 30 minutes"),
        ("every quarter hour", "every 15 minutes"),
        ("every half day", "every 12 hours"),
        ("every hour", "every 1 hour"),
        ("every day", "every 1 day"),
        ("every week", "every 7 days"),
        ("every month", "every 30 days"),
        ("30m", "every 30 minutes"),
        ("every 45s", "every 45 seconds"),
        ("2 hrs", "every 2 hours"),
        ("1d", "every 1 day"),
        ("0 6 * * *", "0 6 * * *"),
    ] {
        let answer = set(&to(given)).send().await;
        section.equal(&format!("`{given}` reads back as `{active}`"), &body(&answer)["frequency"], active);
    }
    let answer = section.returns("`frequency: null`", set(&to(Value::Null)), 200).await;
    section.equal("null restores the deployed frequency", &body(&answer)["frequency"], "every 1 hour");
    for frequency in [
        "every 29 seconds",
        "every 5 seconds",
        "sometimes",
        "half hour",
        "",
        "every 32 days",
        "61 * * * *",
        "every -1 hours",
    ] {
        let name = format!("The frequency `{frequency}`");
        section.rejects_at(&name, set(&to(frequency)), BODY, "frequency").await;
    }
    section.equal(
        "A rejected frequency changes nothing",
        &stage.status("steps").await["frequency"],
        "every 1 hour",
    );
    variants(&mut section, &stage).await;
    for (name, body, place) in [
        ("A frequency that is a number", to(5), "frequency"),
        ("A request without `frequency`", without(&to("1h"), "frequency"), "frequency"),
        ("A request without `sync_name`", without(&to("1h"), "sync_name"), "sync_name"),
        ("A request without `connection_id`", without(&to("1h"), "connection_id"), "connection_id"),
        (
            "A request without `provider_config_key`",
            without(&to("1h"), "provider_config_key"),
            "provider_config_key",
        ),
        ("A malformed name", with(&to("1h"), "sync_name", "no name"), "sync_name"),
        ("A malformed variant", with(&to("1h"), "sync_variant", "no name"), "sync_variant"),
        ("An unknown member", with(&to("1h"), "variant", "x"), "variant"),
    ] {
        section.rejects_at(name, set(&body), BODY, place).await;
    }
    for (name, member, value, code) in [
        ("An unknown integration", "provider_config_key", "unknown", "unknown_integration"),
        ("An unknown connection", "connection_id", "unknown", "unknown_connection"),
        ("An unknown sync", "sync_name", "leaps", "unknown_sync"),
        ("An unknown variant", "sync_variant", "third", "unknown_variant"),
    ] {
        section.rejects(name, set(&with(&to("1h"), member, value)), 404, code).await;
    }
    section.finish();
}

async fn variants(section: &mut Section, stage: &Stage) {
    let host = &stage.host;
    let variant = json!({ "provider_config_key": "hostile", "connection_id": "customer-1" });
    post(host, "/sync/steps/variant/second", &variant).send().await.expect(200);
    stage.wait_until_idle().await;
    let of_variant = with(&to("every 5 minutes"), "sync_variant", "second");
    section.returns("`sync_variant` selects a variant", put(host, PATH, &of_variant), 200).await;
    section.equal(
        "The variant has the frequency",
        &stage.status("steps::second").await["frequency"],
        "every 5 minutes",
    );
    section.equal(
        "The base variant keeps its frequency",
        &stage.status("steps").await["frequency"],
        "every 1 hour",
    );
    let base = with(&to("every 10 minutes"), "sync_variant", "base");
    section.returns("`sync_variant: base` selects the base variant", put(host, PATH, &base), 200).await;
    section.equal(
        "The base variant has the frequency",
        &stage.status("steps").await["frequency"],
        "every 10 minutes",
    );
    section.equal(
        "The other variant keeps its frequency",
        &stage.status("steps::second").await["frequency"],
        "every 5 minutes",
    );
}
