//! Webhooks of providers: told from others', stored before they are answered, and processed afterwards.

use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::support::webhook_scene::{
    SECRET, Scene, app, base64_hmac, connect, hex_hmac, integration, options_for, push, set_secret, signed,
    webhook_path,
};
use crate::support::{
    Answer, Api, Bundle, Host, Receiver, Request, SECRET_KEY, TestDatabase, Webhook, eventually, ids_of,
    repository, text,
};

/// As Standard Webhooks wants it.
const STANDARD_SECRET: &str = "whsec_cGxhbnRlZC1zdGFuZGFyZC13ZWJob29rcy1rZXk=";

fn node(script: &str, input: &Value) -> Value {
    let mut node = Command::new("node")
        .arg(repository("tests/node").join(script))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Node.js is installed; `scripts/setup` says how");
    let mut stdin = node.stdin.take().expect("it is a pipe");
    stdin.write_all(input.to_string().as_bytes()).expect("Node.js reads it");
    drop(stdin);
    let output = node.wait_with_output().expect("Node.js ends");
    assert!(output.status.success(), "`npm ci` in tests/node installs what it needs");
    serde_json::from_slice(&output.stdout).expect("it writes JSON")
}

#[tokio::test]
async fn what_vendors_own_libraries_sign_is_taken_and_what_was_changed_is_not() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let form = "application/x-www-form-urlencoded";
    let event = r#"{"id":"evt_1","type":"customer.created","account":"acct_1"}"#;
    for (vendor, provider, credentials, secret, content_type, body) in [
        ("stripe", "stripe-api-key", Value::Null, SECRET, "application/json", event),
        ("github", "github", app(), SECRET, "application/json", event),
        ("openai", "openai", Value::Null, STANDARD_SECRET, "application/json", event),
        ("resend", "resend", Value::Null, STANDARD_SECRET, "application/json", event),
        ("twilio", "twilio", Value::Null, SECRET, form, "From=%2B14158675310&Body=A+b%C3%A9&AccountSid=AC1"),
    ] {
        let path = integration(&host, provider, credentials, Some(secret)).await;
        let url = format!("{}{path}?connection_id=c1", host.base_url());
        let headers = node(
            "sign-webhook.mjs",
            &json!({ "vendor": vendor, "secret": secret, "url": url, "body": body }),
        );
        let send = async |body: &str| {
            let request = host.with_key(None).request("POST", &format!("{path}?connection_id=c1"));
            let headers = headers.as_object().expect("they are an object");
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(name, text(value)));
            request.header("content-type", content_type).bytes(body.to_owned()).send().await
        };
        send(body).await.expect(200);
        let changed = send(&body.replace('1', "2")).await;
        assert_eq!(changed.refusal(), (401, "invalid_webhook_signature".to_owned()), "{vendor}");
        // The same again is no second one; what has no id of its own has its signature.
        send(body).await.expect(200);
        let of_provider = format!(
            "SELECT count(*) FROM received_webhooks r JOIN integrations i ON i.pk = r.integration_pk
             WHERE i.provider = '{provider}'"
        );
        // Neither GitHub nor Twilio was given an id in this request.
        let expected = if matches!(vendor, "github" | "twilio") { 2 } else { 1 };
        assert_eq!(db.number(&of_provider).await, expected, "{vendor}");
    }
}

#[tokio::test]
async fn vendors_own_libraries_and_the_host_take_the_same() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let judged = node("judge-webhooks.mjs", &json!({ "now": chrono::Utc::now().timestamp() }));
    let judged = judged.as_array().expect("it is a list");
    assert_eq!(judged.len(), 6);
    for vendor in judged {
        let provider = text(&vendor["provider"]);
        let credentials = if matches!(provider, "sendgrid" | "razorpay") { Value::Null } else { app() };
        let path = integration(&host, provider, credentials, Some(text(&vendor["secret"]))).await;
        let tried = vendor["tried"].as_array().expect("it is a list");
        assert_eq!(tried.iter().filter(|one| one["is_taken"] == true).count(), 1, "{provider}: {tried:?}");
        for one in tried {
            let request =
                host.with_key(None).request("POST", &path).header("content-type", "application/json");
            let headers = one["headers"].as_object().expect("they are an object");
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(name, text(value)));
            let answer = request.bytes(text(&one["body"]).to_owned()).send().await;
            let expected = if one["is_taken"] == true { 200 } else { 401 };
            assert_eq!(answer.status, expected, "{provider}, {}: {}", one["what"], answer.text());
        }
    }
    assert_eq!(db.number("SELECT count(*) FROM received_webhooks").await, 6);
}

#[tokio::test]
async fn githubs_own_examples_are_saved_at_once_and_forwarded_so_that_the_client_verifies_them() {
    let receiver = Receiver::start().await;
    let allowed = receiver.address();
    let scene = Scene::with(|options| options.variable("SYNCLINE_EGRESS_ALLOW", &allowed)).await;
    scene.db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let examples = node("sign-webhook.mjs", &json!({ "vendor": "github-examples", "secret": SECRET }));
    let examples = examples.as_array().expect("it is a list");
    assert!(examples.len() > 50);
    let path = format!("{}?connection_id=customer-1", scene.url);
    let send = async |(number, example): (usize, &Value)| {
        let (event, body) = (text(&example["name"]), text(&example["body"]));
        let id = format!("delivery-{number}");
        signed(&scene.host, &path, event, &id, body, text(&example["signature"])).send().await.expect(200);
    };
    futures_util::future::join_all(examples.iter().enumerate().map(send)).await;
    let notes = scene.wait_for_notes(examples.len()).await;
    for note in &notes {
        let number: usize = text(&note["id"]).trim_start_matches("delivery-").parse().unwrap();
        let body: Value = serde_json::from_str(text(&examples[number]["body"])).unwrap();
        assert_eq!(note["event"], examples[number]["name"]);
        assert_eq!(note["action"], body["action"]);
        assert_eq!(note["members"], json!(body.as_object().map(serde_json::Map::len)));
    }
    // Beside the end of the connection's first sync, which is told as well.
    let forwarded = eventually("all are forwarded", async || {
        let mut webhooks = receiver.webhooks();
        webhooks.retain(|webhook| webhook.body()["type"] == "forward");
        (webhooks.len() == examples.len()).then_some(webhooks)
    })
    .await;
    let keys = scene.host.command(&scene.db, &["env", "show", "--environment", "dev", "--secrets"]);
    let key =
        keys.split_whitespace().find(|word| word.starts_with("whsec_")).expect("it is shown").to_owned();
    for webhook in &forwarded {
        assert_eq!(webhook.body()["from"], "github-pat");
        assert_eq!(webhook.body()["connectionId"], "customer-1");
        let number: usize =
            webhook.header("x-github-delivery").trim_start_matches("delivery-").parse().unwrap();
        let sent: Value = serde_json::from_str(text(&examples[number]["body"])).unwrap();
        assert_eq!(webhook.body()["payload"], sent);
    }
    let first = &forwarded[0];
    let verified =
        node("verify-webhook.mjs", &json!({ "key": key, "body": first.text, "headers": first.headers }));
    assert_eq!(verified["client"], true, "{verified}");
    assert_eq!(verified["standard"], true, "{verified}");
}

