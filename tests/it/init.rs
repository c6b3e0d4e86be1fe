//! `syncline init`: new projects work. The tutorial in Python runs one, too, and building it twice would take long.

use serde_json::Value;

use crate::support::new_project::{ISSUES, LANGUAGES, NewProject, issue_server, printed};
use crate::support::{HostOptions, TestDatabase, eventually};

/// From `init` to records, with the commands of the project's README.
async fn first_records(language: &str) {
    let (db, provider) = (TestDatabase::create().await, issue_server().await);
    let host =
        HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address()).spawn().await;
    let mut project = NewProject::create(language, &provider);
    project.use_host(&host);
    assert!(project.run(&["generate", "--check"]).contains("is up to date"), "{language}");
    assert!(project.run(&["check"]).contains("no mistakes (functions: 2, models: 2)"), "{language}");
    assert!(project.run(&["build"]).contains("bundle "), "{language}");
    project.run(&["deploy", "--bundle", "build/bundle.tar", "--yes"]);
    project.run(&["connections", "import", "ada", "--integration", "github"]);
    let records = eventually("the first run has saved every record", async || {
        let list = ["records", "list", "--model", "Issue", "--limit", "500", "--json"];
        let records: Vec<Value> = serde_json::from_str(&project.run(&list)).expect("it is JSON");
        (records.len() == ISSUES).then_some(records)
    })
    .await;
    assert!(records.iter().all(|record| record.get("comments").is_none()), "{language}: {:?}", records[0]);

    let issue: Value = serde_json::from_str(&project.run(&["action", "read-issue", r#"{"number": 7}"#]))
        .expect("the output is JSON");
    assert_eq!(issue["title"], "Issue 7", "{language}");
    // The second run continues from the checkpoint, which is the time of the newest issue.
    let log = project.run(&["trigger", "issues", "--follow"]);
    assert!(log.contains("since=2026-01-02T17"), "{language}: {log}");
    assert!(log.contains("sync issues: success"), "{language}: {log}");
}

#[tokio::test]
async fn a_new_project_in_rust_saves_records() {
    first_records("rust").await;
}

#[tokio::test]
async fn a_new_project_in_typescript_saves_records() {
    first_records("typescript").await;
}

#[tokio::test]
async fn the_test_of_a_new_project_passes() {
    let provider = issue_server().await;
    for (language, program, arguments) in [
        ("typescript", "npm", &["test", "--silent"][..]),
        ("python", ".venv/bin/python", &["-m", "pytest", "--quiet"]),
        ("python", ".venv/bin/mypy", &["--strict", "."]),
    ] {
        let project = NewProject::create(language, &provider);
        let output =
            std::process::Command::new(program).args(arguments).current_dir(project.path("")).output();
        let output = output.expect("the program is installed; `scripts/setup` installs it");
        assert!(output.status.success(), "{program}: {}", printed(&output));
    }
}

#[tokio::test]
async fn a_project_for_a_provider_of_the_catalogue_has_no_mistakes() {
    let provider = issue_server().await;
    let project = NewProject::create("python", &provider);
    for (language, _) in LANGUAGES {
        for slug in ["notion", "github-pat", "zendesk"] {
            let folder = format!("{language}-{slug}");
            let output = project.run_outside(&["init", &folder, "--language", language, "--provider", slug]);
            assert!(output.status.success(), "{}", printed(&output));
            let output = project.run_outside(&["check", "--no-build", &folder]);
            assert!(output.status.success(), "{}", printed(&output));
        }
    }
}

#[tokio::test]
async fn mistakes_in_the_arguments_are_explained_and_nothing_is_written() {
    let provider = issue_server().await;
    let project = NewProject::create("rust", &provider);
    for (arguments, status, message) in [
        (&["init", "issues", "--language", "rust"][..], 1, "is not empty; name another folder"),
        (&["init", "other", "--language", "pyton"], 2, "a similar value exists: 'python'"),
        (&["init", "other", "--language", "rust", "--provider", "notin"], 1, "did you mean `notion`?"),
        (&["init", "other", "--language", "rust", "--sdk", "issues"], 1, "name the folder `guest-sdk`"),
    ] {
        let output = project.run_outside(arguments);
        assert_eq!(output.status.code(), Some(status), "{}", printed(&output));
        assert!(printed(&output).contains(message), "{}", printed(&output));
        assert!(!project.path("../other").exists(), "{arguments:?}");
    }
}
