//! Long-lived tasks of a host: a task that panics is counted and restarted, and the host continues to serve.

use serde_json::json;

use crate::support::{Host, HostOptions, TestDatabase, eventually};

/// The failure count of each task in `/metrics`, by name.
async fn task_failures(host: &Host) -> Vec<(String, u64)> {
    let metrics = host.get("/metrics").await.expect(200).text();
    let samples =
        metrics.lines().filter_map(|line| line.strip_prefix("syncline_task_failures_total{task=\""));
    let read = |sample: &str| {
        let (name, count) = sample.split_once("\"} ").expect("a sample has one label and a value");
        (name.to_owned(), count.parse().expect("a count is a number"))
    };
    samples.map(read).collect()
}

#[tokio::test]
async fn a_background_task_that_panics_is_counted_and_restarted() {
    let db = TestDatabase::create().await;
    let mut host = Host::spawn(&db).await;
    let tasks = task_failures(&host).await;
    assert!(tasks.len() >= 35, "{tasks:?}");
    assert!(tasks.iter().all(|(_, failures)| *failures == 0), "{tasks:?}");
    host.stop().await;

    for (task, _) in tasks {
        let failpoint = format!("task:{task}=panic");
        let mut host =
            HostOptions::new().database(&db).variable("SYNCLINE_FAILPOINT", &failpoint).spawn().await;
        eventually(&format!("the panic of `{task}` is counted"), async || {
            let failures = task_failures(&host).await;
            failures.iter().any(|(name, failures)| *name == task && *failures == 1).then_some(())
        })
        .await;
        eventually(&format!("`{task}` runs again"), async || {
            let ready = host.get("/ready").await;
            (ready.status == 200 && ready.json() == json!({ "result": "ok" })).then_some(())
        })
        .await;
        host.get("/integrations").await.expect(200);
        let log = host.log();
        assert!(log.contains(&format!("the armed failpoint makes the task `{task}` panic")), "{log}");
        host.stop().await;
    }
}
