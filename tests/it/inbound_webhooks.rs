//! Provider webhooks: they are stored before they are acknowledged, and processed afterwards.

use serde_json::{Value, json};

use crate::support::webhook_scene::{
    SECRET, Scene, app, base64_hmac, connect, hex_hmac, integration, options_for, push, signed,
};
use crate::support::{
    Answer, Api, Bundle, Host, Receiver, Request, SECRET_KEY, TestDatabase, Webhook, eventually, ids_of,
    node, text,
};

#[tokio::test]
async fn github_examples_are_processed_and_forwarded_with_a_valid_signature() {
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
    // The end of the connection's first sync is reported too.
    let forwarded = eventually("all webhooks are forwarded", async || {
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

/// The webhooks that report records saved by webhook functions.
fn saved(receiver: &Receiver) -> Vec<Value> {
    let bodies = receiver.webhooks().into_iter().map(|webhook| webhook.body());
    let mut reported: Vec<Value> = bodies.filter(|body| body["syncType"] == "WEBHOOK").collect();
    reported.sort_by_key(|body| text(&body["model"]).to_owned());
    reported
}

#[tokio::test]
async fn records_saved_by_webhook_functions_are_reported_once() {
    let receiver = Receiver::start().await;
    let allowed = receiver.address();
    let scene = Scene::with(|options| options.variable("SYNCLINE_EGRESS_ALLOW", &allowed)).await;
    scene.connection.wait_until_idle().await;
    scene.db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let wait_for_saved = async |count: usize| {
        eventually(&format!("{count} saves are reported"), async || {
            let reported = saved(&receiver);
            (reported.len() >= count).then_some(reported)
        })
        .await
    };
    let deliver = async |id: &str, body: &Value, state: &str| {
        let taken = scene.deliver("push", id, body).await.expect(200);
        scene
            .wait_for_state(
                taken.header("x-syncline-webhook-id").expect("the response has a webhook id"),
                state,
            )
            .await;
    };
    deliver("d1", &push("refs/heads/main"), "processed").await;
    let mut reported = wait_for_saved(2).await;
    for body in &mut reported {
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
    // No sync declares the model `Push`.
    assert_eq!(reported, [expected("nothing", "Note"), expected("pushed", "Push")]);

    // The same push again is another note, but does not change the push.
    deliver("d2", &push("refs/heads/main"), "processed").await;
    let metadata = json!({ "repository": "acme/shop", "fails_after": true });
    connect(&scene.host, "customer-1", metadata).await;
    deliver("d3", &push("refs/heads/other"), "failed").await;
    let attempts = "SELECT count(*) FROM runs WHERE function_name = 'pushed' AND state = 'error'";
    assert_eq!(scene.db.number(attempts).await, 2);
    let models: Vec<String> =
        wait_for_saved(5).await.iter().map(|body| text(&body["model"]).to_owned()).collect();
    assert_eq!(
        models,
        ["Note", "Note", "Note", "Push", "Push"],
        "records of a failed attempt are reported once"
    );
    let written = "SELECT count(*) FROM outbound_webhook_deliveries WHERE body LIKE '%\"WEBHOOK\"%'";
    assert_eq!(scene.db.number(written).await, 5);
}

#[tokio::test]
async fn the_next_host_reports_what_a_killed_host_saved() {
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
    // Only one function subscribes to stars. The host may crash before it responds.
    tokio::spawn(signed(&host, &url, "star", "d1", &body, &signature).try_send());
    host.wait().await;
    let next = options_for(&db).variable("SYNCLINE_EGRESS_ALLOW", &allowed).spawn().await;
    let reported = eventually("the saved record is reported", async || saved(&receiver).pop()).await;
    assert_eq!(
        (&reported["syncName"], &reported["model"]),
        (&json!("nothing"), &json!("Note")),
        "{reported}"
    );
    let since = text(&reported["modifiedAfter"]);
    let found = connection.through(&next).all(&[("model", "Note"), ("modified_after", since)]).await;
    assert_eq!(ids_of(&found), ["d1"]);
}

#[tokio::test]
async fn an_event_is_dispatched_to_its_connection_and_subscribed_functions() {
    let scene = Scene::create().await;
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
async fn the_connection_in_the_url_overrides_the_payload() {
    let scene = Scene::create().await;
    let other = connect(&scene.host, "customer-2", json!({ "repository": "acme/other" })).await;
    let body = push("-").to_string();
    let signature = format!("sha256={}", hex_hmac(SECRET, &body));
    let send = async |id: &str, named: &str| {
        let url = format!("{}?connection_id={named}", scene.url);
        let sent = signed(&scene.host, &url, "star", id, &body, &signature).send().await.expect(200);
        sent.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned()
    };
    for (id, unknown_id) in [("d1", "customer-9"), ("d2", ""), ("d3", "%00")] {
        let id = send(id, unknown_id).await;
        assert_eq!(scene.wait_for_state(&id, "unmatched").await["connections"], 0, "{unknown_id}");
    }
    let id = send("d4", "customer-2").await;
    scene.wait_for_state(&id, "processed").await;
    assert_eq!(ids_of(&other.all(&[("model", "Note")]).await), ["d4"]);
    assert!(scene.notes().await.is_empty(), "the connection in the body is ignored");
}

#[tokio::test]
async fn a_repeated_delivery_is_dropped() {
    let scene = Scene::create().await;
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
async fn a_captured_delivery_is_dropped_even_under_another_id() {
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
    assert_eq!(send("d1", millis).await, None, "the same delivery is dropped");
    assert_eq!(send("d2", millis).await, None, "the same content under another id is dropped");
    assert_eq!(send("d1", millis + 1).await, None, "the same id with a new signature is dropped");
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
    assert_eq!(send("m2", "t1").await, None, "a signature cannot be used twice");
    assert!(send("m2", "t2").await.is_some());
}

#[tokio::test]
async fn acknowledged_webhooks_survive_a_killed_host() {
    let mut scene = Scene::create().await;
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
    while taken.len() < 40 {
        let sent = sending.join_next().await.expect("the host takes 40 webhooks");
        taken.extend(sent.expect("sending does not panic"));
    }
    scene.host.kill();
    while let Some(sent) = sending.join_next().await {
        taken.extend(sent.expect("sending does not panic"));
    }
    let second = options_for(&scene.db).spawn().await;
    let connection = scene.connection.through(&second);
    eventually("all acknowledged webhooks are saved", async || {
        let saved = connection.all(&[("model", "Note")]).await;
        let saved = ids_of(&saved);
        taken.iter().all(|id| saved.contains(&id.as_str())).then_some(())
    })
    .await;
}

/// A new client for each request: a client must not be reused after its host was killed.
fn reqwest_client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("an HTTP client can be built")
}

#[tokio::test]
async fn two_hosts_process_each_webhook_once() {
    let scene = Scene::create().await;
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
    eventually("every run is stored", async || (scene.db.number(runs).await == 60).then_some(())).await;
    let processed = "SELECT count(*) FROM inbound_webhooks WHERE state = 'processed'";
    eventually("every webhook is processed", async || (scene.db.number(processed).await == 60).then_some(()))
        .await;
}

#[tokio::test]
async fn concurrent_copies_of_a_delivery_are_stored_once_across_hosts() {
    let scene = Scene::create().await;
    let second = options_for(&scene.db).spawn().await;
    let hosts: [&Api; 2] = [&scene.host, &second];
    let body = push("main").to_string();
    let send = async |number: usize| {
        let id = format!("d{}", number % 10);
        let answer = scene.delivery(hosts[number / 10 % 2], "star", &id, &body).send().await.expect(200);
        (id, answer.header("x-syncline-webhook-id").is_some())
    };
    let answers = futures_util::future::join_all((0..60).map(send)).await;
    let mut remaining: Vec<&str> =
        answers.iter().filter(|(_, is_new)| *is_new).map(|(id, _)| id.as_str()).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9"]);
    assert_eq!(scene.stored().await, 10);
    scene.wait_for_notes(10).await;
    assert_eq!(scene.db.number("SELECT count(*) FROM function_jobs").await, 10);
}

#[tokio::test]
async fn a_failing_function_is_retried_and_its_webhook_can_be_replayed() {
    let scene = Scene::create().await;
    scene.connection.set_metadata(json!({ "repository": "acme/shop", "fails": true })).await;
    let id = scene.deliver("push", "d1", &push("main")).await.expect(200);
    let id = id.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned();
    let failed = scene.wait_for_state(&id, "failed").await;
    assert_eq!((&failed["connections"], &failed["functions_failed"]), (&json!(1), &json!(1)));
    let runs = "SELECT count(*) FROM runs WHERE function_name = 'pushed' AND state = 'error'";
    assert_eq!(scene.db.number(runs).await, 2, "the function is retried once");
    let functions: Vec<_> =
        failed["functions"].as_array().unwrap().iter().map(|job| text(&job["state"])).collect();
    assert!(functions.contains(&"success") && functions.contains(&"error"), "{functions:?}");
    let failures = |of: &str| {
        let functions = failed["functions"].as_array().unwrap().iter();
        functions.filter(|job| job["state"] == of).map(|job| job["failures"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((failures("success"), failures("error")), (vec![json!(0)], vec![json!(2)]));
    assert_eq!(failed["body"], push("main"));
    scene.connection.set_metadata(json!({ "repository": "acme/shop" })).await;
    scene.host.post(&format!("/webhooks/received/{id}/replay"), &json!({})).await.expect(202);
    let processed = scene.wait_for_state(&id, "processed").await;
    assert_eq!(processed["replays"], 1);
    assert_eq!(scene.db.audited("inbound_webhook.replayed").await, [format!("inbound_webhook {id}")]);
    let jobs = |webhook: &Value| -> Vec<String> {
        let functions = webhook["functions"].as_array().unwrap().iter();
        functions.map(|job| text(&job["job_id"]).to_owned()).collect()
    };
    assert_eq!(jobs(&processed), jobs(&failed), "a run's id stays the same");
    // A record that the first attempt saved is not reported as changed again.
    let note = scene.notes().await.remove(0);
    assert_eq!(note["_service_metadata"]["last_action"], "ADDED");
}

#[tokio::test]
async fn an_unmatched_webhook_can_be_replayed_once_its_connection_exists() {
    let scene = Scene::create().await;
    let body = json!({ "repository": { "full_name": "acme/later" } });
    scene.deliver("star", "d1", &body).await.expect(200);
    let list = || scene.host.get("/webhooks/received?state=unmatched&type=star&provider_config_key=webhooks");
    eventually("the webhook is unmatched", async || {
        let listed = list().await.expect(200).json();
        (listed["webhooks"].as_array().is_some_and(|all| all.len() == 1)).then_some(())
    })
    .await;
    let later = connect(&scene.host, "customer-2", json!({ "repository": "acme/later" })).await;
    let replayed =
        scene.host.post("/webhooks/received/replay", &json!({ "since": "2026-01-01T00:00:00Z" })).await;
    assert_eq!(replayed.expect(202).json(), json!({ "count": 1 }));
    assert_eq!(scene.db.audited("inbound_webhook.replayed").await, ["environment dev"]);
    eventually("the webhook is saved", async || {
        let notes = later.all(&[("model", "Note")]).await;
        (ids_of(&notes) == ["d1"]).then_some(())
    })
    .await;
    assert!(list().await.expect(200).json()["webhooks"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn a_function_just_deployed_through_another_host_gets_webhooks() {
    let scene = Scene::create().await;
    let note = "[integrations.webhooks.webhooks.note]\nmodels = [\"Note\"]\n";
    // From here on, the host's cache contains a deployment without the function.
    scene.host.deploy(&Bundle::guest("webhooks").replace(note, "")).await;
    scene.db.switch_to_first_versions().await;
    scene.deliver("star", "d1", &push("-")).await.expect(200);
    scene.wait_for_notes(1).await;
}

#[tokio::test]
async fn the_cli_lists_shows_and_replays_webhooks() {
    let scene = Scene::create().await;
    let later = json!({ "ref": "main", "repository": { "full_name": "acme/later" } });
    let mut ids = Vec::new();
    for (event, id, body, state) in [
        ("star", "d1", &push("-"), "processed"),
        ("star", "d2", &later, "unmatched"),
        ("push", "d3", &later, "unmatched"),
    ] {
        let answer = scene.deliver(event, id, body).await.expect(200);
        ids.push(answer.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned());
        scene.wait_for_state(&ids[ids.len() - 1], state).await;
    }
    let access = ["--url", scene.host.base_url(), "--secret-key", SECRET_KEY];
    let run =
        |arguments: &[&str]| scene.host.command(&scene.db, &[&["webhooks"], arguments, &access].concat());
    let listed = run(&["received"]);
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(listed, [&ids[2], &ids[1], &ids[0]], "the newest webhook is first");
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
    assert_eq!(run(&["replay", &ids[1]]), format!("webhook {} is queued for processing again\n", ids[1]));
    scene.wait_for_state(&ids[1], "processed").await;
    let since =
        ["replay", "--since", "2020-01-01T00:00:00Z", "--state", "unmatched", "--integration", "webhooks"];
    assert_eq!(run(&since), "1 webhooks are queued for processing again\n");
    scene.wait_for_state(&ids[2], "processed").await;
    assert_eq!(ids_of(&scene.wait_for_notes(3).await), ["d1", "d2", "d3"]);
    let nil = uuid::Uuid::nil().to_string();
    let unknown = scene.db.command(&[&["webhooks", "replay", &nil], &access[..]].concat()).run_failing();
    assert!(unknown.contains("unknown_webhook") || unknown.contains(&nil), "{unknown}");
}

#[tokio::test]
async fn processed_webhooks_expire_and_unfinished_ones_are_kept() {
    let scene = Scene::create().await;
    let deliver = async |id: &str| {
        let answer = scene.deliver("star", id, &push("-")).await.expect(200);
        answer.header("x-syncline-webhook-id").expect("the webhook is new").to_owned()
    };
    for id in ["old", "unmatched", "failed", "processing", "younger", "new", "orphan"] {
        let stored = deliver(id).await;
        scene.wait_for_state(&stored, "processed").await;
    }
    let change = async |id: &str, change: &str| {
        scene.db.execute(&format!("UPDATE inbound_webhooks SET {change} WHERE delivery_id = '{id}'")).await;
    };
    // A webhook id contains the time at which it was created.
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
    let remaining = "SELECT delivery_id FROM inbound_webhooks ORDER BY delivery_id";
    assert_eq!(scene.db.texts(remaining).await.len(), 7);
    let _second =
        options_for(&scene.db).variable("SYNCLINE_RECEIVED_WEBHOOK_RETENTION_DAYS", "3").spawn().await;
    eventually("the oldest webhooks and the orphan are deleted", async || {
        (scene.db.texts(remaining).await == ["new", "processing", "younger"]).then_some(())
    })
    .await;
    // Nothing is left by which a repetition could be recognized.
    deliver("old").await;
}

#[tokio::test]
async fn webhook_lists_are_paged_and_reject_unknown_parameters() {
    let scene = Scene::create().await;
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
async fn invalid_requests_are_rejected_and_not_stored() {
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
    assert_eq!(refusal(compressed).await, of(415, "invalid_content_encoding"));
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
async fn distinct_woocommerce_webhooks_with_the_same_delivery_id_are_kept() {
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
    assert_eq!(db.number("SELECT count(*) FROM inbound_webhooks").await, 0);
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
    let of = "SELECT state || connections || event_type FROM inbound_webhooks";
    eventually("both webhooks are matched to their connection", async || {
        (db.texts(of).await == ["processed1order.updated", "processed1order.updated"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_list_of_events_is_split_by_connection() {
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
    db.execute("DELETE FROM outbound_webhook_deliveries").await;
    let event = |of: u32, number: u32| json!({ "tenantId": tenant(of), "resourceId": number });
    let events = json!({ "events": [event(1, 1), event(2, 2), event(1, 3), event(9, 4)], "entropy": "e" });
    let body = events.to_string();
    let signature = base64_hmac(SECRET, &body);
    let request = host.with_key(None).request("POST", &path).header("x-xero-signature", &signature);
    request.header("content-type", "application/json").bytes(body).send().await.expect(200);
    let is_forward = |webhook: &Value| webhook["type"] == "forward" || webhook["entropy"] == "e";
    let reported = eventually("all three parts are forwarded", async || {
        let webhooks = receiver.webhooks();
        let reported: Vec<Value> = webhooks.iter().map(Webhook::body).filter(is_forward).collect();
        (reported.len() == 3).then_some(reported)
    })
    .await;
    let of = |connection: &str| {
        reported
            .iter()
            .find(|body| body["connectionId"] == connection)
            .map(|body| body["payload"]["events"].clone())
    };
    assert_eq!(of("t1"), Some(json!([event(1, 1), event(1, 3)])));
    assert_eq!(of("t2"), Some(json!([event(2, 2)])));
    let unwrapped = reported
        .iter()
        .find(|body| body.get("type").is_none())
        .expect("an unmatched part is forwarded unchanged");
    assert_eq!(unwrapped["events"], json!([event(9, 4)]));
}

#[tokio::test]
async fn a_replay_for_a_deleted_connection_is_unmatched() {
    let scene = Scene::create().await;
    let id = scene.deliver("star", "d1", &push("-")).await.expect(200);
    let id = id.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned();
    scene.wait_for_state(&id, "processed").await;
    scene.host.delete("/connections/customer-1?provider_config_key=webhooks").await.expect(200);
    scene.host.post(&format!("/webhooks/received/{id}/replay"), &json!({})).await.expect(202);
    scene.wait_for_state(&id, "unmatched").await;
    scene.host.delete("/integrations/webhooks").await.expect(200);
    let gone = scene.deliver("star", "d2", &push("-")).await;
    assert_eq!(gone.refusal(), (404, "unknown_integration".to_owned()));
    assert_eq!(scene.host.get("/webhooks/received").await.expect(200).json()["webhooks"], json!([]));
}