/// What webhooks have told of records that the functions saved.
fn saved(receiver: &Receiver) -> Vec<Value> {
    let bodies = receiver.webhooks().into_iter().map(|webhook| webhook.body());
    let mut told: Vec<Value> = bodies.filter(|body| body["syncType"] == "WEBHOOK").collect();
    told.sort_by_key(|body| text(&body["model"]).to_owned());
    told
}

#[tokio::test]
async fn what_a_function_saves_is_told_once_under_the_name_of_the_models_sync() {
    let receiver = Receiver::start().await;
    let allowed = receiver.address();
    let scene = Scene::with(|options| options.variable("SYNCLINE_EGRESS_ALLOW", &allowed)).await;
    scene.connection.wait_until_idle().await;
    scene.db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let wait_for_saved = async |count: usize| {
        eventually(&format!("{count} saves are told"), async || {
            let told = saved(&receiver);
            (told.len() >= count).then_some(told)
        })
        .await
    };
    let deliver = async |id: &str, body: &Value, state: &str| {
        let taken = scene.deliver("push", id, body).await.expect(200);
        scene.wait_for_state(taken.header("x-syncline-webhook-id").expect("it is told"), state).await;
    };
    deliver("d1", &push("refs/heads/main"), "processed").await;
    let mut told = wait_for_saved(2).await;
    for body in &mut told {
        for time in ["modifiedAfter", "queryTimeStamp"] {
            let since = text(&body[time]).to_owned();
            let found = [("model", text(&body["model"])), ("modified_after", &since)];
            assert_eq!(scene.connection.all(&found).await.len(), 1, "{body}");
            body.as_object_mut().unwrap().remove(time);
        }
    }
    let expected = |sync: &str, model: &str| {
        json!({
            "from": "nango", "type": "sync", "connectionId": "customer-1", "providerConfigKey": "webhooks",
            "syncName": sync, "syncVariant": "base", "syncType": "WEBHOOK", "model": model, "success": true,
            "responseResults": { "added": 1, "updated": 0, "deleted": 0 },
        })
    };
    // Of the pushes no sync knows.
    assert_eq!(told, [expected("nothing", "Note"), expected("pushed", "Push")]);

    // The same push once more is another note, and nothing new of the push.
    deliver("d2", &push("refs/heads/main"), "processed").await;
    let orders = json!({ "repository": "acme/shop", "fails_after": true });
    connect(&scene.host, "customer-1", orders).await;
    deliver("d3", &push("refs/heads/other"), "failed").await;
    let attempts = "SELECT count(*) FROM runs WHERE function_name = 'pushed' AND state = 'error'";
    assert_eq!(scene.db.number(attempts).await, 2);
    let models: Vec<String> =
        wait_for_saved(5).await.iter().map(|body| text(&body["model"]).to_owned()).collect();
    assert_eq!(models, ["Note", "Note", "Note", "Push", "Push"], "what a failed attempt saved is told once");
    let written = "SELECT count(*) FROM webhook_deliveries WHERE body LIKE '%\"WEBHOOK\"%'";
    assert_eq!(scene.db.number(written).await, 5);
}

#[tokio::test]
async fn what_a_killed_host_had_saved_and_not_told_is_told_by_the_next() {
    let receiver = Receiver::start().await;
    let allowed = receiver.address();
    let Scene { connection, url, mut host, db } = Scene::with(|options| {
        options
            .variable("SYNCLINE_EGRESS_ALLOW", &allowed)
            .variable("SYNCLINE_FAILPOINT", "job-returned:1=kill")
    })
    .await;
    connection.wait_until_idle().await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let body = push("refs/heads/main").to_string();
    let signature = format!("sha256={}", hex_hmac(SECRET, &body));
    // A star is for one function alone. The host may be gone before it answers.
    tokio::spawn(signed(&host, &url, "star", "d1", &body, &signature).try_send());
    host.wait().await;
    let next = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &allowed).spawn().await;
    let told = eventually("it is told", async || saved(&receiver).pop()).await;
    assert_eq!((&told["syncName"], &told["model"]), (&json!("nothing"), &json!("Note")), "{told}");
    let since = text(&told["modifiedAfter"]);
    let found = connection.through(&next).all(&[("model", "Note"), ("modified_after", since)]).await;
    assert_eq!(ids_of(&found), ["d1"]);
}

#[tokio::test]
async fn an_event_goes_to_the_connection_that_the_catalogue_finds_and_to_functions_that_subscribe() {
    let scene = Scene::set().await;
    let other = connect(&scene.host, "customer-2", json!({ "repository": "acme/other" })).await;
    scene.deliver("push", "d1", &push("refs/heads/main")).await.expect(200);
    scene.deliver("star", "d2", &push("-")).await.expect(200);
    let notes = scene.wait_for_notes(2).await;
    assert_eq!(ids_of(&notes).len(), 2);
    let pushes = eventually("the push is saved", async || {
        let pushes = scene.connection.all(&[("model", "Push")]).await;
        (!pushes.is_empty()).then_some(pushes)
    })
    .await;
    assert_eq!(ids_of(&pushes), ["refs/heads/main"]);
    assert!(other.all(&[("model", "Note")]).await.is_empty());
}

#[tokio::test]
async fn a_url_that_names_a_connection_is_believed_whatever_the_provider_says() {
    let scene = Scene::set().await;
    let other = connect(&scene.host, "customer-2", json!({ "repository": "acme/other" })).await;
    let body = push("-").to_string();
    let signature = format!("sha256={}", hex_hmac(SECRET, &body));
    let send = async |id: &str, named: &str| {
        let url = format!("{}?connection_id={named}", scene.url);
        let sent = signed(&scene.host, &url, "star", id, &body, &signature).send().await.expect(200);
        sent.header("x-syncline-webhook-id").expect("it is told").to_owned()
    };
    for (id, nobody) in [("d1", "customer-9"), ("d2", ""), ("d3", "%00")] {
        let id = send(id, nobody).await;
        assert_eq!(scene.wait_for_state(&id, "unmatched").await["connections"], 0, "{nobody}");
    }
    let id = send("d4", "customer-2").await;
    scene.wait_for_state(&id, "processed").await;
    assert_eq!(ids_of(&other.all(&[("model", "Note")]).await), ["d4"]);
    assert!(scene.notes().await.is_empty(), "the body names the first connection, and nobody asked it");
}

