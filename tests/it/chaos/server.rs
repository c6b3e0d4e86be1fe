//! The Postgres of a sequence, which a disturbance can kill.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::ConnectOptions;
use syncline::private_postgres::PrivatePostgres;
use tempfile::TempDir;

use super::disk::Disk;

/// A server that gives up does so within this time.
const ENDING_TIME: Duration = Duration::from_millis(300);

/// A durable Postgres: the private one that hosts bring along. Fields are dropped in order: the server before its disk.
pub struct Server {
    postgres: Option<PrivatePostgres>,
    /// The disk with the data, or `None` if the test is not permitted to mount one.
    pub disk: Option<Disk>,
    folder: TempDir,
}

impl Server {
    pub async fn start() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = TempDir::new().expect("a temporary folder can be made");
        // Postgres cannot run as root. If the tests do, it runs as another user, who needs access to this folder.
        let passable = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(folder.path(), passable).expect("the folder is writable");
        let disk = match Disk::mount(folder.path(), &folder.path().join("data")) {
            Ok(disk) => Some(disk),
            Err(reason) => {
                println!("no full disks, because a disk cannot be mounted: {reason}");
                None
            }
        };
        let mut server = Self { postgres: None, disk, folder };
        server.start_again().await;
        server
    }

    pub async fn start_again(&mut self) {
        let data_dir = self.folder.path().join("data");
        self.postgres = Some(PrivatePostgres::start(&data_dir).await.expect("Postgres starts"));
    }

    /// Starts the server again if it has ended by itself.
    pub async fn start_if_ended(&mut self) {
        let postgres = self.postgres.as_mut().expect("Postgres was started");
        let has_ended = tokio::time::timeout(ENDING_TIME, postgres.ended()).await.is_ok();
        if has_ended {
            self.postgres = None;
            self.start_again().await;
        }
    }

    pub fn url(&self) -> String {
        self.postgres.as_ref().expect("Postgres is running").connect_options().to_url_lossy().to_string()
    }

    /// Kills the process without a graceful stop.
    pub async fn kill(&mut self) {
        let pid_file = self.folder.path().join("data/postgres/postmaster.pid");
        let pid = std::fs::read_to_string(pid_file).expect("Postgres is running");
        let pid = pid.lines().next().and_then(|line| line.parse().ok()).and_then(Pid::from_raw);
        kill_process(pid.expect("the first line is a process id"), Signal::KILL)
            .expect("Postgres is running");
        let mut postgres = self.postgres.take().expect("Postgres is running");
        postgres.ended().await;
    }
}
