//! Credentials that a function may read (`credentials = true`): they are fresh, or the function gets an error that it
//! can handle.

use serde_json::{Value, json};

use crate::support::{Bundle, Connection, Echo, REFRESHED_TOKEN, eventually, text};

const EXPIRED_TOKEN: &str = "planted-token-that-has-expired-19cc";
const REFRESH_TOKEN: &str = "planted-refresh-token-19cc";
const OAUTH2: &str = r#"
auth_mode = "OAUTH2"
authorization_url = "{server}/authorize"
token_url = "{server}/token"
proxy = { base_url = "{server}" }
"#;

/// Creates a connection whose access token has expired and has not been refreshed yet, and a function that may read it.
async fn expired(entry: &str) -> (Echo, Connection) {
    let table = "[integrations.hostile.actions.tell-credentials]";
    let bundle = Bundle::guest("hostile").replace(table, &format!("{table}\ncredentials = true"));
    let echo = Echo::start(entry, bundle).await;
    echo.set_app("planted-client-secret-19cc").await;
    // After a failure, the background waits five minutes before it refreshes again, and readers wait half a minute.
    echo.db
        .execute(
            "CREATE FUNCTION has_failed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 NEW.refresh_failed_at := now() - interval '1 minute'; RETURN NEW;
             END $$;
             CREATE TRIGGER has_failed BEFORE INSERT ON connections FOR EACH ROW EXECUTE FUNCTION has_failed()",
        )
        .await;
    let connection = echo
        .connect(json!({
            "type": "OAUTH2", "access_token": EXPIRED_TOKEN, "refresh_token": REFRESH_TOKEN,
            "expires_at": "2026-01-01T00:00:00Z",
        }))
        .await;
    (echo, connection)
}

fn requests_for_tokens(echo: &Echo) -> usize {
    let requests = echo.server.seen.requests();
    requests.iter().filter(|request| text(&request["target"]).starts_with("/api/token")).count()
}

#[tokio::test]
async fn an_expired_token_is_refreshed_before_a_function_sees_it() {
    let (echo, connection) = expired(OAUTH2).await;
    let seen = connection.action("tell-credentials", &json!(false)).await.expect(200).json();
    assert_eq!((&seen["type"], &seen["access_token"]), (&json!("OAUTH2"), &json!(REFRESHED_TOKEN)));
    assert!(!seen.to_string().contains(REFRESH_TOKEN), "{seen}");
    connection.action("tell-credentials", &json!(false)).await.expect(200);
    assert_eq!(requests_for_tokens(&echo), 1, "a fresh token is not refreshed again");
}

#[tokio::test]
async fn a_function_gets_an_error_when_a_refresh_is_rejected() {
    let (echo, connection) = expired(&OAUTH2.replace("/token\"", "/token-refusal\"")).await;
    let refused = async || {
        let refused = connection.action("tell-credentials", &json!(false)).await;
        assert_eq!(refused.refusal(), (400, "action_script_runtime_error".to_owned()));
        let payload = refused.json()["error"]["payload"].clone();
        assert_eq!(payload["code"], "credentials-unavailable", "{payload}");
        text(&payload["message"]).to_owned()
    };
    let first = refused().await;
    let reason = "the credentials could not be refreshed: the provider rejected the request: invalid_grant";
    assert!(first.starts_with(reason), "{first}");
    assert!(first.ends_with("; try again, or let the end user reconnect"), "{first}");
    let again = refused().await;
    assert!(again.starts_with("the last refresh failed a moment ago"), "{again}");
    assert_eq!(requests_for_tokens(&echo), 1, "the provider gets no second request within the cool-down");
}

#[tokio::test]
async fn a_function_without_the_grant_cannot_read_credentials() {
    let echo = Echo::start(OAUTH2, Bundle::guest("hostile")).await;
    let connection = echo.connect(json!({ "type": "OAUTH2", "access_token": EXPIRED_TOKEN })).await;
    let refused = connection.action("tell-credentials", &json!(false)).await.expect(400);
    let payload = refused.json()["error"]["payload"].clone();
    assert_eq!(payload["code"], "not-allowed", "{payload}");
    assert!(text(&payload["message"]).contains("set `credentials = true`"), "{payload}");
}

#[tokio::test]
async fn granted_credentials_are_masked_in_logs_and_errors() {
    let (echo, connection) = expired(OAUTH2).await;
    connection.action("tell-credentials", &json!(false)).await.expect(200);
    let failed = connection.action("tell-credentials", &json!(true)).await.expect(400).json();
    assert_eq!(failed["error"]["payload"]["access_token"], "***", "{failed}");
    let of_action = "function_name = 'tell-credentials' AND state <> 'running'";
    eventually("the runs are stored", async || {
        (echo.db.number(&format!("SELECT count(*) FROM runs WHERE {of_action}")).await == 2).then_some(())
    })
    .await;
    let of_runs = echo.run_details().await;
    assert!(of_runs.contains("they are {") && of_runs.contains("***"), "{of_runs}");
    for output in [of_runs, Value::to_string(&failed)] {
        assert!(!output.contains(REFRESHED_TOKEN), "{output}");
    }
    assert_eq!(echo.db.tables_with(REFRESHED_TOKEN).await, [""; 0]);
}