#[tokio::test]
async fn a_delivery_that_comes_again_is_dropped() {
    let scene = Scene::set().await;
    let body = push("main").to_string();
    let again = (0..8).map(|_| scene.delivery(&scene.host, "push", "d1", &body).send());
    for answer in futures_util::future::join_all(again).await {
        answer.expect(200);
    }
    assert_eq!(scene.stored().await, 1);
    scene.wait_for_notes(1).await;
    assert_eq!(scene.db.number("SELECT count(*) FROM function_jobs").await, 2);
}

#[tokio::test]
async fn a_recorded_delivery_is_dropped_though_it_is_given_another_id() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let now = chrono::Utc::now();
    let id_of = |answer: Answer| answer.expect(200).header("x-syncline-webhook-id").map(str::to_owned);
    let path = integration(&host, "linear", app(), Some(SECRET)).await;
    let send = async |id: &str, millis: i64| {
        let body = format!(r#"{{"type":"Issue","webhookTimestamp":{millis}}}"#);
        let request = host.with_key(None).request("POST", &path).header("linear-delivery", id);
        let request = request.header("linear-signature", &hex_hmac(SECRET, &body));
        id_of(request.bytes(body).send().await)
    };
    let millis = now.timestamp_millis();
    assert!(send("d1", millis).await.is_some());
    assert_eq!(send("d1", millis).await, None, "it comes again");
    assert_eq!(send("d2", millis).await, None, "somebody gave it another id");
    assert_eq!(send("d1", millis + 1).await, None, "the provider has signed it anew");
    assert!(send("d2", millis + 1).await.is_some());
    let path = integration(&host, "mailgun", Value::Null, Some(SECRET)).await;
    let send = async |id: &str, token: &str| {
        let at = now.timestamp().to_string();
        let signature = json!({
            "timestamp": at, "token": token, "signature": hex_hmac(SECRET, &format!("{at}{token}")),
        });
        let body = json!({ "signature": signature, "event-data": { "event": "opened", "id": id } });
        id_of(host.with_key(None).post(&path, &body).await)
    };
    assert!(send("m1", "t1").await.is_some());
    assert_eq!(send("m2", "t1").await, None, "what was signed for another body is used up");
    assert!(send("m2", "t2").await.is_some());
}

#[tokio::test]
async fn what_was_answered_is_not_lost_when_the_host_is_killed() {
    let mut scene = Scene::set().await;
    let bodies: Vec<String> = (0..300).map(|number| push(&format!("b{number}")).to_string()).collect();
    let sender = scene.host.with_key(None);
    let mut sending = tokio::task::JoinSet::new();
    for (number, body) in bodies.iter().enumerate() {
        let signature = format!("sha256={}", hex_hmac(SECRET, body));
        let url = format!("{}{}", sender.base_url(), scene.url);
        let client = reqwest_client();
        let body = body.clone();
        sending.spawn(async move {
            let request = client
                .post(url)
                .header("content-type", "application/json")
                .header("x-github-event", "push")
                .header("x-github-delivery", format!("d{number}"))
                .header("x-hub-signature-256", signature)
                .body(body);
            let is_taken = request.send().await.is_ok_and(|response| response.status() == 200);
            is_taken.then(|| format!("d{number}"))
        });
    }
    let mut taken = Vec::new();
    while let Some(sent) = sending.join_next().await {
        taken.extend(sent.expect("sending does not panic"));
        if taken.len() == 40 {
            scene.host.kill();
        }
    }
    assert!(taken.len() >= 40);
    let second = options_for(&scene.db).spawn().await;
    let connection = scene.connection.through(&second);
    eventually("all that was answered is saved", async || {
        let saved = connection.all(&[("model", "Note")]).await;
        let saved = ids_of(&saved);
        taken.iter().all(|id| saved.contains(&id.as_str())).then_some(())
    })
    .await;
}

/// A client of its own for each request: one that is killed with its host must not be used again.
fn reqwest_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("an HTTP client can be built")
}

#[tokio::test]
async fn two_hosts_process_every_webhook_once() {
    let scene = Scene::set().await;
    let second = options_for(&scene.db).spawn().await;
    let hosts: [&Api; 2] = [&scene.host, &second];
    let send = async |number: usize| {
        let body = push(&format!("b{number}")).to_string();
        let id = format!("d{number}");
        scene.delivery(hosts[number % 2], "push", &id, &body).send().await.expect(200);
    };
    futures_util::future::join_all((0..60).map(send)).await;
    scene.wait_for_notes(60).await;
    let runs = "SELECT count(*) FROM runs WHERE kind = 'webhook' AND function_name = 'note'";
    eventually("every run is written", async || (scene.db.number(runs).await == 60).then_some(())).await;
    let processed = "SELECT count(*) FROM received_webhooks WHERE state = 'processed'";
    eventually("each is processed", async || (scene.db.number(processed).await == 60).then_some(())).await;
}

