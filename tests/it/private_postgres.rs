//! Without `DATABASE_URL`, the host starts its own Postgres.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use tempfile::TempDir;

use crate::support::{Bundle, Host, HostOptions};

fn folder() -> TempDir {
    let folder = TempDir::new().expect("a temporary folder can be made");
    // Postgres cannot run as root. If the tests do, it runs as another user, who needs access to this folder.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o711)).expect("the folder is writable");
    folder
}

async fn spawn(folder: &TempDir) -> Host {
    HostOptions::new().data_dir(&folder.path().join("data")).spawn().await
}

#[tokio::test]
async fn data_survives_a_restart_and_a_kill() {
    let folder = folder();
    let mut host = spawn(&folder).await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    connection.save_raw("Item", r#"[{"id":"first"}]"#).await.expect(200);
    host.stop().await;

    let mut host = spawn(&folder).await;
    let connection = connection.through(&host);
    assert_eq!(connection.page(&[("model", "Item")]).await.ids(), ["first"]);
    connection.save_raw("Item", r#"[{"id":"second"}]"#).await.expect(200);
    host.kill();

    let host = spawn(&folder).await;
    let connection = connection.through(&host);
    assert_eq!(connection.page(&[("model", "Item")]).await.ids(), ["first", "second"]);
    connection.save_raw("Item", r#"[{"id":"third"}]"#).await.expect(200);
}

#[tokio::test]
async fn a_second_host_in_the_same_folder_reports_the_owning_process() {
    let folder = folder();
    let _host = spawn(&folder).await;
    let options = HostOptions::new().data_dir(&folder.path().join("data"));
    let (status, log) = options.spawn_and_wait().await;
    assert!(!status.success());
    assert!(log.contains("another host (process "), "{log}");
}
