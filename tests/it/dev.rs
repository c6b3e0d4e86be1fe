//! `syncline dev`: each change of a file is built, deployed and run.

use crate::support::free_port;
use crate::support::new_project::{NewProject, issue_server};

const SOURCE: &str = "src/index.ts";
const CYCLE: &str = "\nwatching ";

#[tokio::test]
async fn a_change_is_deployed_and_run_and_a_mistake_keeps_the_version_before() {
    let provider = issue_server().await;
    let mut project = NewProject::create("typescript", &provider);
    project.set("SYNCLINE_URL", &format!("http://127.0.0.1:{}", free_port()));
    let mut dev = project.start(&["dev"]);
    let printed = dev.wait_for(CYCLE, 1).await;
    assert!(printed.contains("started a host at"), "{printed}");
    assert!(printed.contains("deployed version 1"), "{printed}");
    assert!(printed.contains("created the connection github/dev"), "{printed}");
    assert!(printed.contains("sync issues: success"), "{printed}");
    assert!(printed.contains("Issue: 250 added"), "{printed}");

    // The other commands find the host's key in the project.
    assert!(project.run(&["records", "list", "--model", "Issue", "--limit", "1"]).contains("ADDED"));

    // Titles are now in upper case, and without the checkpoint every issue is read again.
    project.edit(SOURCE, "return { id, number, title,", "return { id, number, title: title.toUpperCase(),");
    project.edit(SOURCE, "since: checkpoint.cursor()", "since: undefined");
    let printed = dev.wait_for("250 updated", 1).await;
    assert!(printed.contains("deployed version 2"), "{printed}");
    dev.wait_for(CYCLE, 2).await;

    project.edit(SOURCE, "export default integration", "export default integration((");
    let printed = dev.wait_for(CYCLE, 3).await;
    assert!(printed.contains("src/index.ts:"), "the mistake has a place: {printed}");
    assert!(!printed.contains("deployed version 3"), "{printed}");
    assert!(project.run(&["action", "read-issue", r#"{"number": 7}"#]).contains("ISSUE 7"));

    project.edit(SOURCE, "export default integration((", "export default integration");
    project.edit("syncline.toml", "\"every 1 hour\"", "\"every hourr\"");
    let printed = dev.wait_for(CYCLE, 4).await;
    assert!(printed.contains("every hourr"), "{printed}");
    project.edit("syncline.toml", "\"every hourr\"", "\"every 2 hours\"");
    dev.wait_for("deployed version 3", 1).await;
    dev.wait_for(CYCLE, 5).await;

    let (status, printed) = dev.interrupt().await;
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.ends_with("stopped\n"), "{printed}");
}

#[tokio::test]
async fn an_unknown_function_or_connection_is_explained() {
    let provider = issue_server().await;
    let mut project = NewProject::create("typescript", &provider);
    project.set("SYNCLINE_URL", &format!("http://127.0.0.1:{}", free_port()));
    let mut dev = project.start(&["dev", "--function", "isues"]);
    let printed = dev.wait_for(CYCLE, 1).await;
    assert!(printed.contains("lists no sync or action `isues`; did you mean `issues`?"), "{printed}");
    assert_eq!(dev.interrupt().await.0, Some(0));

    let mut dev = project.start(&["dev", "--connection", "eve"]);
    let printed = dev.wait_for(CYCLE, 1).await;
    assert!(printed.contains("the integration `github` has no connection `eve`"), "{printed}");
    assert_eq!(dev.interrupt().await.0, Some(0));
}

#[tokio::test]
async fn an_address_elsewhere_without_a_host_is_refused() {
    let provider = issue_server().await;
    let mut project = NewProject::create("typescript", &provider);
    project.set("SYNCLINE_URL", &format!("http://127.0.0.1:{}/syncline", free_port()));
    let error = project.run_failing(&["dev"]);
    assert!(error.contains("there is no host at http://127.0.0.1:"), "{error}");
}