#[tokio::test]
async fn of_a_delivery_that_comes_to_several_hosts_at_once_one_is_kept() {
    let scene = Scene::set().await;
    let second = options_for(&scene.db).spawn().await;
    let hosts: [&Api; 2] = [&scene.host, &second];
    let body = push("main").to_string();
    let send = async |number: usize| {
        let id = format!("d{}", number % 10);
        let answer = scene.delivery(hosts[number / 10 % 2], "star", &id, &body).send().await.expect(200);
        (id, answer.header("x-syncline-webhook-id").is_some())
    };
    let answers = futures_util::future::join_all((0..60).map(send)).await;
    let mut kept: Vec<&str> =
        answers.iter().filter(|(_, is_new)| *is_new).map(|(id, _)| id.as_str()).collect();
    kept.sort_unstable();
    assert_eq!(kept, ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9"]);
    assert_eq!(scene.stored().await, 10);
    scene.wait_for_notes(10).await;
    assert_eq!(scene.db.number("SELECT count(*) FROM function_jobs").await, 10);
}

#[tokio::test]
async fn a_function_that_fails_is_tried_again_and_what_failed_for_good_can_be_replayed() {
    let scene = Scene::set().await;
    scene.connection.set_metadata(json!({ "repository": "acme/shop", "fails": true })).await;
    let id = scene.deliver("push", "d1", &push("main")).await.expect(200);
    let id = id.header("x-syncline-webhook-id").expect("it is told").to_owned();
    let failed = scene.wait_for_state(&id, "failed").await;
    assert_eq!((&failed["connections"], &failed["functions_failed"]), (&json!(1), &json!(1)));
    let runs = "SELECT count(*) FROM runs WHERE function_name = 'pushed' AND state = 'error'";
    assert_eq!(scene.db.number(runs).await, 2, "once more than at first");
    let functions: Vec<_> =
        failed["functions"].as_array().unwrap().iter().map(|job| text(&job["state"])).collect();
    assert!(functions.contains(&"success") && functions.contains(&"error"), "{functions:?}");
    assert_eq!(failed["body"], push("main"));
    scene.connection.set_metadata(json!({ "repository": "acme/shop" })).await;
    scene.host.post(&format!("/webhooks/received/{id}/replay"), &json!({})).await.expect(202);
    let processed = scene.wait_for_state(&id, "processed").await;
    assert_eq!(processed["replays"], 1);
    let jobs = |webhook: &Value| -> Vec<String> {
        let functions = webhook["functions"].as_array().unwrap().iter();
        functions.map(|job| text(&job["job_id"]).to_owned()).collect()
    };
    assert_eq!(jobs(&processed), jobs(&failed), "a run's id stays the same");
    // What was saved at the first time is not told again as a change.
    let note = scene.notes().await.remove(0);
    assert_eq!(note["_service_metadata"]["last_action"], "ADDED");
}

#[tokio::test]
async fn what_is_about_nobody_yet_can_be_replayed_when_the_connection_is_there() {
    let scene = Scene::set().await;
    let body = json!({ "repository": { "full_name": "acme/later" } });
    scene.deliver("star", "d1", &body).await.expect(200);
    let list = || scene.host.get("/webhooks/received?state=unmatched&type=star&provider_config_key=webhooks");
    eventually("it is unmatched", async || {
        let listed = list().await.expect(200).json();
        (listed["webhooks"].as_array().is_some_and(|all| all.len() == 1)).then_some(())
    })
    .await;
    let later = connect(&scene.host, "customer-2", json!({ "repository": "acme/later" })).await;
    let replayed =
        scene.host.post("/webhooks/received/replay", &json!({ "since": "2026-01-01T00:00:00Z" })).await;
    assert_eq!(replayed.expect(202).json(), json!({ "count": 1 }));
    eventually("it is saved", async || {
        let notes = later.all(&[("model", "Note")]).await;
        (ids_of(&notes) == ["d1"]).then_some(())
    })
    .await;
    assert!(list().await.expect(200).json()["webhooks"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn a_function_that_another_host_was_given_a_moment_ago_is_told_of_what_comes_in() {
    let scene = Scene::set().await;
    let note = "[integrations.webhooks.webhooks.note]\nmodels = [\"Note\"]\n";
    // From here on the host remembers a deployment without it.
    scene.host.deploy(&Bundle::guest("webhooks").replace(note, "")).await;
    scene.db.switch_to_first_versions().await;
    scene.deliver("star", "d1", &push("-")).await.expect(200);
    scene.wait_for_notes(1).await;
}

#[tokio::test]
async fn the_command_line_lists_shows_and_replays() {
    let scene = Scene::set().await;
    let later = json!({ "ref": "main", "repository": { "full_name": "acme/later" } });
    let mut ids = Vec::new();
    for (event, id, body, state) in [
        ("star", "d1", &push("-"), "processed"),
        ("star", "d2", &later, "unmatched"),
        ("push", "d3", &later, "unmatched"),
    ] {
        let answer = scene.deliver(event, id, body).await.expect(200);
        ids.push(answer.header("x-syncline-webhook-id").expect("it is told").to_owned());
        scene.wait_for_state(&ids[ids.len() - 1], state).await;
    }
    let access = ["--url", scene.host.base_url(), "--secret-key", SECRET_KEY];
    let run =
        |arguments: &[&str]| scene.host.command(&scene.db, &[&["webhooks"], arguments, &access].concat());
    let listed = run(&["received"]);
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, [&ids[2], &ids[1], &ids[0]], "the newest first");
    let filter = ["--state", "unmatched", "--type", "star", "--integration", "webhooks"];
    let listed = run(&[&["received"], &filter[..]].concat());
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.starts_with(&ids[1]) && listed.contains("star  connections: 0"), "{listed}");
    assert_eq!(run(&["received", "--since", "2999-01-01T00:00:00Z"]), "");
    let as_json: Value = serde_json::from_str(&run(&["received", "--json", "--limit", "1"])).unwrap();
    assert_eq!((as_json[0]["delivery_id"].as_str(), as_json[1].as_object()), (Some("d3"), None));
    let shown: Value = serde_json::from_str(&run(&["received", &ids[1]])).unwrap();
    assert_eq!((&shown["body"], &shown["state"]), (&later, &json!("unmatched")));

    scene.connection.set_metadata(json!({ "repository": "acme/later" })).await;
    assert_eq!(run(&["replay", &ids[1]]), format!("webhook {} is processed again\n", ids[1]));
    scene.wait_for_state(&ids[1], "processed").await;
    let since =
        ["replay", "--since", "2020-01-01T00:00:00Z", "--state", "unmatched", "--integration", "webhooks"];
    assert_eq!(run(&since), "1 webhooks are processed again\n");
    scene.wait_for_state(&ids[2], "processed").await;
    assert_eq!(ids_of(&scene.wait_for_notes(3).await), ["d1", "d2", "d3"]);
    let nil = uuid::Uuid::nil().to_string();
    let unknown = scene.db.command(&[&["webhooks", "replay", &nil], &access[..]].concat()).refuse();
    assert!(unknown.contains("unknown_webhook") || unknown.contains(&nil), "{unknown}");
}

#[tokio::test]
async fn what_was_kept_for_long_enough_goes_and_what_is_not_over_stays() {
    let scene = Scene::set().await;
    let deliver = async |id: &str| {
        let answer = scene.deliver("star", id, &push("-")).await.expect(200);
        answer.header("x-syncline-webhook-id").expect("it is new").to_owned()
    };
    for id in ["old", "unmatched", "failed", "processing", "younger", "new", "orphan"] {
        let stored = deliver(id).await;
        scene.wait_for_state(&stored, "processed").await;
    }
    let change = async |id: &str, change: &str| {
        scene.db.execute(&format!("UPDATE received_webhooks SET {change} WHERE delivery_id = '{id}'")).await;
    };
    // An id has the time in it at which it was made.
    let id_of_age = |days: u64| {
        let then = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 24 * 3600);
        let then = then.duration_since(std::time::UNIX_EPOCH).unwrap();
        uuid::Uuid::new_v7(uuid::Timestamp::from_unix(uuid::NoContext, then.as_secs(), 0))
    };
    for (id, days) in [("old", 4), ("unmatched", 4), ("failed", 4), ("processing", 4), ("younger", 2)] {
        change(id, &format!("id = '{}'", id_of_age(days))).await;
    }
    change("unmatched", "state = 'unmatched'").await;
    change("failed", "state = 'failed'").await;
    change("processing", "state = 'processing', jobs_left = 1").await;
    change("orphan", "integration_pk = 0").await;
    let kept = "SELECT delivery_id FROM received_webhooks ORDER BY delivery_id";
    assert_eq!(scene.db.texts(kept).await.len(), 7);
    let _second =
        options_for(&scene.db).variable("SYNCLINE_RECEIVED_WEBHOOK_RETENTION_DAYS", "3").spawn().await;
    eventually("the oldest and the orphan are gone", async || {
        (scene.db.texts(kept).await == ["new", "processing", "younger"]).then_some(())
    })
    .await;
    // Nothing is left that a repetition could be known by.
    deliver("old").await;
}

#[tokio::test]
async fn lists_go_page_by_page_and_refuse_what_they_do_not_know() {
    let scene = Scene::set().await;
    for number in 0..5 {
        scene.deliver("star", &format!("d{number}"), &push("-")).await.expect(200);
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    for _ in 0..3 {
        let page = scene.host.get(&format!("/webhooks/received?limit=2{cursor}")).await.expect(200).json();
        let webhooks = page["webhooks"].as_array().unwrap();
        seen.extend(webhooks.iter().map(|webhook| text(&webhook["delivery_id"]).to_owned()));
        cursor = page["next_cursor"].as_str().map(|next| format!("&cursor={next}")).unwrap_or_default();
    }
    assert_eq!(seen, ["d4", "d3", "d2", "d1", "d0"]);
    assert_eq!(cursor, "");
    for (query, code) in [
        ("state=odd", "invalid_query_params"),
        ("cursor=odd", "invalid_cursor"),
        ("provider_config_key=odd", "unknown_integration"),
        ("odd=1", "invalid_query_params"),
    ] {
        let refused = scene.host.get(&format!("/webhooks/received?{query}")).await;
        assert_eq!(refused.refusal().1, code, "{query}");
    }
    let unknown = format!("/webhooks/received/{}", uuid::Uuid::nil());
    assert_eq!(scene.host.get(&unknown).await.refusal(), (404, "unknown_webhook".to_owned()));
    let reader = scene.host.create_key(&scene.db, "reader", "read-only");
    let reader = scene.host.with_key(Some(reader.as_str()));
    let replay = reader.post("/webhooks/received/replay", &json!({ "since": "2026-01-01T00:00:00Z" })).await;
    assert_eq!(replay.refusal(), (403, "forbidden".to_owned()));
}

#[tokio::test]
async fn what_is_bad_is_refused_and_leaves_nothing() {
    let scene = Scene::with(|options| options.variable("SYNCLINE_WEBHOOK_INTAKE_MAX_BYTES", "65536")).await;
    let host = &scene.host;
    let body = push("main").to_string();
    let right = format!("sha256={}", hex_hmac(SECRET, &body));
    let refusal = async |request: Request| request.send().await.refusal();
    let of = |status: u16, code: &str| (status, code.to_owned());
    let forged = signed(host, &scene.url, "push", "d", &body, &format!("sha256={}", "0".repeat(64)));
    assert_eq!(refusal(forged).await, of(401, "invalid_webhook_signature"));
    let unsigned = host.with_key(None).request("POST", &scene.url).json(&push("main"));
    assert_eq!(refusal(unsigned).await, of(401, "missing_webhook_signature"));
    let broken = scene.delivery(host, "push", "d", "{\"a\":");
    assert_eq!(refusal(broken).await, of(400, "invalid_json"));
    let compressed = signed(host, &scene.url, "push", "d", &body, &right).header("content-encoding", "gzip");
    assert_eq!(refusal(compressed).await, of(415, "invalid_content_type"));
    let large = scene.delivery(host, "push", "d", &format!("\"{}\"", "a".repeat(70_000)));
    assert_eq!(refusal(large).await, of(413, "payload_too_large"));
    let deep = scene.delivery(host, "push", "d", &"[".repeat(60_000));
    assert_eq!(refusal(deep).await, of(400, "invalid_json"));
    let elsewhere = scene.url.replace("webhooks", "odd");
    let elsewhere = signed(host, &elsewhere, "push", "d", &body, &right);
    assert_eq!(refusal(elsewhere).await, of(404, "unknown_integration"));
    let nowhere = format!("/webhook/{}/webhooks", uuid::Uuid::nil());
    assert_eq!(
        refusal(signed(host, &nowhere, "push", "d", &body, &right)).await,
        of(404, "unknown_environment")
    );
    let odd = signed(host, "/webhook/odd/webhooks", "push", "d", &body, &right);
    assert_eq!(refusal(odd).await, of(400, "invalid_uri_params"));
    assert_eq!(refusal(host.with_key(None).request("GET", &scene.url)).await, of(400, "unknown_handshake"));
    let forgotten = integration(host, "gitlab-pat", Value::Null, None).await;
    let forgotten =
        host.with_key(None).request("POST", &forgotten).header("x-gitlab-token", "x").json(&json!({}));
    assert_eq!(refusal(forgotten).await, of(503, "webhook_secret_missing"));
    assert_eq!(scene.stored().await, 0);
}

#[tokio::test]
async fn a_signature_is_good_for_a_few_minutes() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let path = integration(&host, "stripe-api-key", Value::Null, Some(SECRET)).await;
    let send = async |age_seconds: i64| {
        let (body, at) = (r#"{"id":"evt_1"}"#, chrono::Utc::now().timestamp() - age_seconds);
        let header = format!("t={at},v1={}", hex_hmac(SECRET, &format!("{at}.{body}")));
        let request = host.with_key(None).request("POST", &path).header("stripe-signature", &header);
        request.bytes(body).send().await
    };
    send(240).await.expect(200);
    assert_eq!(send(420).await.refusal(), (401, "expired_webhook_signature".to_owned()));
    assert_eq!(send(-420).await.refusal(), (401, "expired_webhook_signature".to_owned()));
}

#[tokio::test]
async fn a_long_webhook_is_taken_wherever_its_signature_or_its_time_stands() {
    let db = TestDatabase::create().await;
    let host = options_for(&db).spawn().await;
    let filler = "x".repeat(300_000);
    let now = chrono::Utc::now().timestamp();
    let send = async |path: &str, header: Option<(&str, &str)>, body: &Value| {
        let request = host.with_key(None).request("POST", path);
        let request = header.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        request.json(body).send().await
    };
    let wrong = |code: &str| (401, code.to_owned());
    let path = integration(&host, "linear", app(), Some(SECRET)).await;
    for (age_seconds, refused) in [(0, None), (90, Some("expired_webhook_signature"))] {
        let body = json!({ "filler": filler, "webhookTimestamp": (now - age_seconds) * 1000 });
        let signature = hex_hmac(SECRET, &body.to_string());
        let answer = send(&path, Some(("linear-signature", &signature)), &body).await;
        match refused {
            Some(code) => assert_eq!(answer.refusal(), wrong(code)),
            None => drop(answer.expect(200)),
        }
    }
    let path = integration(&host, "mailgun", Value::Null, Some(SECRET)).await;
    for (token, refused) in [("t1", false), ("t2", true)] {
        let signature = json!({
            "timestamp": now.to_string(), "token": token, "signature": hex_hmac(SECRET, &format!("{now}t1")),
        });
        let answer = send(&path, None, &json!({ "filler": filler, "signature": signature })).await;
        if refused {
            assert_eq!(answer.refusal(), wrong("invalid_webhook_signature"));
        } else {
            answer.expect(200);
        }
    }
    let figma = integration(&host, "figma", app(), Some(SECRET)).await;
    let microsoft = integration(&host, "microsoft", app(), Some(SECRET)).await;
    let passcode = |secret: &str| json!({ "filler": filler, "passcode": secret });
    let state = |secret: &str| json!({ "value": [{ "clientState": SECRET, "resource": filler }, { "clientState": secret }] });
    send(&figma, None, &passcode(SECRET)).await.expect(200);
    send(&microsoft, None, &state(SECRET)).await.expect(200);
    for (path, body) in [(&figma, passcode("odd")), (&microsoft, state("odd"))] {
        assert_eq!(send(path, None, &body).await.refusal(), wrong("invalid_webhook_signature"));
    }
    assert_eq!(db.number("SELECT count(*) FROM received_webhooks").await, 4);
}

#[tokio::test]
async fn providers_that_try_the_url_out_are_answered() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let open = host.with_key(None);
    let slack = integration(&host, "slack", app(), Some(SECRET)).await;
    let challenge = json!({ "type": "url_verification", "challenge": "c1", "token": "t" });
    let answer = open.post(&slack, &challenge).await.expect(200);
    assert_eq!(answer.json(), json!({ "challenge": "c1" }));
    let microsoft = integration(&host, "microsoft", app(), Some(SECRET)).await;
    let answer =
        open.request("POST", &format!("{microsoft}?validationToken=a%3Cb%3E+c")).send().await.expect(200);
    assert_eq!(
        (answer.text(), answer.header("content-type")),
        ("a<b> c".into(), Some("text/plain; charset=utf-8"))
    );
    assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    let zoom = integration(&host, "zoom", app(), Some(SECRET)).await;
    let token = json!({ "event": "endpoint.url_validation", "payload": { "plainToken": "abc" } });
    let answer = open.post(&zoom, &token).await.expect(200).json();
    assert_eq!(answer, json!({ "plainToken": "abc", "encryptedToken": hex_hmac(SECRET, "abc") }));
    let trello = integration(&host, "asana", app(), Some(SECRET)).await;
    open.request("HEAD", &trello).send().await.expect(200);
    let answer = open.request("POST", &trello).header("x-hook-secret", "s1").send().await.expect(200);
    assert_eq!(answer.header("x-hook-secret"), Some("s1"));
    assert_eq!(db.number("SELECT count(*) FROM received_webhooks").await, 0);
    // Notion's first request brings what signs all others: it is for whoever may read webhooks to see.
    let notion = integration(&host, "notion", app(), None).await;
    open.post(&notion, &json!({ "verification_token": "secret_notion" })).await.expect(200);
    let listed = host.get("/webhooks/received?provider_config_key=notion").await.expect(200).json();
    let id = text(&listed["webhooks"][0]["id"]);
    let shown = host.get(&format!("/webhooks/received/{id}")).await.expect(200).json();
    assert_eq!(shown["body"], json!({ "verification_token": "secret_notion" }));
    assert_eq!(shown["state"], "handshake");
}

#[tokio::test]
async fn what_anybody_could_have_sent_to_try_the_url_out_is_kept_and_nothing_is_done_with_it() {
    const KEPT: usize = 10;
    let receiver = Receiver::start().await;
    let db = TestDatabase::create().await;
    let host = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address()).spawn().await;
    let made = json!({ "provider": "notion", "unique_key": "webhooks", "credentials": app() });
    host.post("/integrations", &made).await.expect(200);
    host.deploy(&Bundle::guest("webhooks").replace("\"github-pat\"", "\"notion\"")).await;
    let connection = json!({
        "provider_config_key": "webhooks", "connection_id": "c1", "metadata": { "workspace_id": "w1" },
        "credentials": { "type": "OAUTH2", "access_token": "planted-token" },
    });
    host.post("/connections", &connection).await.expect(201);
    let path = webhook_path(&host, "webhooks").await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    db.execute("DELETE FROM webhook_deliveries").await;
    let open = host.with_key(None);
    for number in 0..KEPT + 3 {
        let token = format!("secret_{number}");
        let forged = json!({ "verification_token": token, "workspace_id": "w1", "type": "x", "id": "e1" });
        let taken = open.post(&format!("{path}?connection_id=c1"), &forged).await.expect(200);
        assert_eq!(taken.header("x-syncline-webhook-id"), None);
    }
    let long = json!({ "verification_token": "secret_long", "filler": "x".repeat(70_000) });
    assert_eq!(open.post(&path, &long).await.refusal(), (503, "webhook_secret_missing".to_owned()));
    let listed = host.get("/webhooks/received?state=handshake").await.expect(200).json();
    let ids: Vec<&str> =
        listed["webhooks"].as_array().expect("a list").iter().map(|one| text(&one["id"])).collect();
    assert_eq!(ids.len(), KEPT, "the newest");
    let replay = host.post(&format!("/webhooks/received/{}/replay", ids[0]), &json!({})).await;
    assert_eq!(replay.refusal(), (409, "webhook_in_flight".to_owned()));
    let all = json!({ "since": "2026-01-01T00:00:00Z", "state": "handshake" });
    assert_eq!(host.post("/webhooks/received/replay", &all).await.refusal().0, 400);
    // What comes afterwards and is signed is processed, under an id that a stranger had named before.
    set_secret(&host, "webhooks", SECRET).await;
    let body = r#"{"id":"e1","type":"page.created","workspace_id":"w1"}"#;
    let signature = format!("sha256={}", hex_hmac(SECRET, body));
    let request = open.request("POST", &format!("{path}?connection_id=c1"));
    let request = request.header("x-notion-signature", &signature).header("content-type", "application/json");
    request.bytes(body).send().await.expect(200);
    let told = eventually("it is forwarded", async || {
        let told = receiver.webhooks().into_iter().map(|told| told.body());
        told.into_iter().find(|told| told["type"] == "forward")
    })
    .await;
    assert_eq!(told["payload"]["id"], "e1");
    assert!(receiver.webhooks().iter().all(|told| !told.text.contains("verification_token")));
    let jobs = db.number("SELECT count(*) FROM function_jobs WHERE kind = 'webhook'").await;
    assert_eq!(jobs, 1, "of the one that was signed");
    let kept = db.texts("SELECT DISTINCT state FROM received_webhooks WHERE delivery_id IS NULL").await;
    assert_eq!(kept, ["handshake"]);
}

