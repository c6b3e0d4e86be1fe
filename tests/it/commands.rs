//! The commands that look at a host and act on it: `connections`, `records`, `trigger`, `action`, `runs` and `logs`.

use serde_json::{Value, json};

use crate::support::new_project::{NewProject, issue_server, printed};
use crate::support::{Bundle, HostOptions, PythonServer, SECRET_KEY, TestDatabase, eventually, free_port};

/// A host with two integrations of the minimal example, and a folder to run commands in.
struct Scene {
    _db: TestDatabase,
    _provider: PythonServer,
    host: crate::support::Host,
    project: NewProject,
}

impl Scene {
    async fn start() -> Self {
        let (db, provider) = (TestDatabase::create().await, issue_server().await);
        let host = HostOptions::new().database(&db).spawn().await;
        host.deploy(&Bundle::example("minimal")).await;
        let mut project = NewProject::create("rust", &provider);
        project.use_host(&host);
        Self { _db: db, _provider: provider, host, project }
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.project.run(arguments)).expect("the output is JSON")
    }

    async fn wait_for_run(&self) {
        eventually("a run has finished", async || {
            let runs = self.json(&["runs", "list", "--state", "success", "--json"]);
            (!runs.as_array().expect("a list").is_empty()).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn connections_are_imported_listed_shown_and_deleted() {
    let scene = Scene::start().await;
    let project = &scene.project;
    let metadata = r#"{"count": 3, "note": 12345678901234567890}"#;
    let imported = project.run(&[
        "connections",
        "import",
        "ada",
        "--integration",
        "minimal",
        "--metadata",
        metadata,
        "--tag",
        "plan=pro",
    ]);
    assert_eq!(imported, "imported connection minimal/ada\n");
    assert!(project.run(&["connections", "list"]).starts_with("minimal/ada  unauthenticated  "));
    assert_eq!(scene.json(&["connections", "list", "--search", "eve", "--json"]), json!([]));

    let shown = project.run(&["connections", "show", "ada"]);
    assert!(shown.contains("\"plan\": \"pro\""), "{shown}");
    assert!(!shown.contains("\"credentials\""), "{shown}");
    let shown = scene.json(&["connections", "show", "ada", "--show-credentials"]);
    assert_eq!(shown["credentials"]["type"], "NONE");

    let unknown = project.run_failing(&["connections", "import", "--integration", "minmal"]);
    assert!(unknown.contains("did you mean `minimal`?"), "{unknown}");
    let refused = project.run_failing(&["connections", "import", "-i", "minimal", "--credentials", "{type"]);
    assert!(refused.contains("--credentials") && refused.contains("is not JSON"), "{refused}");
    let unasked = project.run_failing(&["connections", "delete", "ada"]);
    assert!(unasked.contains("use --yes to delete"), "{unasked}");
    assert_eq!(project.run(&["connections", "delete", "ada", "--yes"]), "deleted connection minimal/ada\n");
    let gone = project.run_failing(&["connections", "show", "ada"]);
    assert!(gone.contains("there is no connection `ada`"), "{gone}");
}

#[tokio::test]
async fn credentials_are_read_from_a_file_and_printed_only_on_request() {
    let scene = Scene::start().await;
    let project = &scene.project;
    let bundle = Bundle::example("minimal").for_integration("shop", "stripe-api-key");
    scene.host.deploy(&bundle).await;
    let credentials = r#"{"type": "BASIC", "username": "sk_test_of_the_commands", "password": ""}"#;
    std::fs::write(project.path("credentials.json"), credentials).expect("the folder is writable");
    let import = ["connections", "import", "ada", "-i", "shop", "--credentials", "@credentials.json"];
    project.run(&import);
    for arguments in [&["connections", "show", "ada"][..], &["connections", "list", "--json"]] {
        assert!(!project.run(arguments).contains("sk_test"), "{arguments:?}");
    }
    let shown = scene.json(&["connections", "show", "ada", "--show-credentials"]);
    assert_eq!(shown["credentials"]["username"], "sk_test_of_the_commands");
}

#[tokio::test]
async fn records_are_listed_page_by_page() {
    let scene = Scene::start().await;
    let project = &scene.project;
    project.run(&["connections", "import", "ada", "-i", "minimal", "--metadata", r#"{"count": 3}"#]);
    scene.wait_for_run().await;
    let first = project.output(&["records", "list", "--model", "Number", "--limit", "2"]);
    let (lines, hint) = (String::from_utf8_lossy(&first.stdout), String::from_utf8_lossy(&first.stderr));
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.starts_with("ADDED    ") && lines.contains(r#""id":"number-0""#), "{lines}");
    let cursor = hint.trim().rsplit_once(' ').expect("the hint ends with the cursor").1;
    let rest = scene.json(&["records", "list", "--model", "Number", "--cursor", cursor, "--json"]);
    assert_eq!(rest.as_array().expect("a list").len(), 1);
    assert_eq!(rest[0]["id"], "number-2");
    let one = scene.json(&["records", "list", "--model", "Number", "--id", "number-1", "--json"]);
    assert_eq!(one[0]["value"], 1);
    assert_eq!(
        scene.json(&["records", "list", "--model", "Number", "--filter", "deleted", "--json"]),
        json!([])
    );
    let unknown = project.run_failing(&["records", "list", "--model", "Numbr"]);
    assert!(unknown.contains("unknown_model") && unknown.contains("did you mean `Number`?"), "{unknown}");
}

#[tokio::test]
async fn the_only_connection_need_not_be_named_and_several_are_listed() {
    let scene = Scene::start().await;
    let project = &scene.project;
    let nothing = project.run_failing(&["trigger", "numbers"]);
    assert!(nothing.contains("syncline connections import"), "{nothing}");
    let unknown = project.run_failing(&["trigger", "numbers", "-i", "minmal"]);
    assert!(unknown.contains("there is no integration `minmal`; did you mean `minimal`?"), "{unknown}");
    project.run(&["connections", "import", "ada", "-i", "minimal"]);
    assert_eq!(project.run(&["action", "echo", "[1.0]"]), "[1.0]\n");
    project.run(&["connections", "import", "grace", "-i", "minimal"]);
    let several = project.run_failing(&["action", "echo", "1"]);
    assert!(several.contains("minimal/ada") && several.contains("minimal/grace"), "{several}");
    assert_eq!(project.run(&["action", "echo", "1", "--connection", "grace"]), "1\n");
}

#[tokio::test]
async fn actions_take_input_from_an_argument_and_a_file() {
    let scene = Scene::start().await;
    let project = &scene.project;
    project.run(&["connections", "import", "ada", "-i", "minimal"]);
    let exact = r#"{"amount": 12345678901234567890.10}"#;
    assert_eq!(project.run(&["action", "echo", exact]).trim_end(), exact);
    std::fs::write(project.path("input.json"), exact).expect("the folder is writable");
    assert_eq!(project.run(&["action", "echo", "@input.json"]).trim_end(), exact);
    let unknown = project.run_failing(&["action", "ecko", "1"]);
    assert!(unknown.contains("unknown_action") && unknown.contains("did you mean `echo`?"), "{unknown}");
    let refused = project.run_failing(&["action", "echo", "Ada"]);
    assert!(refused.contains("is not JSON; for a string, write '\"text\"'"), "{refused}");
}

#[tokio::test]
async fn syncs_are_triggered_and_followed() {
    let scene = Scene::start().await;
    let project = &scene.project;
    project.run(&["connections", "import", "ada", "-i", "minimal", "--metadata", r#"{"count": 3}"#]);
    scene.wait_for_run().await;
    let followed = project.run(&["trigger", "numbers", "--reset", "--follow"]);
    assert!(followed.starts_with("triggered numbers of minimal/ada\n"), "{followed}");
    assert!(followed.contains("sync numbers: success"), "{followed}");
    assert!(followed.contains("Number: 0 added"), "{followed}");
    let all = project.run(&["trigger", "--all", "-i", "minimal", "--all-connections"]);
    assert_eq!(all, "triggered all syncs of all connections of minimal\n");
    let unknown = project.run_failing(&["trigger", "number"]);
    assert!(unknown.contains("unknown_sync") && unknown.contains("did you mean `numbers`?"), "{unknown}");
    let failing = r#"{"count": "many"}"#;
    project.run(&["connections", "import", "ada", "-i", "minimal", "--metadata", failing]);
    let failed = project.run_failing(&["trigger", "numbers", "--follow"]);
    assert!(failed.contains("runs that failed: 1"), "{failed}");
}

#[tokio::test]
async fn runs_and_logs_are_followed() {
    let scene = Scene::start().await;
    let project = &scene.project;
    let mut runs = project.start(&["runs", "list", "--follow"]);
    let mut logs = project.start(&["logs", "--follow"]);
    project.run(&["connections", "import", "ada", "-i", "minimal", "--metadata", r#"{"count": 3}"#]);
    let listed = runs.wait_for("success    sync       minimal/ada  numbers", 1).await;
    assert!(!listed.contains(SECRET_KEY));
    project.run(&["action", "echo", "1"]);
    runs.wait_for("success    action     minimal/ada  echo", 1).await;
    let followed = logs.wait_for(" of echo (", 1).await;
    assert!(followed.contains(" of numbers ("), "{followed}");
    let last = project.output(&["logs"]);
    assert!(String::from_utf8_lossy(&last.stderr).contains(" of echo ("));
}

#[tokio::test]
async fn colours_follow_the_variables_of_the_terminal() {
    let scene = Scene::start().await;
    let project = &scene.project;
    project.run(&["connections", "import", "ada", "-i", "minimal", "--metadata", r#"{"count": 3}"#]);
    scene.wait_for_run().await;
    let colours = |arguments: &[&str], variables: &[(&str, &str)]| {
        printed(&project.output_with(arguments, variables)).contains("\u{1b}[")
    };
    for arguments in [&["runs", "list"][..], &["records", "list", "--model", "Numbr"]] {
        assert!(!colours(arguments, &[]), "there is no terminal: {arguments:?}");
        assert!(colours(arguments, &[("CLICOLOR_FORCE", "1")]), "{arguments:?}");
        assert!(!colours(arguments, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), "{arguments:?}");
    }
    assert!(!colours(&["runs", "list", "--json"], &[("CLICOLOR_FORCE", "1")]), "JSON is for programs");
}

#[tokio::test]
async fn completions_and_manual_pages_name_every_command() {
    let provider = issue_server().await;
    let project = NewProject::create("rust", &provider);
    for shell in ["bash", "zsh", "fish"] {
        let script = project.run(&["completions", shell]);
        assert!(script.contains("dead-letters") && script.contains("show-credentials"), "{shell}");
    }
    project.run(&["man", "pages"]);
    let page =
        |name: &str| std::fs::read_to_string(project.path("pages").join(name)).expect("it was written");
    assert!(page("syncline.1").contains("Exit codes"), "{}", page("syncline.1"));
    assert!(page("syncline-connections-import.1").contains("credentials"));
    assert!(!project.path("pages/syncline-compile-component.1").exists(), "it is not for users");
}

#[tokio::test]
async fn exit_codes_distinguish_kinds_of_failures() {
    let provider = issue_server().await;
    let mut project = NewProject::create("rust", &provider);
    project.set("SYNCLINE_URL", &format!("http://127.0.0.1:{}", free_port()));
    project.set("SYNCLINE_SECRET_KEY", SECRET_KEY);
    project.edit("syncline.toml", "every 1 hour", "every hourr");
    for (arguments, status, message) in [
        (&["runs", "list"][..], 1, "could not reach a host"),
        (&["rnus"], 2, "a similar subcommand exists: 'runs'"),
        (&["runs", "list", "--limit", "0"], 2, "--limit"),
        (&["check", "--no-build"], 3, "every hourr"),
        (&["generate"], 3, "every hourr"),
    ] {
        let output = project.output(arguments);
        assert_eq!(output.status.code(), Some(status), "{}", printed(&output));
        assert!(printed(&output).contains(message), "{}", printed(&output));
    }
}