#[tokio::test]
async fn what_a_shop_tells_within_one_second_is_kept_though_it_calls_all_of_it_the_same() {
    let db = TestDatabase::create().await;
    let host = options_for(&db).spawn().await;
    let path = integration(&host, "woocommerce", Value::Null, None).await;
    let connection = json!({
        "provider_config_key": "woocommerce", "connection_id": "c1", "metadata": { "webhook_secret": SECRET },
        "credentials": { "type": "BASIC", "username": "ck_1", "password": "planted-password" },
    });
    host.post("/connections", &connection).await.expect(201);
    let path = format!("{path}?connection_id=c1");
    let open = host.with_key(None);
    let ping = open.request("POST", &path).header("content-type", "application/x-www-form-urlencoded");
    ping.bytes("webhook_id=7").send().await.expect(200);
    assert_eq!(db.number("SELECT count(*) FROM received_webhooks").await, 0);
    let send = async |body: &str, signature: &str| {
        let request = open.request("POST", &path).header("content-type", "application/json");
        let request = request.header("x-wc-webhook-topic", "order.updated");
        let request = request.header("x-wc-webhook-delivery-id", "27fcde6d5ed88139d07a62e0aa86a11c");
        request.header("x-wc-webhook-signature", signature).bytes(body.to_owned()).send().await
    };
    for number in [1, 2] {
        let body = format!("{{\"id\":{number},\"status\":\"processing\"}}");
        send(&body, &base64_hmac(SECRET, &body)).await.expect(200);
        let forged = send(&body, &base64_hmac("another", &body)).await;
        assert_eq!(forged.refusal(), (401, "invalid_webhook_signature".to_owned()));
    }
    let of = "SELECT state || connections || event_type FROM received_webhooks";
    eventually("both have found their connection", async || {
        (db.texts(of).await == ["processed1order.updated", "processed1order.updated"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn each_connection_is_told_its_own_events_of_a_list() {
    let receiver = Receiver::start().await;
    let db = TestDatabase::create().await;
    let host = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address()).spawn().await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let path = integration(&host, "xero", app(), Some(SECRET)).await;
    let tenant = |number: u32| format!("00000000-0000-4000-8000-00000000000{number}");
    for number in [1, 2] {
        let tenant = tenant(number);
        let body = json!({
            "provider_config_key": "xero", "connection_id": format!("t{number}"),
            "credentials": { "type": "OAUTH2", "access_token": "planted-token" },
            "connection_config": { "tenant_id": tenant },
        });
        host.post("/connections", &body).await.expect(201);
    }
    db.execute("DELETE FROM webhook_deliveries").await;
    let event = |of: u32, number: u32| json!({ "tenantId": tenant(of), "resourceId": number });
    let events = json!({ "events": [event(1, 1), event(2, 2), event(1, 3), event(9, 4)], "entropy": "e" });
    let body = events.to_string();
    let signature = base64_hmac(SECRET, &body);
    let request = host.with_key(None).request("POST", &path).header("x-xero-signature", &signature);
    request.header("content-type", "application/json").bytes(body).send().await.expect(200);
    let is_forward = |webhook: &Value| webhook["type"] == "forward" || webhook["entropy"] == "e";
    let told = eventually("all three parts are forwarded", async || {
        let webhooks = receiver.webhooks();
        let told: Vec<Value> = webhooks.iter().map(Webhook::body).filter(is_forward).collect();
        (told.len() == 3).then_some(told)
    })
    .await;
    let of = |connection: &str| {
        told.iter()
            .find(|body| body["connectionId"] == connection)
            .map(|body| body["payload"]["events"].clone())
    };
    assert_eq!(of("t1"), Some(json!([event(1, 1), event(1, 3)])));
    assert_eq!(of("t2"), Some(json!([event(2, 2)])));
    let unwrapped =
        told.iter().find(|body| body.get("type").is_none()).expect("what is about nobody is told as it is");
    assert_eq!(unwrapped["events"], json!([event(9, 4)]));
}

#[tokio::test]
async fn what_belongs_to_what_was_deleted_ends() {
    let scene = Scene::set().await;
    let id = scene.deliver("star", "d1", &push("-")).await.expect(200);
    let id = id.header("x-syncline-webhook-id").expect("it is told").to_owned();
    scene.wait_for_state(&id, "processed").await;
    scene.host.delete("/connections/customer-1?provider_config_key=webhooks").await.expect(200);
    scene.host.post(&format!("/webhooks/received/{id}/replay"), &json!({})).await.expect(202);
    scene.wait_for_state(&id, "unmatched").await;
    scene.host.delete("/integrations/webhooks").await.expect(200);
    let gone = scene.deliver("star", "d2", &push("-")).await;
    assert_eq!(gone.refusal(), (404, "unknown_integration".to_owned()));
    assert_eq!(scene.host.get("/webhooks/received").await.expect(200).json()["webhooks"], json!([]));
}

#[tokio::test]
async fn a_webhook_may_have_a_secret_of_its_connection() {
    let db = TestDatabase::create().await;
    let host = options_for(&db).spawn().await;
    let path = integration(&host, "clickup", app(), None).await;
    for (id, secret) in [("c1", "planted-one"), ("c2", "planted-two")] {
        let body = json!({
            "provider_config_key": "clickup", "connection_id": id, "metadata": { "webhook_secret": secret },
            "credentials": { "type": "OAUTH2", "access_token": "planted-token" },
        });
        host.post("/connections", &body).await.expect(201);
    }
    let body = r#"{"event":"taskCreated","webhook_id":"w1"}"#;
    let send = async |query: &str, secret: &str| {
        let request = host.with_key(None).request("POST", &format!("{path}{query}"));
        request.header("x-signature", &hex_hmac(secret, body)).bytes(body).send().await
    };
    send("?connection_id=c1", "planted-one").await.expect(200);
    send("?connection_id=c2", "planted-two").await.expect(200);
    let others = send("?connection_id=c1", "planted-two").await;
    assert_eq!(others.refusal(), (401, "invalid_webhook_signature".to_owned()));
    let nobodys = send("", "planted-one").await;
    assert_eq!(nobodys.refusal(), (503, "webhook_secret_missing".to_owned()));
    let of = "SELECT state || connections FROM received_webhooks";
    eventually("both have found their connection", async || {
        (db.texts(of).await == ["processed1", "processed1"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn secrets_that_requests_carry_are_neither_kept_nor_forwarded() {
    let receiver = Receiver::start().await;
    let db = TestDatabase::create().await;
    let host = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &receiver.address()).spawn().await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let path = integration(&host, "gitlab-pat", Value::Null, Some(SECRET)).await;
    let request = host.with_key(None).request("POST", &path).header("x-gitlab-token", SECRET);
    let request = request.header("authorization", "Basic planted").header("x-gitlab-event", "Push Hook");
    request.header("cookie", "a=planted").json(&json!({ "object_kind": "push" })).send().await.expect(200);
    let told = receiver.wait_for(1).await.remove(0);
    assert_eq!(told.header("x-gitlab-event"), "Push Hook");
    assert!(!format!("{:?}", told.headers).contains("planted"), "{:?}", told.headers);
    for (provider, body) in [
        ("figma", json!({ "event_type": "FILE_UPDATE", "passcode": SECRET, "retries": 1.00 })),
        (
            "microsoft",
            json!({ "value": [{ "clientState": SECRET, "id": 1 }, { "clientState": SECRET, "id": 2 }] }),
        ),
    ] {
        let path = integration(&host, provider, app(), Some(SECRET)).await;
        let taken = host.with_key(None).request("POST", &path).json(&body).send().await.expect(200);
        let id = taken.header("x-syncline-webhook-id").expect("it is told");
        let emptied: Value = serde_json::from_str(&body.to_string().replace(SECRET, "")).expect("it is JSON");
        let shown = host.get(&format!("/webhooks/received/{id}")).await.expect(200).json();
        assert_eq!(shown["body"], emptied);
        eventually("it is forwarded", async || {
            receiver.webhooks().into_iter().find(|told| told.body() == emptied)
        })
        .await;
    }
    assert!(receiver.webhooks().iter().all(|told| !told.text.contains("planted")));
    let kept = "SELECT headers::text || query || convert_from(body, 'UTF8') FROM received_webhooks";
    let kept = db.texts(kept).await;
    assert_eq!(kept.len(), 3);
    assert!(kept.iter().all(|kept| !kept.contains("planted")), "{kept:?}");
}

#[tokio::test]
async fn a_token_that_is_shown_when_the_url_is_tried_out_signs_nothing() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let try_out = async |path: &str, token: &str| {
        let query = format!("hub.mode=subscribe&hub.verify_token={token}&hub.challenge=42");
        host.with_key(None).request("GET", &format!("{path}?{query}")).send().await
    };
    for (provider, answer) in [("facebook", "42"), ("strava", r#"{"hub.challenge":"42"}"#)] {
        let path = integration(&host, provider, app(), None).await;
        assert_eq!(try_out(&path, "mine").await.refusal(), (503, "webhook_secret_missing".to_owned()));
        set_secret(&host, provider, SECRET).await;
        assert_eq!(try_out(&path, SECRET).await.expect(200).text(), answer);
        assert_eq!(try_out(&path, "mine").await.refusal(), (401, "invalid_webhook_signature".to_owned()));
    }
    let facebook = webhook_path(&host, "facebook").await;
    let body = r#"{"object":"page","entry":[{"id":"p1","changes":[{"field":"feed"}]}]}"#;
    let send = async |secret: &str| {
        let signature = format!("sha256={}", hex_hmac(secret, body));
        let request = host.with_key(None).request("POST", &facebook);
        request.header("x-hub-signature-256", &signature).bytes(body).send().await
    };
    send("planted-client-secret").await.expect(200);
    assert_eq!(send(SECRET).await.refusal(), (401, "invalid_webhook_signature".to_owned()));
    let strava = webhook_path(&host, "strava").await;
    host.with_key(None).post(&strava, &json!({ "object_type": "athlete", "owner_id": 1 })).await.expect(200);
}

#[tokio::test]
async fn a_secret_that_is_no_key_does_not_keep_another_from_verifying() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let path = integration(&host, "resend", Value::Null, Some("whsec_no key")).await;
    let key = STANDARD.decode(STANDARD_SECRET.trim_start_matches("whsec_")).expect("it is base64");
    let send = async |id: &str| {
        let (body, now) = (r#"{"type":"email.sent"}"#, chrono::Utc::now().timestamp().to_string());
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("a key of any length");
        mac.update(format!("{id}.{now}.{body}").as_bytes());
        let signature = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        let request = host.with_key(None).request("POST", &path).header("svix-id", id);
        let request = request.header("svix-timestamp", &now).header("svix-signature", &signature);
        request.bytes(body).send().await
    };
    assert_eq!(send("m1").await.refusal(), (503, "webhook_secret_missing".to_owned()));
    for (newer, older) in [("whsec_no key", STANDARD_SECRET), (STANDARD_SECRET, "whsec_no key")] {
        let custom = json!({ "custom": { "webhook_secret": newer, "former_webhook_secret": older } });
        host.patch("/integrations/resend", &custom).await.expect(200);
        eventually("the secrets have reached the host", async || {
            (send("m1").await.status == 200).then_some(())
        })
        .await;
    }
}
